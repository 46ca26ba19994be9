"""From raw logs to a servable version: data, hybrid-parallel training, export."""
