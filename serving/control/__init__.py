"""Which version answers whom: the state that replicas share, and the pure functions that change it."""
