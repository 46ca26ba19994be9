"""Embedding layers, and what spreads them over ranks."""
