from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.kernels import tf_ops
from rankhouse.kernels.errors import UnsupportedError
from rankhouse.kernels.reference import vocabulary as reference
from rankhouse.kernels.tf_ops.vocabulary import Entries, Vocabulary
from rankhouse.kernels.vocabulary import VocabularyOptions

LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max
KEYS = st.sampled_from([LOWEST, -1, 0, HIGHEST]) | st.integers(0, 9) | st.integers(LOWEST, HIGHEST)


def int64s(values: Any) -> tf.Tensor:
    return tf.constant(list(values), tf.int64)


def rows_of(tensors: Any) -> list[tuple[int, ...]]:
    return list(zip(*(tensor.numpy().tolist() for tensor in tensors), strict=True))


@given(st.lists(KEYS))
@settings(max_examples=100, deadline=None)
def test_unique_equals_the_reference(keys: list[int]) -> None:
    for ours, expected in zip(tf_ops.unique(int64s(keys)), reference.unique(np.array(keys, np.int64)), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_unique_in_a_function_knows_its_shapes() -> None:
    @tf.function(input_signature=[tf.TensorSpec([7], tf.int64)])
    def call(keys: tf.Tensor) -> Any:
        found = tf_ops.unique(keys)
        assert [tensor.shape.as_list() for tensor in found] == [[None], [7], [None]]
        return found

    unique, inverse, counts = call(int64s([3, -1, 3, 3, LOWEST, 9, 9]))
    assert unique.numpy().tolist() == [LOWEST, -1, 3, 9]
    assert inverse.numpy().tolist() == [2, 1, 2, 2, 0, 3, 3]
    assert counts.numpy().tolist() == [1, 1, 3, 2]


def test_unique_of_a_matrix_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"keys of shape \[2,2\]: expected \[N\]"):
        tf_ops.unique(tf.zeros([2, 2], tf.int64))


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("eviction", ["never", "oldest", "rarest"])
def test_steps_equal_the_reference(eviction: str, in_function: bool) -> None:
    options: dict[str, Any] = {"max_keys": 8, "min_count": 2, "max_candidates": 5, "eviction": eviction}
    ours, truth = Vocabulary(VocabularyOptions(**options)), reference.ReferenceVocabulary(**options)

    def step_of(step: tf.Tensor, keys: tf.Tensor, counts: tf.Tensor) -> Any:
        """Looks up before and after: in a function, too, each must see what came before it."""
        before = ours.lookup(keys)
        evicted = ours.observe(keys, counts, step=step)
        return before, evicted, ours.lookup(keys), ours.size()

    call = tf.function(step_of) if in_function else step_of
    rng = np.random.default_rng(0)
    for step in range(30):
        keys, counts = rng.integers(0, 20, 6), rng.integers(0, 3, 6)
        expected = truth.lookup(keys)
        before, evicted, after, size = call(tf.constant(step, tf.int64), tf.constant(keys), tf.constant(counts))
        assert before.numpy().tolist() == expected
        assert rows_of(evicted) == truth.observe(keys.tolist(), counts.tolist(), step)
        assert after.numpy().tolist() == truth.lookup(keys.tolist())
        assert size == len(truth)
    assert rows_of(ours.evict(min_step=25, min_count=3)) == truth.evict(min_step=25, min_count=3)
    assert rows_of(ours.export()) == truth.export()


def test_a_function_observes_even_if_nobody_asks_for_what_went() -> None:
    ours = Vocabulary(VocabularyOptions(max_keys=5))

    @tf.function
    def note(keys: tf.Tensor) -> None:
        ours.observe(keys, step=1)

    note(int64s([4, 2]))
    assert ours.lookup(int64s([2, 4, 5])).numpy().tolist() == [0, 1, -1]


def test_lookups_keep_the_shape_of_the_keys() -> None:
    ours = Vocabulary(VocabularyOptions(max_keys=5, first_id=1, unknown_id=0))
    ours.observe(int64s([7, 7, LOWEST]), step=0)

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.int64)])
    def look_up(keys: tf.Tensor) -> tf.Tensor:
        ids = ours.lookup(keys)
        assert ids.shape.as_list() == [None, 2]
        return ids

    assert look_up(int64s([[7, LOWEST], [HIGHEST, 7]])).numpy().tolist() == [[2, 1], [0, 2]]
    assert ours.lookup(tf.constant(7, tf.int64)) == 2


def small_vocabulary() -> Vocabulary:
    return Vocabulary(VocabularyOptions(max_keys=5, min_count=2, eviction="rarest"))


def test_checkpoints_hold_what_it_knows(tmp_path: Path) -> None:
    ours = small_vocabulary()
    ours.observe(int64s([LOWEST, LOWEST, 5, 5, 8]), step=3)
    path = tf.train.Checkpoint(vocabulary=ours).save(str(tmp_path / "checkpoint"))
    other = small_vocabulary()
    other.observe(int64s([1, 1]), step=9)
    tf.train.Checkpoint(vocabulary=other).restore(path).assert_consumed()
    assert rows_of(other.export()) == rows_of(ours.export())
    assert rows_of(ours.export()) == [(LOWEST, 0, 2, 3), (5, 1, 2, 3), (8, -1, 1, 3)]


def test_saved_models_hold_what_it_knows(tmp_path: Path) -> None:
    module = tf.Module()
    module.vocabulary = small_vocabulary()
    module.vocabulary.observe(int64s([3, 3, 4, 4]), step=1)
    module.look_up = tf.function(module.vocabulary.lookup, input_signature=[tf.TensorSpec([None], tf.int64)])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    assert loaded.look_up(int64s([4, 3, 2])).numpy().tolist() == [1, 0, -1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: v.observe(int64s([1]), int64s([-1]), step=5), "key 1 at position 0 has count -1"),
        (lambda v: v.observe(int64s([1]), step=2), "step is 2, but step 3 was before"),
        (lambda v: v.observe(int64s([1]), int64s([1, 2]), step=5), "expected .N. of all"),
        (lambda v: v.observe(tf.zeros([2, 2], tf.int64), step=5), "expected .N. of all"),
        (lambda v: v.restore(Entries(*(int64s([1, 1]) for _ in range(4)))), "expected keys that increase"),
        (lambda v: Vocabulary(VocabularyOptions(max_keys=0)), "max_keys is 0: expected 1 to 2.61"),
        (lambda v: Vocabulary(VocabularyOptions(max_keys=3, unknown_id=1)), "unknown_id is 1, an id that"),
    ],
)
def test_wrong_calls_say_what_is_wrong_and_change_nothing(call: Any, message: str) -> None:
    ours = small_vocabulary()
    ours.observe(int64s([5, 5]), step=3)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(ours)
    assert rows_of(ours.export()) == [(5, 0, 2, 3)]


@pytest.mark.parametrize(
    "call",
    [
        lambda v: v.lookup(int64s([1])),
        lambda v: v.observe(int64s([1]), step=1),
        lambda v: v.evict(min_step=1),
        lambda v: v.size(),
        lambda v: v.export(),
        lambda v: v.restore(Entries(*(int64s([]) for _ in range(4)))),
    ],
    ids=["lookup", "observe", "evict", "size", "export", "restore"],
)
def test_xla_is_refused(call: Any) -> None:
    ours = small_vocabulary()
    with pytest.raises(UnsupportedError, match="a vocabulary has no XLA version"):
        tf.function(lambda: call(ours), jit_compile=True)()


def test_unique_refuses_xla() -> None:
    with pytest.raises(UnsupportedError, match="unique has no XLA version"):
        tf.function(tf_ops.unique, jit_compile=True)(int64s([1]))
