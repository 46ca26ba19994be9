"""What trains a layer of several ranks in tests: its optimizer, the samples of a rank, and a step by packed ids."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import OptimizerSettings
from rankhouse.training.checkpoint.checkpoint import TrainingState
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.ranks import Ranks

# A step: ids and lengths to the rows that it looked up.
Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Packed = tuple[tf.Tensor, tf.Tensor]

BATCH = 6
# How many of the samples of a step each rank has: uneven, and sometimes none.
SHARES = {1: [[6]], 2: [[2, 4], [6, 0]], 3: [[3, 2, 1], [0, 6, 0], [2, 0, 4]]}


def with_optimizer(layer: DistributedEmbedding, settings: OptimizerSettings) -> TrainingState:
    variables = [shard.variable for shard in layer.shards]
    refs = {variable.ref() for variable in variables}
    others = [variable for variable in layer.trainable_variables if variable.ref() not in refs]
    return TrainingState(layer, {}, Optimizer(settings, tables=variables, dense=others, learning_rate=0.1))


def samples_of(ranks: Ranks, step: int, shares: dict[int, list[list[int]]] = SHARES) -> slice:
    """The samples of a step that this rank has; `shares` has by number of ranks how many each has, in turn."""
    counts = shares[ranks.size][step % len(shares[ranks.size])]
    begin = sum(counts[: ranks.rank])
    return slice(begin, begin + counts[ranks.rank])


def pack(bags: list[list[np.ndarray]], part: slice) -> Packed:
    """The ids and lengths of some samples of all inputs, `bags[input][sample]`."""
    ids = np.concatenate([np.empty(0, np.int64), *(bag for row in bags for bag in row[part])])
    lengths = np.array([[len(bag) for bag in row[part]] for row in bags], np.int64)
    return tf.constant(ids, tf.int64), tf.constant(lengths)


def make_step(state: TrainingState, *, gradient_scale: float | None = None, as_function: bool = False) -> Step:
    """Returns a step of training towards rows of 0.1."""
    variables, layer = state.optimizer.variables, state.embedding

    def step(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = layer.lookup(ids, lengths, training=True)
            loss = tf.reduce_sum((rows - 0.1) ** 2) / BATCH
        gradients = layer.sum_gradients(tape.gradient(loss, variables), variables)
        scale = None if gradient_scale is None else tf.constant(gradient_scale)
        state.optimizer.apply_gradients(zip(gradients, variables, strict=True), gradient_scale=scale)
        return rows

    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([len(layer.inputs), None], tf.int64)]
    return tf.function(step, input_signature=signature, autograph=False) if as_function else step


def same_steps(
    states: tuple[TrainingState, TrainingState],
    numbers: range,
    *,
    batch: Callable[[DistributedEmbedding, int], Packed],
    evaluate: Callable[[DistributedEmbedding, int], tf.Tensor],
    as_function: bool = False,
) -> bool:
    """Trains two layers by the same batches, with evaluations in between.

    Returns whether all that they looked up is the same to the bit. As a function the second one alone, which saves the
    time of tracing.
    """
    one, other = states
    steps = make_step(one), make_step(other, as_function=as_function)
    same = True
    for number in numbers:
        rows = [step(*batch(one.embedding, number)).numpy() for step in steps]
        seen = [evaluate(state.embedding, 30 * number).numpy() for state in states]
        same &= np.array_equal(*rows) and np.array_equal(*seen) and bool(rows[0].any() or not len(rows[0]))
    return same
