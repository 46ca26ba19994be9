"""Horovod's tape, optimizer, callback and broadcast for models whose tables lie on different ranks.

They take the arguments of Horovod's. Gradients of what every rank holds are averaged in one exchange; those of tables
are complete where they lie, and are divided by the number of ranks, so that both belong to the mean of all losses.
"""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.training.compat.distributed_embeddings.python.layers.world import world
from rankhouse.training.errors import CompatError
from rankhouse.training.optimizers.keras_optimizers import distributed_optimizer
from rankhouse.training.optimizers.shared_gradients import GradientReduction, exchange_name, reduce_gradients
from rankhouse.training.tables import owned_variables

# horovod.tensorflow.Average and Sum; a script on one rank needs no Horovod.
_AVERAGE, _SUM = 0, 1


@dataclass(frozen=True)
class _TapeOptions:
    """Horovod's arguments, in their order.

    Devices, groups and the predivision only say how Horovod gets to the same result, which here is one exchange.
    """

    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = None
    sparse_as_dense: bool = False
    op: int = _AVERAGE
    gradient_predivide_factor: float = 1.0
    num_groups: int = 0
    groups: Any = None
    process_set: Any = None
    scale_local_gradients: bool = True


@dataclass(frozen=True)
class _OptimizerOptions:
    """Those of Horovod's Keras optimizer, in their order."""

    name: str | None = None
    device_dense: str = ""
    device_sparse: str = ""
    compression: Any = None
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    op: int = _AVERAGE
    backward_passes_per_step: int = 1
    average_aggregated_gradients: bool = False
    num_groups: int = 0
    groups: Any = None
    process_set: Any = None
    scale_local_gradients: bool = True


class DistributedGradientTape:
    """A tf.GradientTape whose gradients are averaged over the ranks; all else is that of the tape it wraps."""

    def __init__(self, gradtape: tf.GradientTape, *args: Any, **kwargs: Any) -> None:
        """Wraps a tape.

        Args:
            gradtape: The tape.
            args: Those of `horovod.tensorflow.DistributedGradientTape`.
            kwargs: The same.

        Raises:
            TypeError: Horovod has no such argument.
            CompatError: An argument asks for what is not there (also a ValueError).
        """
        self._gradtape = gradtape
        self._reduction = _reduction(_TapeOptions(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gradtape, name)

    def __enter__(self) -> "DistributedGradientTape":
        self._gradtape.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._gradtape.__exit__(*exception)

    def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns the gradients of the mean over the ranks of `target`; the arguments are those of tf.GradientTape.

        Every rank calls it as often. Sources may be nested.
        """
        flat = tf.nest.flatten(sources)
        gradients = self._gradtape.gradient(target, flat, *args, **kwargs)
        name = exchange_name("tape_gradients")
        averaged = reduce_gradients(gradients, flat, ranks=world(), name=name, reduction=self._reduction)
        return tf.nest.pack_sequence_as(sources, averaged, expand_composites=False)

    def register_local_source(self, source: tf.Variable) -> None:
        """Has the tape leave the gradient of a variable to its rank, as those of tables; as in Horovod."""
        owned_variables.mark_owned(source)


def DistributedOptimizer(optimizer: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 (the name is the surface)
    """Makes a Keras optimizer for `model.fit` that averages gradients over the ranks.

    Args:
        optimizer: Of `tf_keras.optimizers` or its `legacy`.
        args: Those of `horovod.tensorflow.keras.DistributedOptimizer`.
        kwargs: The same.

    Raises:
        TypeError: Horovod has no such argument.
        CompatError: An argument asks for what is not there (also a ValueError).
    """
    options = _OptimizerOptions(*args, **kwargs)
    if options.backward_passes_per_step != 1:
        raise CompatError(
            f"backward_passes_per_step is {options.backward_passes_per_step}: expected 1, as gradients of tables are "
            "rows, which do not add up in place; use a larger batch"
        )
    return distributed_optimizer(optimizer, ranks=world(), reduction=_reduction(options))


class BroadcastGlobalVariablesCallback(tf_keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the root's values after the first batch, of the model and its optimizer, except for tables."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        """Notes whose values are sent.

        Args:
            root_rank: The rank.
            device: Where Horovod broadcasts; here always in main memory.
            local_variables: A variable or several that stay as they are.
        """
        super().__init__()
        self.root_rank = _check_root(root_rank)
        self.broadcast_done = False
        for variable in tf.nest.flatten(local_variables):
            if variable is not None:
                self.register_local_var(variable)

    def register_local_var(self, var: tf.Variable) -> None:
        """Has a variable stay as it is on each rank."""
        owned_variables.mark_owned(var)

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcasts after the first batch, when all variables are there."""
        if self.broadcast_done:
            return
        optimizer = self.model.optimizer
        slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        broadcast_variables([*self.model.variables, *slots], self.root_rank)
        self.broadcast_done = True


def broadcast_variables(model_vars: Any, root_rank: int = 0) -> None:
    """Gives all ranks the root's values of what every rank holds; tables, and what optimizers keep of them, stay.

    Args:
        model_vars: Variables of a model or an optimizer.
        root_rank: Whose values all get.

    Raises:
        CompatError: There is no such rank (also a ValueError).
    """
    owned_variables.broadcast_variables(list(model_vars), ranks=world(), root=_check_root(root_rank))


def _reduction(options: _TapeOptions | _OptimizerOptions) -> GradientReduction:
    if options.op not in (_AVERAGE, _SUM):
        raise CompatError(f"op is {options.op!r}: expected horovod.tensorflow.Average or Sum")
    if getattr(options.process_set, "process_set_id", 0) != 0:
        raise CompatError(f"process_set is {options.process_set}: expected all ranks, over which the tables lie")
    return GradientReduction(
        average=options.op == _AVERAGE,
        average_owned=options.scale_local_gradients,
        dense=options.sparse_as_dense,
        compression=options.compression,
    )


def _check_root(root_rank: int) -> int:
    if not 0 <= root_rank < world().size:
        raise CompatError(f"root_rank is {root_rank}: expected one of the {world().size} ranks")
    return root_rank
