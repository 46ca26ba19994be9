"""From a version to scores: Triton, its models, and the gateway."""
