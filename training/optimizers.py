"""Optimizers for embedding tables and dense layers together.

Tables get IndexedSlices and are updated in place, touched rows only, by the kernels; dense variables are updated by
TensorFlow's own fused operations. Both follow the formulas of tf_keras' legacy optimizers and are tested equal to them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.training.errors import OptimizerError

LearningRate = float | Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class Warmup:
    """A learning rate that grows linearly over the first steps, then stays.

    Attributes:
        learning_rate: Where it ends.
        num_steps: After how many steps; step s of them has (s + 1) / num_steps of it.
    """

    learning_rate: float
    num_steps: int

    def __post_init__(self) -> None:
        _check_positive("learning_rate", self.learning_rate)
        _check_positive("num_steps", self.num_steps)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate of a step, float32 []."""
        share = tf.minimum((tf.cast(step, tf.float32) + 1.0) / self.num_steps, 1.0)
        return self.learning_rate * share


class Optimizer:
    """Applies gradients to a fixed list of variables, eagerly or in a `tf.function`.

    Attributes:
        variables: What it updates.
        iterations: int64 [], the number of steps applied.
        slot_names: What it remembers for each variable, in shapes equal to the variable's.
    """

    slot_names: ClassVar[tuple[str, ...]] = ()

    def __init__(self, variables: Sequence[tf.Variable], *, learning_rate: LearningRate) -> None:
        """Makes the slots.

        Args:
            variables: All that will ever be updated.
            learning_rate: A positive number, or a function of the step, such as `Warmup`.

        Raises:
            OptimizerError: A setting is out of its range, or a variable is listed twice.
        """
        if not callable(learning_rate):
            _check_positive("learning_rate", learning_rate)
        self.variables = list(variables)
        self.iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
        self._learning_rate = learning_rate
        self._slots = {variable.ref(): self._make_slots(variable) for variable in self.variables}
        if len(self._slots) != len(self.variables):
            raise OptimizerError("a variable is listed twice; list each once, or it would be updated twice")

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        """Returns what is remembered for a variable, by slot name."""
        try:
            return self._slots[variable.ref()]
        except KeyError as exc:
            raise OptimizerError(
                f"{variable.name} is not among this optimizer's variables; list it on creation"
            ) from exc

    def learning_rate(self) -> tf.Tensor:
        """Returns the learning rate of the step to come, float32 []."""
        if callable(self._learning_rate):
            return tf.cast(self._learning_rate(self.iterations), tf.float32)
        return tf.constant(self._learning_rate, tf.float32)

    def apply_gradients(self, gradients_and_variables: Iterable[tuple[Any, tf.Variable]]) -> None:
        """Makes one step.

        Args:
            gradients_and_variables: Pairs; a gradient is a dense tensor, or IndexedSlices with sorted unique indices.

        Raises:
            OptimizerError: A variable has no gradient, or is not one of this optimizer's.
        """
        learning_rate = self.learning_rate()
        for gradient, variable in gradients_and_variables:
            if gradient is None:
                raise OptimizerError(f"{variable.name} has no gradient: the loss does not depend on it; leave it out")
            if isinstance(gradient, tf.IndexedSlices):
                self._apply_rows(variable, gradient, learning_rate)
            else:
                self._apply_dense(variable, gradient, learning_rate)
        self.iterations.assign_add(1)

    def _make_slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        return {}

    def _apply_rows(self, variable: tf.Variable, gradient: tf.IndexedSlices, learning_rate: tf.Tensor) -> None:
        raise NotImplementedError

    def _apply_dense(self, variable: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        raise NotImplementedError


class Sgd(Optimizer):
    """Stochastic gradient descent: w -= learning_rate * g."""

    def _apply_rows(self, variable: tf.Variable, gradient: tf.IndexedSlices, learning_rate: tf.Tensor) -> None:
        tf_ops.apply_sgd(variable, gradient, learning_rate)

    def _apply_dense(self, variable: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=learning_rate, delta=gradient)


class Adagrad(Optimizer):
    """Adagrad (Duchi et al., JMLR 2011): a += g * g; w -= learning_rate * g / (sqrt(a) + epsilon)."""

    slot_names = ("accumulator",)

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        *,
        learning_rate: LearningRate,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
    ) -> None:
        """Makes the accumulators; the defaults are Keras'.

        Args:
            variables: All that will ever be updated.
            learning_rate: A positive number, or a function of the step, such as `Warmup`.
            initial_accumulator_value: Where the accumulators start, at least 0.
            epsilon: Keeps the divisor away from 0; positive.

        Raises:
            OptimizerError: A setting is out of its range, or a variable is listed twice.
        """
        if not initial_accumulator_value >= 0:
            raise OptimizerError(f"initial_accumulator_value is {initial_accumulator_value}; expected 0 or more")
        _check_positive("epsilon", epsilon)
        self._initial_accumulator_value = initial_accumulator_value
        self._epsilon = epsilon
        super().__init__(variables, learning_rate=learning_rate)

    def _make_slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        initial = tf.fill(variable.shape, tf.constant(self._initial_accumulator_value, variable.dtype))
        return {"accumulator": tf.Variable(initial, trainable=False, name="accumulator")}

    def _apply_rows(self, variable: tf.Variable, gradient: tf.IndexedSlices, learning_rate: tf.Tensor) -> None:
        accumulator = self.slots(variable)["accumulator"]
        tf_ops.apply_adagrad(variable, accumulator, gradient, learning_rate, epsilon=self._epsilon)

    def _apply_dense(self, variable: tf.Variable, gradient: tf.Tensor, learning_rate: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle,
            accum=self.slots(variable)["accumulator"].handle,
            lr=learning_rate,
            epsilon=self._epsilon,
            grad=gradient,
        )


def _check_positive(name: str, value: float) -> None:
    if not (0 < value < float("inf")):
        raise OptimizerError(f"{name} is {value}; expected a positive number")
