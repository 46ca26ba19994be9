"""Embedding operations behind one C ABI, for NumPy and TensorFlow."""
