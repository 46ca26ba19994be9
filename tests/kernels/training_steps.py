"""Gradients of made-up training steps, and all rules with settings away from their defaults."""

from collections.abc import Iterator

import numpy as np

from rankhouse.kernels.bags import SparseGradient
from rankhouse.kernels.optimizer_settings import (
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    Momentum,
    OptimizerSettings,
    Rmsprop,
    RowwiseAdagrad,
    Sgd,
)

RULES: dict[str, OptimizerSettings] = {
    "sgd": Sgd(),
    "momentum": Momentum(momentum=0.8),
    "nesterov": Momentum(momentum=0.8, nesterov=True),
    "dense momentum": Momentum(kind="dense"),
    "exact momentum": Momentum(kind="exact"),
    "exact nesterov": Momentum(kind="exact", nesterov=True),
    "adagrad": Adagrad(epsilon=1e-3),
    "row-wise adagrad": RowwiseAdagrad(epsilon=1e-3),
    "adam": Adam(beta_1=0.85, beta_2=0.99, epsilon=1e-4),
    "dense adam": Adam(kind="dense"),
    "exact adam": Adam(kind="exact"),
    "ftrl": Ftrl(l1_regularization_strength=0.05, l2_regularization_strength=0.1, beta=0.2),
    "ftrl of another power": Ftrl(learning_rate_power=-0.7, l2_shrinkage_regularization_strength=0.01),
    "rmsprop": Rmsprop(epsilon=1e-4),
    "adadelta": Adadelta(epsilon=1e-3),
    "adamax": Adamax(beta_1=0.8, beta_2=0.9),
}


def random_gradient(rng: np.random.Generator, num_rows: int, dim: int, num_ids: int) -> SparseGradient:
    """Rows of different sizes, each once."""
    ids = np.sort(rng.permutation(num_rows)[:num_ids]).astype(np.int64)
    sizes = 10.0 ** rng.integers(-3, 2, (num_ids, 1))
    return SparseGradient(ids, (sizes * rng.standard_normal((num_ids, dim))).astype(np.float32))


def random_steps(
    seed: int, *, num_steps: int, num_rows: int, dim: int, most_ids: int
) -> Iterator[tuple[int, SparseGradient]]:
    """Numbers of steps from 1, and gradients of up to most_ids rows; low rows are touched more often."""
    rng = np.random.default_rng(seed)
    for step in range(1, num_steps + 1):
        ids = np.unique((rng.random(rng.integers(0, most_ids + 1)) ** 3 * num_rows).astype(np.int64))
        yield step, SparseGradient(ids, rng.standard_normal((len(ids), dim)).astype(np.float32))
