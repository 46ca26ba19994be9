import rankhouse.serving  # noqa: F401 - before any test imports gRPC, whose environment it sets
