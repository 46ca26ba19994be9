"""Checkpoints: one file for each rank, readable by any number of ranks and any plan."""
