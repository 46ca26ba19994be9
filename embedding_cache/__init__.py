"""Embedding rows for serving: the formats that hold them and the engine that reads them."""
