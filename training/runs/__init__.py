"""A training run: its ranks, folder, observers and report."""
