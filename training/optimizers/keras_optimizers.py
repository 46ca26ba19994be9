"""Keras' own optimizers on several ranks.

The loss convention is Horovod's, and so that of `model.fit`: each rank's loss is the mean over its own batch, and the
step is that of the mean over the ranks. With batches of one size that is the step of one rank on all samples together.

A global norm to clip by is that of the gradients of all ranks, and a row's gradient is the sum over its samples.

Tables in host memory are trained with those optimizers that leave rows alone which a step does not touch: SGD and
Adagrad, and of the legacy ones SGD with momentum too. Tables of 16 bits are not: Keras would round to the nearest.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.training.errors import OptimizerError
from rankhouse.training.optimizers.clipping import clip_by_global_norm
from rankhouse.training.optimizers.shared_gradients import GradientReduction, exchange_name, reduce_gradients
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.host_rows import HostRows, host_rows_of
from rankhouse.training.tables.new_rows import keep_beside
from rankhouse.training.tables.owned_variables import cut_table_of, mark_slot


def distributed_optimizer(
    optimizer: Any, *, ranks: Ranks | None = None, reduction: GradientReduction | None = None
) -> Any:
    """Makes a Keras optimizer that averages gradients over the ranks before it applies them.

    Gradients of tables that lie on one rank, or are cut over several, arrive there complete and do not travel; those
    of data-parallel tables come back for the rows that any rank touched. `minimize`, and so `model.fit`, averages;
    `apply_gradients` takes gradients as they are, as those of a tape that has averaged them.

    Args:
        optimizer: Of `tf_keras.optimizers` or `tf_keras.optimizers.legacy`, in a LossScaleOptimizer or not; it stays as
            it is.
        ranks: Who trains together; by default whom the launcher started.
        reduction: What else is done than averaging.

    Returns:
        An optimizer of the same class, name and configuration, without any state.

    Raises:
        OptimizerError: On several ranks, Adafactor: its step is scaled by means over a whole table, and those of a
            part are others.
    """
    base, ranks = type(optimizer), ranks or Ranks.init()
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
        return tf_keras.mixed_precision.LossScaleOptimizer(
            distributed_optimizer(optimizer.inner_optimizer, ranks=ranks, reduction=reduction),
            dynamic=optimizer.dynamic,
            initial_scale=optimizer.initial_scale,
            dynamic_growth_steps=optimizer.dynamic_growth_steps,
        )
    if ranks.size > 1 and isinstance(optimizer, tf_keras.optimizers.Adafactor):
        raise OptimizerError(
            f"Adafactor on {ranks.size} ranks: it scales a step by means over a whole table, which no rank may have; "
            "take Adagrad, or Adam"
        )
    averaging: Any = type(base.__name__, (_AveragingOptimizer, base), {})
    made = averaging.from_config(optimizer.get_config())
    made.rankhouse_ranks = ranks
    made.rankhouse_reduction = reduction or GradientReduction()
    return made


class _AveragingOptimizer:
    """What comes before a Keras optimizer's class: it stands between gradients and their application."""

    rankhouse_ranks: Ranks
    rankhouse_reduction: GradientReduction

    def compute_gradients(self, loss: Any, var_list: Any, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Of `tf_keras.optimizers`."""
        self._note_host_tables(var_list)
        return self._average(super().compute_gradients(loss, var_list, *args, **options))  # type: ignore[misc]

    def _compute_gradients(self, loss: Any, var_list: Any, *args: Any, **options: Any) -> list[tuple[Any, Any]]:
        """Of `tf_keras.optimizers.legacy`."""
        self._note_host_tables(var_list)
        return self._average(super()._compute_gradients(loss, var_list, *args, **options))  # type: ignore[misc]

    def build(self, var_list: Any) -> Any:
        """Of `tf_keras.optimizers`: makes all slots."""
        self._note_host_tables(var_list)
        return super().build(var_list)  # type: ignore[misc]

    def _create_all_weights(self, var_list: Any) -> Any:
        """Of `tf_keras.optimizers.legacy`: makes all slots."""
        self._note_host_tables(var_list)
        return super()._create_all_weights(var_list)  # type: ignore[misc]

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]], *args: Any, **options: Any) -> Any:
        """Of both."""
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars]
        _check_dtypes(type(self).__name__, pairs)
        pairs = [(_checked(gradient, variable), variable) for gradient, variable in pairs]
        self._check_clipping([variable for _, variable in pairs])
        if not isinstance(self, tf_keras.optimizers.legacy.Optimizer):
            pairs = self._clip_globally(pairs)
        done = super().apply_gradients(pairs, *args, **options)  # type: ignore[misc]
        for host_rows in _host_tables(variable for gradient, variable in pairs if gradient is not None):
            host_rows.after_update()
        return done

    def add_variable_from_reference(self, model_variable: tf.Variable, *args: Any, **options: Any) -> tf.Variable:
        """Of `tf_keras.optimizers`: makes a slot."""
        slot = super().add_variable_from_reference(model_variable, *args, **options)  # type: ignore[misc]
        return _belonging_to(slot, model_variable)

    def add_slot(self, var: tf.Variable, *args: Any, **options: Any) -> tf.Variable:
        """Of `tf_keras.optimizers.legacy`: makes a slot."""
        return _belonging_to(super().add_slot(var, *args, **options), var)  # type: ignore[misc]

    def _clip_gradients(self, grads: Any) -> Any:
        """Of `tf_keras.optimizers`; by the global norm they are clipped already."""
        return grads if self._clips_globally else super()._clip_gradients(grads)  # type: ignore[misc]

    def _transform_gradients(self, grads_and_vars: Any) -> Any:
        """Of `tf_keras.optimizers.legacy`: clips."""
        if not self._clips_globally:
            return super()._transform_gradients(grads_and_vars)  # type: ignore[misc]
        legacy: Any = self
        return self._clip_globally(grads_and_vars if legacy.clipvalue is None else legacy._clipvalue_fn(grads_and_vars))

    @property
    def _clips_globally(self) -> bool:
        settings: Any = self
        return self.rankhouse_ranks.size > 1 and bool(settings.global_clipnorm)

    def _clip_globally(self, pairs: Any) -> list[tuple[Any, Any]]:
        if not self._clips_globally:
            return list(pairs)
        gradients, variables = zip(*pairs, strict=True)
        settings: Any = self
        clipped = clip_by_global_norm(
            gradients,
            variables,
            ranks=self.rankhouse_ranks,
            clip_norm=settings.global_clipnorm,
            name=exchange_name("optimizer_norm"),
        )
        return list(zip(clipped, variables, strict=True))

    def _check_clipping(self, variables: Sequence[Any]) -> None:
        settings: Any = self
        table = cut_table_of(variables)
        if settings.clipnorm and table is not None:
            raise OptimizerError(
                f"clipnorm clips each table by its own norm, but ranks hold parts of table {table!r}, and none its "
                "norm; take global_clipnorm, which is that of all ranks, or clipvalue"
            )

    def _note_host_tables(self, variables: Any) -> None:
        # What a function returns is known when the loss was computed; `build` is given it then.
        tables = [] if callable(variables) else _host_tables(tf.nest.flatten(variables))
        if tables and not _leaves_rows_alone(self):
            raise OptimizerError(
                f"table {tables[0].table!r} lies in host memory, but Keras' {type(self).__name__} as it is set up "
                "moves all rows in every step; take SGD without momentum, Adagrad or the legacy SGD, or place it on "
                "the device"
            )
        for host_rows in tables:
            host_rows.note_optimizer()

    @property
    def _loss_is_scaled(self) -> bool:
        # What Keras' LossScaleOptimizer notes in the optimizer that it was given.
        return bool(getattr(self, "_is_wrapped_by_loss_scale_optimizer", False))

    def _average(self, pairs: Any) -> list[tuple[Any, Any]]:
        gradients, variables = zip(*pairs, strict=True)
        averaged = reduce_gradients(
            gradients,
            variables,
            ranks=self.rankhouse_ranks,
            name=exchange_name("optimizer_gradients"),
            reduction=replace(self.rankhouse_reduction, share_overflow=self._loss_is_scaled),
        )
        return list(zip(averaged, variables, strict=True))


def _belonging_to(slot: tf.Variable, variable: tf.Variable) -> tf.Variable:
    """Marks a slot as what its variable is: only this rank's, and with rows that come and go."""
    mark_slot(slot, variable)
    keep_beside(variable, slot)
    host_rows = host_rows_of(variable)
    # A slot that is there already was attached when it was made.
    if host_rows is not None and host_rows_of(slot) is None:
        host_rows.attach(slot, fill=float(tf.reshape(slot, [-1])[0]))
    return slot


def _check_dtypes(optimizer: str, pairs: Iterable[tuple[Any, Any]]) -> None:
    for gradient, variable in pairs:
        if isinstance(gradient, tf.IndexedSlices) and gradient.values.dtype != variable.dtype.base_dtype:
            raise OptimizerError(
                f"table {variable.name} is held as {variable.dtype.name}, where Keras' {optimizer} would round to the "
                "nearest, and so lose small updates; train it with rankhouse.training.optimizers.optimizers.Optimizer, "
                "which rounds stochastically, or hold it as float32 (the dtype of its layer or EmbeddingSpec)"
            )


def _checked(gradient: Any, variable: tf.Variable) -> Any:
    host_rows = host_rows_of(variable)
    if gradient is None or host_rows is None:
        return gradient
    if not isinstance(gradient, tf.IndexedSlices):
        raise OptimizerError(f"the gradient of table {host_rows.table!r}, in host memory, is dense; give IndexedSlices")
    return tf.IndexedSlices(gradient.values, host_rows.before_update(gradient.indices), gradient.dense_shape)


def _host_tables(variables: Iterable[Any]) -> list[HostRows]:
    return [found for variable in variables if (found := host_rows_of(variable)) is not None]


def _leaves_rows_alone(optimizer: Any) -> bool:
    """Whether an optimizer of Keras leaves the rows alone that a step does not touch."""
    keras = tf_keras.optimizers
    if isinstance(optimizer, keras.legacy.SGD | keras.legacy.Adagrad):
        return True
    plain = isinstance(optimizer, keras.Adagrad) or (isinstance(optimizer, keras.SGD) and not optimizer.momentum)
    return plain and not optimizer.weight_decay and not optimizer.use_ema
