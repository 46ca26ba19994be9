"""What Triton's Python processes run: the three steps from raw values to scores, each over one version."""
