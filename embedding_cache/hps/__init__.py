"""Models of NVIDIA's Hierarchical Parameter Server (HPS), taken over as versions."""
