"""Optimizers of tables and dense layers, and the gradients that ranks share."""
