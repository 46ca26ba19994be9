"""Ranking models: DLRM, and the synthetic models that others publish figures for."""
