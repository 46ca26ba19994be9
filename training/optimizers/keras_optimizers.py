"""Keras' own optimizers on several ranks.

The loss convention is Horovod's, and so that of `model.fit`: each rank's loss is the mean over its own batch, and the
step is that of the mean over the ranks. With batches of one size that is the step of one rank on all samples together.
"""

from typing import Any

import tensorflow as tf

from rankhouse.training.optimizers.shared_gradients import GradientReduction, exchange_name, reduce_gradients
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.owned_variables import is_owned, mark_owned


def distributed_optimizer(
    optimizer: Any, *, ranks: Ranks | None = None, reduction: GradientReduction | None = None
) -> Any:
    """Makes a Keras optimizer that averages gradients over the ranks before it applies them.

    Gradients of tables that lie on one rank, or are cut over several, arrive there complete and do not travel; those
    of data-parallel tables come back for the rows that any rank touched. `minimize`, and so `model.fit`, averages;
    `apply_gradients` takes gradients as they are, as those of a tape that has averaged them.

    Args:
        optimizer: Of `tf_keras.optimizers` or `tf_keras.optimizers.legacy`; it stays as it is.
        ranks: Who trains together; by default whom the launcher started.
        reduction: What else is done than averaging.

    Returns:
        An optimizer of the same class, name and configuration, without any state.
    """
    base = type(optimizer)
    averaging: Any = type(base.__name__, (_AveragingOptimizer, base), {})
    made = averaging.from_config(optimizer.get_config())
    made.rankhouse_ranks = ranks or Ranks.init()
    made.rankhouse_reduction = reduction or GradientReduction()
    return made


class _AveragingOptimizer:
    """What comes before a Keras optimizer's class: it stands between gradients and their application."""

    rankhouse_ranks: Ranks
    rankhouse_reduction: GradientReduction

    def compute_gradients(self, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Of `tf_keras.optimizers`."""
        return self._average(super().compute_gradients(*args, **options))  # type: ignore[misc]

    def _compute_gradients(self, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Of `tf_keras.optimizers.legacy`."""
        return self._average(super()._compute_gradients(*args, **options))  # type: ignore[misc]

    def add_variable_from_reference(self, model_variable: tf.Variable, *args: Any, **options: Any) -> tf.Variable:
        """Of `tf_keras.optimizers`: makes a slot."""
        slot = super().add_variable_from_reference(model_variable, *args, **options)  # type: ignore[misc]
        return _owned_like(slot, model_variable)

    def add_slot(self, var: tf.Variable, *args: Any, **options: Any) -> tf.Variable:
        """Of `tf_keras.optimizers.legacy`: makes a slot."""
        return _owned_like(super().add_slot(var, *args, **options), var)  # type: ignore[misc]

    def _average(self, pairs: Any) -> list[tuple[Any, Any]]:
        gradients, variables = zip(*pairs, strict=True)
        averaged = reduce_gradients(
            gradients,
            variables,
            ranks=self.rankhouse_ranks,
            name=exchange_name("optimizer_gradients"),
            reduction=self.rankhouse_reduction,
        )
        return list(zip(averaged, variables, strict=True))


def _owned_like(slot: tf.Variable, variable: tf.Variable) -> tf.Variable:
    if is_owned(variable):
        mark_owned(slot)
    return slot
