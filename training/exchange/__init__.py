"""How lookups in tables of other ranks travel: ids to their owners, rows back, gradient rows to their owners."""
