"""The embedding operations as TensorFlow ops on variables: differentiable, in place, also inside tf.function.

They run on the CPU, on TensorFlow's own threads. Letters in shapes: B samples, F features, N ids in all, R a table's
rows, D its width, E the sum of the widths of all features, U unique ids. Wrong ids and shapes raise
tf.errors.InvalidArgumentError with the library's message when the op runs; what is known to be wrong earlier raises
ArgumentError.
"""

from rankhouse.kernels.tf_ops.bags import Bags, from_ragged, from_sparse, join, offsets_from_lengths
from rankhouse.kernels.tf_ops.interaction import dot_interaction
from rankhouse.kernels.tf_ops.lookup import PooledRows, combine_duplicates, pooled_lookup, pooled_lookup_counted
from rankhouse.kernels.tf_ops.native import advise_huge_pages
from rankhouse.kernels.tf_ops.optimizers import Slots, apply, catch_up, make_slots, pooled_lookup_update, squared_norm
from rankhouse.kernels.tf_ops.pool_rows import pool_rows, take_rows
from rankhouse.kernels.tf_ops.vocabulary import Evicted, UniqueKeys, Vocabulary, unique

__all__ = [
    "Bags",
    "Evicted",
    "PooledRows",
    "Slots",
    "UniqueKeys",
    "Vocabulary",
    "advise_huge_pages",
    "apply",
    "catch_up",
    "combine_duplicates",
    "dot_interaction",
    "from_ragged",
    "from_sparse",
    "join",
    "make_slots",
    "offsets_from_lengths",
    "pool_rows",
    "pooled_lookup",
    "pooled_lookup_counted",
    "pooled_lookup_update",
    "squared_norm",
    "take_rows",
    "unique",
]
