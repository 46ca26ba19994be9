"""Optimizers over real ranks: whatever lies where, they train the same tables."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Adagrad, Adam, Ftrl, Momentum, OptimizerSettings, RowwiseAdagrad
from rankhouse.training.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from rankhouse.training.optimizers.clipping import clipping_scale, owned_squared_norm
from rankhouse.training.ranks import Ranks
from tests.training.launching import run_on_ranks
from tests.training.small_model import arrays, build, train

ALONE = Ranks(0, 1)

# All update rows that a step did not touch, or have other slots, or move rows whose gradient is zero.
SETTINGS: dict[str, OptimizerSettings] = {
    "exact-adam": Adam(kind="exact"),
    "exact-momentum": Momentum(kind="exact", nesterov=True, weight_decay=0.01, decoupled=True),
    "lazy-adam": Adam(weight_decay=0.01),
    "rowwise-adagrad": RowwiseAdagrad(),
    "ftrl": Ftrl(l1_regularization_strength=0.01),
}


def train_all(ranks: Ranks, directory: Path) -> dict[str, list[float]]:
    """Trains with each of the settings, clipped, and saves; then again from the middle, as saved by other ranks."""
    losses = {}
    for name, settings in SETTINGS.items():
        state = build(ranks, settings=settings)
        losses[name] = train(state, ranks, 0, 12, clip_norm=0.05)
        root = directory / f"{name}-{ranks.size}"
        save_checkpoint(root, state, ranks=ranks, step=12, document={})
        losses[name] += train(state, ranks, 12, 20, clip_norm=0.05)
        save_checkpoint(root, state, ranks=ranks, step=20, document={})
    return losses


@pytest.mark.horovod
def test_two_ranks_train_as_one_and_go_on_from_each_others_checkpoints(tmp_path: Path) -> None:
    alone = train_all(ALONE, tmp_path)
    together = run_on_ranks(train_all, tmp_path, num_ranks=2)
    for name, settings in SETTINGS.items():
        np.testing.assert_allclose(together[0][name], alone[name], rtol=1e-5)
        assert together[0][name] == together[1][name]
        expected = arrays(tmp_path / f"{name}-1" / "step-00000020")
        found = arrays(tmp_path / f"{name}-2" / "step-00000020")
        assert found.keys() == expected.keys()
        for array, values in expected.items():
            np.testing.assert_allclose(found[array], values, rtol=1e-4, atol=1e-5, err_msg=f"{name} {array}")
        state = build(ALONE, seed=8, settings=settings)
        load_checkpoint(tmp_path / f"{name}-2" / "step-00000012", state, ranks=ALONE)
        np.testing.assert_allclose(train(state, ALONE, 12, 20, clip_norm=0.05), alone[name][12:], rtol=1e-5)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_resumed_run_is_the_same_run(tmp_path: Path, name: str) -> None:
    losses = {}
    first = build(ALONE, settings=SETTINGS[name])
    train(first, ALONE, 0, 6)
    path = save_checkpoint(tmp_path, first, ranks=ALONE, step=6, document={})
    losses["on"] = train(first, ALONE, 6, 12)
    second = build(ALONE, seed=8, settings=SETTINGS[name])
    load_checkpoint(path, second, ranks=ALONE)
    losses["again"] = train(second, ALONE, 6, 12)
    assert losses["on"] == losses["again"]


def test_the_scale_is_tensorflows() -> None:
    state = build(ALONE, settings=Adagrad())
    variables = state.optimizer.variables
    rng = np.random.default_rng(0)
    gradients: list[Any] = [tf.constant(rng.standard_normal(variable.shape), tf.float32) for variable in variables]
    gradients[0] = tf.IndexedSlices(gradients[0][:3], tf.constant([1, 4, 7]), dense_shape=variables[0].shape)
    owned = owned_squared_norm(state.embedding, gradients, variables)
    norm = float(tf.linalg.global_norm(gradients))
    for clip_norm in (0.5 * norm, norm * 2):
        scale = clipping_scale(state.embedding, gradients, variables, owned_squared_norm=owned, clip_norm=clip_norm)
        assert float(scale) == pytest.approx(min(1.0, clip_norm / norm), rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_no_number_clips_nothing(bad: float) -> None:
    state = build(ALONE)
    variables = state.optimizer.variables
    gradients = [tf.fill(variable.shape, bad) for variable in variables]
    owned = owned_squared_norm(state.embedding, gradients, variables)
    assert clipping_scale(state.embedding, gradients, variables, owned_squared_norm=owned, clip_norm=1.0) == 1.0
