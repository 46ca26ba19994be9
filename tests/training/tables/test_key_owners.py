"""Which part of a table a key belongs to."""

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.training.tables.key_owners import owners


@pytest.mark.parametrize("num_owners", [1, 3, 8])
@pytest.mark.parametrize("stride", [1, 8, 2**40])
def test_keys_spread_evenly_whatever_their_pattern(num_owners: int, stride: int) -> None:
    keys = np.arange(-10_000, 10_000) * stride
    counts = np.bincount(owners(tf.constant(keys), num_owners), minlength=num_owners)
    assert len(counts) == num_owners
    assert np.abs(counts / len(keys) - 1 / num_owners).max() < 0.02


def test_an_owner_never_changes() -> None:
    keys = tf.constant([0, 1, -1, 2**63 - 1, -(2**63)], tf.int64)
    assert owners(keys, 5).numpy().tolist() == [0, 3, 1, 4, 2]


def test_refuses_keys_of_another_type() -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        owners(tf.constant([1], tf.int32), 2)
