"""The command line `rankhouse`."""
