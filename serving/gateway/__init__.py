"""The gateway: REST and gRPC in front of Triton, one process, no state of its own."""
