"""From raw logs to batches."""
