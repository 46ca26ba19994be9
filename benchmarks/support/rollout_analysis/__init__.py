"""Simulated rollouts: traffic whose truth is known, judged as a gateway would judge it."""
