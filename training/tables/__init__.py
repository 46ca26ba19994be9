"""What embedding tables are made of: specs, initial values, and the variables that hold their rows."""
