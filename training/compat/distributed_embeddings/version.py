"""The release of distributed-embeddings whose public surface this is."""

__version__ = "1.0.0"
