from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.errors import ModelError
from rankhouse.training.models.synthetic_models import TableGroup, synthetic_model
from rankhouse.training.models.synthetic_network import SyntheticNetwork, capped, make_synthetic_step, synthetic_batches
from rankhouse.training.planner.unique_ids import expected_unique

# The shape of "tiny", few enough rows and inputs for a test.
MODEL = replace(
    synthetic_model("tiny"),
    groups=(TableGroup(1, (1, 10), 5000, 8), TableGroup(2, (1,), 100, 16), TableGroup(1, (1,), 10, 8)),
    mlp=(16, 8),
)


def test_learns_labels_by_heart() -> None:
    batch = next(synthetic_batches(MODEL, batch_size=64))
    step = make_synthetic_step(SyntheticNetwork(MODEL), learning_rate=0.1)
    losses = [float(step(batch, 64)) for _ in range(60)]
    assert losses[-1] < 0.7 * losses[0]


def test_the_interaction_is_keras_average_pooling() -> None:
    model = replace(MODEL, interaction_stride=7)
    pooled = tf.random.stateless_normal([5, model.output_dim], seed=(1, 2))
    averaged = SyntheticNetwork(model).interact(pooled)
    assert averaged.shape == (5, model.interaction_dim)
    expected = tf_keras.layers.AveragePooling1D(7, padding="same")(pooled[:, :, None])[:, :, 0]
    np.testing.assert_allclose(averaged, expected, rtol=1e-6)


def test_ids_are_feature_major_and_follow_the_law() -> None:
    batch = next(synthetic_batches(MODEL, batch_size=1000, seed=3))
    assert batch.lengths.shape == (5, 1000)
    ids = batch.ids.numpy()
    many = ids[1000:11_000]
    assert len(ids) == 14_000
    assert many.max() < 5000
    assert len(np.unique(many)) == pytest.approx(expected_unique(5000, 10_000, 1.05, (0, 5000)), rel=0.03)
    assert np.bincount(many)[0] == max(np.bincount(many))
    near, exact = (next(synthetic_batches(MODEL, batch_size=1000, exponent=x)).ids.numpy() for x in (1 + 1e-9, 1.0))
    assert np.abs(near - exact).max() <= 1
    assert np.count_nonzero(near != exact) < 10
    first, second = islice(synthetic_batches(MODEL, batch_size=8, exponent=0), 2)
    assert not np.array_equal(first.ids, second.ids)


def test_tables_are_capped_for_small_machines() -> None:
    model = capped(synthetic_model("jumbo"), 100)
    assert max(table.num_rows for table in model.tables) == 100
    assert model.output_dim == synthetic_model("jumbo").output_dim
    with pytest.raises(ModelError, match="cannot cap tables at 0 rows"):
        capped(model, 0)
