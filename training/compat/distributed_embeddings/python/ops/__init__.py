"""The lookup as a function."""
