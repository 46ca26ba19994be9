"""Learning rates that change from step to step: functions of the number of steps done, 0 before the first.

Any tf_keras LearningRateSchedule is one, too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

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
        check_positive("learning_rate", self.learning_rate)
        check_positive("num_steps", self.num_steps)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate of a step, float32 []."""
        share = tf.minimum((tf.cast(step, tf.float32) + 1.0) / self.num_steps, 1.0)
        return self.learning_rate * share


@dataclass(frozen=True)
class Decay:
    """A learning rate that falls from some step on, as a power of the steps left, to 0; published DLRMs have power 2.

    Attributes:
        learning_rate: What it is without falling: a number or a function of the step, such as `Warmup`.
        first_step: The first step that has less.
        num_steps: After so many it is 0, and stays there.
        power: 1 falls in a straight line, more falls faster at first.
    """

    learning_rate: LearningRate
    first_step: int
    num_steps: int
    power: float = 2.0

    def __post_init__(self) -> None:
        if not callable(self.learning_rate):
            check_positive("learning_rate", self.learning_rate)
        if self.first_step < 0:
            raise OptimizerError(f"first_step is {self.first_step}; expected at least 0")
        check_positive("num_steps", self.num_steps)
        check_positive("power", self.power)

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the learning rate of a step, float32 []."""
        fallen = (tf.cast(step, tf.float32) + 1.0 - self.first_step) / self.num_steps
        left = tf.clip_by_value(1.0 - fallen, 0.0, 1.0)
        return learning_rate_at(self.learning_rate, step) * left**self.power


def learning_rate_at(learning_rate: LearningRate, step: tf.Tensor) -> tf.Tensor:
    """Returns the learning rate after `step` steps, float32 []."""
    if callable(learning_rate):
        return tf.cast(learning_rate(step), tf.float32)
    return tf.constant(learning_rate, tf.float32)


def check_positive(name: str, value: float) -> None:
    """Raises OptimizerError for what is not a positive number."""
    if not (0 < value < float("inf")):
        raise OptimizerError(f"{name} is {value}; expected a positive number")
