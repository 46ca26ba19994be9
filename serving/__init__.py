"""From a version to scores: Triton, its models, and the gateway."""

import os

# Before gRPC is imported, which reads it then. Its handlers of forks, which only a child that goes on using gRPC needs,
# now and then abort the child that is about to become Triton or the gateway.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
