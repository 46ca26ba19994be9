from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from rankhouse.kernels import arrays
from rankhouse.kernels.bags import FixedHotness, SparseGradient
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError
from rankhouse.kernels.reference import lookup as reference
from tests.kernels.batches import BAD_IDS, Batch, bad_id_message, batches, make_batch, with_bad_id

# float32 sums of up to some hundred terms of size 1.
TOLERANCE = {"rtol": 1e-5, "atol": 2e-5}

PROPERTY = settings(deadline=None, max_examples=150, derandomize=True)


def gradient_of(batch: Batch, module: Any = arrays, **options: Any) -> list[SparseGradient]:
    gradients: list[SparseGradient] = module.pooled_lookup_gradient(
        batch.grad, batch.ids, batch.offsets, tables_shape=batch.tables_shape, **batch.lookup, **options
    )
    return gradients


def big_batch() -> Batch:
    """Enough work for several threads, with ids that fill many chunks of equal ids."""
    shapes = [(3, 16), (4000, 128), (500, 5), (100_000, 16)]
    return make_batch(7, shapes=shapes, feature_tables=[0, 1, 2, 3, 0], batch_size=3000, max_hotness=6)


@PROPERTY
@given(batch=batches())
def test_lookup_equals_the_reference(batch: Batch) -> None:
    pooled = arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup)
    expected = reference.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup)
    assert pooled.shape == expected.shape == batch.grad.shape
    np.testing.assert_allclose(pooled, expected, **TOLERANCE)


@PROPERTY
@given(batch=batches())
def test_gradient_equals_the_reference(batch: Batch) -> None:
    for gradient, expected in zip(gradient_of(batch), gradient_of(batch, reference), strict=True):
        np.testing.assert_array_equal(gradient.ids, expected.ids)
        np.testing.assert_allclose(gradient.rows, expected.rows, **TOLERANCE)


def test_big_batch_equals_the_reference() -> None:
    batch = big_batch()
    pooled = arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup)
    expected = reference.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup)
    np.testing.assert_allclose(pooled, expected, **TOLERANCE)
    for gradient, truth in zip(gradient_of(batch), gradient_of(batch, reference), strict=True):
        np.testing.assert_array_equal(gradient.ids, truth.ids)
        np.testing.assert_allclose(gradient.rows, truth.rows, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_threads_change_no_bit(num_threads: int) -> None:
    batch = big_batch()
    pooled = [
        arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup, num_threads=n)
        for n in (1, num_threads)
    ]
    assert pooled[0].tobytes() == pooled[1].tobytes()
    for one, several in zip(
        gradient_of(batch, num_threads=1), gradient_of(batch, num_threads=num_threads), strict=True
    ):
        assert one.ids.tobytes() == several.ids.tobytes()
        assert one.rows.tobytes() == several.rows.tobytes()


def test_a_hot_row_is_added_up_in_chunks() -> None:
    # The order that kernels.h promises, followed by hand: chunks of 256, then the chunks' sums.
    rows = np.random.default_rng(0).standard_normal((1000, 1)).astype(np.float32)
    combined = arrays.combine_duplicates(np.zeros(1000, np.int64), rows, num_rows=1)
    total = np.float32(0)
    for chunk in range(0, 1000, 256):
        partial = np.float32(0)
        for row in rows[chunk : chunk + 256, 0]:
            partial += row
        total = total + partial if chunk else partial
    assert combined.rows[0, 0] == total


def test_fixed_hotness_equals_offsets() -> None:
    rng = np.random.default_rng(3)
    table = rng.standard_normal((40, 8)).astype(np.float32)
    ids = rng.integers(0, 40, 7 * (2 + 0 + 3))
    offsets = np.concatenate([np.arange(0, 15, 2), np.full(7, 14), np.arange(17, 36, 3)])
    lookup: dict[str, Any] = {"feature_tables": [0, 0, 0], "combiners": ["mean", "sum", "sum"]}
    hotness = FixedHotness((2, 0, 3))
    ragged = arrays.pooled_lookup([table], ids, offsets, **lookup)
    np.testing.assert_array_equal(arrays.pooled_lookup([table], ids, hotness, **lookup), ragged)
    np.testing.assert_allclose(reference.pooled_lookup([table], ids, hotness, **lookup), ragged, **TOLERANCE)
    grad = rng.standard_normal(ragged.shape).astype(np.float32)
    (fixed,) = arrays.pooled_lookup_gradient(grad, ids, hotness, tables_shape=[(40, 8)], **lookup)
    (by_offsets,) = arrays.pooled_lookup_gradient(grad, ids, offsets, tables_shape=[(40, 8)], **lookup)
    np.testing.assert_array_equal(fixed.rows, by_offsets.rows)


def test_out_is_filled_and_returned() -> None:
    batch = make_batch(1, shapes=[(9, 4)], feature_tables=[0], batch_size=6)
    out = np.full((6, 4), np.nan, np.float32)
    assert arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup, out=out) is out
    np.testing.assert_array_equal(out, arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup))


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_empty_bags_pool_to_zeros(combiner: str) -> None:
    no_ids = np.zeros(0, np.int64)
    lookup: dict[str, Any] = {"feature_tables": [0], "combiners": [combiner]}
    for num_rows in (0, 5):
        table = np.ones((num_rows, 3), np.float32)
        pooled = arrays.pooled_lookup([table], no_ids, np.zeros(5, np.int64), **lookup)
        np.testing.assert_array_equal(pooled, np.zeros((4, 3)))


