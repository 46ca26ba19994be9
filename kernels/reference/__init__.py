"""The operations in plain NumPy: what the compiled ones must equal. Slow and obvious; for tests."""
