"""From a checkpoint to a version that can be served."""
