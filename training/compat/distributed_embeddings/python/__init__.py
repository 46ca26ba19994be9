"""The modules of distributed-embeddings, at its own paths."""
