"""The public surface of distributed-embeddings 1.0 over Rankhouse: a script moves by changing its imports.

    from rankhouse.training.compat import distributed_embeddings
    from rankhouse.training.compat.distributed_embeddings import dist_model_parallel as dmp

The names, arguments and modules are those of NVIDIA's library; what they do is done by Rankhouse's own layers and
operations, on the CPU, with or without Horovod. docs/moving_from_distributed_embeddings.md says what differs.
"""

from rankhouse.training.compat.distributed_embeddings.python.layers import dist_model_parallel
from rankhouse.training.compat.distributed_embeddings.python.layers.dist_model_parallel import (
    BroadcastGlobalVariablesCallback,
    DistEmbeddingStrategy,
    DistributedEmbedding,
    DistributedGradientTape,
    DistributedOptimizer,
    broadcast_variables,
)
from rankhouse.training.compat.distributed_embeddings.python.layers.embedding import Embedding, IntegerLookup
from rankhouse.training.compat.distributed_embeddings.python.ops.embedding_lookup_ops import embedding_lookup
from rankhouse.training.compat.distributed_embeddings.version import __version__

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistEmbeddingStrategy",
    "DistributedEmbedding",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Embedding",
    "IntegerLookup",
    "__version__",
    "broadcast_variables",
    "dist_model_parallel",
    "embedding_lookup",
]
