"""Refresh: new versions of a store are found, verified, loaded into this replica's Triton and proven."""
