"""The module that users import as `dmp`: tables over ranks, and what makes a training step of them."""

from rankhouse.training.compat.distributed_embeddings.python.layers.data_parallel import (
    BroadcastGlobalVariablesCallback,
    DistributedGradientTape,
    DistributedOptimizer,
    broadcast_variables,
)
from rankhouse.training.compat.distributed_embeddings.python.layers.distributed_embedding import DistributedEmbedding
from rankhouse.training.compat.distributed_embeddings.python.layers.strategy import DistEmbeddingStrategy

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "DistEmbeddingStrategy",
    "DistributedEmbedding",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "broadcast_variables",
]
