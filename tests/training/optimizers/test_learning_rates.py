import pytest
import tensorflow as tf

from rankhouse.training.errors import OptimizerError
from rankhouse.training.optimizers.learning_rates import Decay, LearningRate, Warmup, learning_rate_at


def rates(learning_rate: LearningRate, num_steps: int) -> list[float]:
    return [float(learning_rate_at(learning_rate, tf.constant(step, tf.int64))) for step in range(num_steps)]


def test_a_number_stays() -> None:
    assert rates(0.5, 3) == [0.5, 0.5, 0.5]


def test_warmup_grows_and_stays() -> None:
    assert rates(Warmup(0.8, num_steps=4), 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


def test_decay_falls_to_0() -> None:
    assert rates(Decay(0.8, first_step=2, num_steps=4), 8) == pytest.approx(
        [0.8, 0.8, 0.8 * 0.75**2, 0.8 * 0.5**2, 0.8 * 0.25**2, 0, 0, 0]
    )
    assert rates(Decay(Warmup(0.8, 2), first_step=2, num_steps=2, power=1), 5) == pytest.approx([0.4, 0.8, 0.4, 0, 0])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_learning_rates_are_refused(value: float) -> None:
    for make in (lambda: Warmup(value, num_steps=3), lambda: Decay(value, first_step=0, num_steps=3)):
        with pytest.raises(OptimizerError, match=r"learning_rate is .*; expected a positive number"):
            make()


def test_impossible_steps_are_refused() -> None:
    with pytest.raises(OptimizerError, match="num_steps is 0"):
        Warmup(0.1, num_steps=0)
    with pytest.raises(OptimizerError, match="num_steps is 0"):
        Decay(0.1, first_step=0, num_steps=0)
    with pytest.raises(OptimizerError, match="first_step is -1; expected at least 0"):
        Decay(0.1, first_step=-1, num_steps=1)
    with pytest.raises(OptimizerError, match="power is -2"):
        Decay(0.1, first_step=0, num_steps=1, power=-2)