@pytest.mark.parametrize("bad_id", BAD_IDS)
def test_bad_ids_are_named(bad_id: int) -> None:
    batch = with_bad_id(bad_id)
    with pytest.raises(IdOutOfRangeError, match=bad_id_message(bad_id)):
        arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup)
    with pytest.raises(IdOutOfRangeError, match=bad_id_message(bad_id)):
        gradient_of(batch)
    with pytest.raises(IdOutOfRangeError, match=bad_id_message(bad_id)):
        gradient_of(batch, reference)


def test_the_first_bad_id_is_named_whatever_the_threads() -> None:
    batch = big_batch()
    first = int(batch.offsets[3000 * 2 + 17])  # the first id from feature 2, sample 17 on
    batch.ids[first::50] = -5
    bag = int(np.searchsorted(batch.offsets, first, "right")) - 1
    message = f"id -5 of feature 2 .sample {bag - 6000}, position 0 in its bag. is out of range: table 2 has 500 rows"
    for num_threads in (1, 2, 5):
        with pytest.raises(IdOutOfRangeError, match=message):
            arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup, num_threads=num_threads)
        with pytest.raises(IdOutOfRangeError, match=message):
            gradient_of(batch, num_threads=num_threads)


def test_any_id_is_bad_in_a_table_without_rows() -> None:
    table = np.zeros((0, 4), np.float32)
    with pytest.raises(IdOutOfRangeError, match="table 0 has 0 rows"):
        arrays.pooled_lookup([table], np.zeros(1, np.int64), np.array([0, 1]), feature_tables=[0], combiners=["sum"])


WRONG_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "offsets that fall": (
        {"offsets": np.array([0, 2, 1, 2, 4])},
        "sample 0 run from 0 to 2: .* never to fall and to stay within 0 to 1",
    ),
    "offsets past the ids": ({"offsets": np.array([0, 1, 9, 2, 4])}, "feature 0 run from 0 to 9"),
    "offsets that end early": ({"offsets": np.array([0, 1, 2, 2, 3])}, "run from 0 to 3: expected 0 to the number of"),
    "offsets that start late": ({"offsets": np.array([1, 1, 2, 2, 4])}, "run from 1 to 4"),
    "offsets of another length": ({"offsets": np.array([0, 1, 2, 4])}, r"4 elements: expected F \* B \+ 1 with F = 2"),
    "no offsets": ({"offsets": np.zeros(0, np.int64)}, "0 elements"),
    "ids of another dtype": ({"ids": np.zeros(4, np.uint32)}, "ids is uint32 of shape .4,.: expected int64"),
    "ids of another rank": ({"ids": np.zeros((2, 2), np.int64)}, "expected int64 with 1 dimension"),
    "ids with strides": ({"ids": np.zeros(8, np.int64)[::2]}, "ids is not contiguous: pass np.ascontiguousarray"),
    "ids as a list": ({"ids": [0, 1, 2, 3]}, "ids is a list: expected a NumPy array"),
    "tables of another dtype": ({"tables": [np.zeros((5, 2))]}, "table 0 has rows of float64: expected one of float32"),
    "tables in Fortran order": (
        {"tables": [np.zeros((5, 2), np.float32, order="F")]},
        r"table 0 has strides .*each row in one",
    ),
    "tables without width": (
        {"tables": [np.zeros((5, 0), np.float32)]},
        r"shape \(5, 0\): expected float32 \[rows, width\]",
    ),
    "an unknown table": ({"feature_tables": [0, 1]}, "feature 1 names table 1, but there are 1"),
    "an unknown combiner": ({"combiners": ["sum", "max"]}, "feature 1 has combiner 'max': expected one of"),
    "too few combiners": ({"combiners": ["sum"]}, "1 combiners for 2 features"),
    "out of another shape": ({"out": np.zeros((2, 3), np.float32)}, r"out has shape \(2, 3\): .* \(2, 4\)"),
    "no threads": ({"num_threads": 0}, "num_threads is 0"),
    "hotness for other features": ({"offsets": FixedHotness((1, 1, 2))}, "for 2 features and 4 ids"),
    "hotness for other ids": ({"offsets": FixedHotness((1, 2))}, "divides the number of ids"),
    "negative hotness": ({"offsets": FixedHotness((3, -1))}, "feature 1 has hotness -1"),
}


@pytest.mark.parametrize("wrong", WRONG_CALLS)
def test_wrong_calls_are_refused(wrong: str) -> None:
    arguments: dict[str, Any] = {
        "tables": [np.zeros((5, 2), np.float32)],
        "ids": np.zeros(4, np.int64),
        "offsets": np.array([0, 1, 2, 2, 4]),
        "feature_tables": [0, 0],
        "combiners": ["sum", "mean"],
    }
    arrays.pooled_lookup(**arguments)
    changed, message = WRONG_CALLS[wrong]
    with pytest.raises(ArgumentError, match=message):
        arrays.pooled_lookup(**(arguments | changed))


def test_gradient_refuses_a_grad_of_another_shape() -> None:
    batch = make_batch(1, shapes=[(9, 4)], feature_tables=[0], batch_size=6)
    with pytest.raises(ArgumentError, match=r"grad has shape \(5, 4\): expected \(6, 4\)"):
        arrays.pooled_lookup_gradient(
            batch.grad[:5], batch.ids, batch.offsets, tables_shape=batch.tables_shape, **batch.lookup
        )


def test_combined_duplicates_are_sums() -> None:
    ids = np.array([4, 1, 4, 4], np.int64)
    rows = np.array([[1, 10], [2, 20], [3, 30], [4, 40]], np.float32)
    combined = arrays.combine_duplicates(ids, rows, num_rows=5)
    np.testing.assert_array_equal(combined.ids, [1, 4])
    np.testing.assert_array_equal(combined.rows, [[2, 20], [8, 80]])
