"""The gradient of weights that travelled with their ids, on its way back.

A rank that pools for others has their weights as bits among the ids (`id_messages`), which no tape follows. So what
it makes of them is tied to the weights that this rank gave: backwards, each owner returns to every rank one number for
each of its ids, in the order in which they came, and for each slice of columns by itself. The slices are added up where
the weights are from, from left to right: in one order, whichever ranks hold them.

A weight is an input of one rank's samples, so its gradient is that of this rank's loss, and no sum over the ranks.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import tensorflow as tf

from rankhouse.training.exchange.batch import Batch, select_blocks
from rankhouse.training.exchange.layout import Layout
from rankhouse.training.exchange.wire import int32_splits
from rankhouse.training.ranks import Ranks


class WeightsReturn:
    """The exchange backwards of a layer's weights: float32, where a gradient of them is asked for, and else none.

    Collective: all ranks ask for it or none, as of all gradients.
    """

    def __init__(self, ranks: Ranks, *, name: str) -> None:
        """Takes the ranks, and the name of the exchange."""
        self._ranks = ranks
        self._name = name

    def tie(self, pooled: tf.Tensor, layout: Layout, own: Batch, asked: Sequence[Batch]) -> tf.Tensor:
        """Returns weights with a gradient for those that this rank gave.

        Args:
            pooled: float32 [n], those that this rank pools with: by feature, and in each by rank. [0] where it pools
                nothing; the result must then have a part in what it sends all the same, for this rank joins the
                exchange by it.
            layout: Says who pools what.
            own: This rank's batch, of all inputs.
            asked: By rank, the bags of the inputs that this rank pools; nothing where it pools none.
        """

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def tied(_: tf.Tensor) -> Any:
            return tf.identity(pooled), lambda upstream: self._bring_back(upstream, layout, own, asked)

        return tied(own.weights)

    def _bring_back(self, gradient: tf.Tensor, layout: Layout, own: Batch, asked: Sequence[Batch]) -> tf.Tensor:
        """Returns the gradient of this rank's weights [N] from that of the weights that it pooled with."""
        message, splits = self._by_rank(gradient, layout, asked)
        returned, _ = self._ranks.alltoall(message, splits, name=self._name)
        features = [feature for group in layout.pooled for feature in group.features]
        counts = tf.unstack(own.counts, num=own.lengths.shape[0])
        parts = tf.split(returned, tf.stack([counts[feature.number] for feature in features]), num=len(features))
        slices: dict[int, dict[int, tf.Tensor]] = {}
        for feature, part in zip(features, parts, strict=True):
            slices.setdefault(feature.number, {})[feature.shard.column_start] = part
        return tf.concat([_total(slices.get(number, {}), count) for number, count in enumerate(counts)], axis=0)

    def _by_rank(self, gradient: tf.Tensor, layout: Layout, asked: Sequence[Batch]) -> tuple[tf.Tensor, tf.Tensor]:
        """Puts numbers that lie by feature, and in each by rank, rank by rank; returns how many each gets, too."""
        group, num_ranks = layout.pooled[self._ranks.rank], self._ranks.size
        if not group.features:
            return gradient, tf.zeros([num_ranks], tf.int32)
        at = [group.numbers.index(feature.number) for feature in group.features]
        counts_FR = tf.stack([tf.gather(bags.counts, at) for bags in asked], axis=1)
        order = [feature * num_ranks + rank for rank in range(num_ranks) for feature in range(len(at))]
        message = select_blocks(gradient, tf.reshape(counts_FR, [-1]), order)
        return message, int32_splits(tf.unstack(tf.reduce_sum(counts_FR, axis=0), num=num_ranks), name=self._name)


def _total(slices: dict[int, tf.Tensor], count: tf.Tensor) -> tf.Tensor:
    """Adds up what the slices of a table say of the weights of an input; zeros of one that is not pooled elsewhere."""
    if not slices:
        return tf.zeros(tf.reshape(count, [1]))
    return reduce(tf.add, [slices[column] for column in sorted(slices)])
