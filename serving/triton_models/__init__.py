"""What Triton's Python processes run where no C++ backend can: the dense step, over one version."""
