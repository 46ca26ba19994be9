"""The lookup with all that it takes: combiners, weights, row and id types, policies; and the gradient of weights."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankhouse.kernels import arrays
from rankhouse.kernels.bags import BadIds, FixedHotness
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError
from rankhouse.kernels.reference import lookup as reference
from rankhouse.kernels.rows import allocate_rows, dequantize_rows, quantize_rows
from tests.kernels.batches import DIMS, make_batch

PROPERTY = settings(deadline=None, max_examples=200, derandomize=True)
TOLERANCE = {"rtol": 1e-5, "atol": 3e-5}
ROW_TYPES = ["float32", "float16", "bfloat16", "int8"]
ENDS = np.array([-1, -(2**31), 2**31 - 1])


@dataclass(frozen=True)
class Call:
    """The arguments of a lookup, and a gradient for its result."""

    tables: list[NDArray[Any]]
    ids: NDArray[Any]
    offsets: NDArray[np.int64]
    options: dict[str, Any]
    grad: NDArray[np.float32]

    def look_up(self, module: Any = arrays, **more: Any) -> NDArray[np.float32]:
        pooled: NDArray[np.float32] = module.pooled_lookup(self.tables, self.ids, self.offsets, **self.options, **more)
        return pooled

    def gradients(self, module: Any = arrays, **more: Any) -> Any:
        shapes = [dequantize_rows(table).shape for table in self.tables]
        return module.pooled_lookup_gradient(
            self.grad, self.ids, self.offsets, tables_shape=shapes, **self.options, **more
        )


@st.composite
def calls(draw: st.DrawFn, row_types: tuple[str, ...] = tuple(ROW_TYPES), weighted: bool | None = None) -> Call:
    shapes = draw(st.lists(st.tuples(st.sampled_from([1, 2, 50, 3000]), st.sampled_from(DIMS)), min_size=1, max_size=3))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    batch = make_batch(
        seed,
        shapes=shapes,
        feature_tables=draw(st.lists(st.integers(0, len(shapes) - 1), min_size=1, max_size=4)),
        batch_size=draw(st.sampled_from([0, 1, 2, 13, 90])),
        max_hotness=draw(st.sampled_from([1, 3, 20])),
    )
    num_features = len(batch.feature_tables)
    ids = batch.ids.astype(draw(st.sampled_from([np.int32, np.int64])))
    policies = [draw(st.sampled_from(["zero", "clip", int(rng.integers(rows))])) for rows, _ in shapes]
    if draw(st.booleans()):
        bad = rng.random(len(ids)) < 0.2
        ids[bad] = rng.choice(ENDS, bad.sum())
    has_weights = draw(st.booleans()) if weighted is None else weighted
    return Call(
        tables=[quantize_rows(table, draw(st.sampled_from(row_types))) for table in batch.tables],
        ids=ids,
        offsets=batch.offsets,
        options={
            "feature_tables": batch.feature_tables,
            "combiners": [draw(st.sampled_from(["sum", "mean", "sqrtn"])) for _ in range(num_features)],
            "weights": rng.uniform(0.1, 2, len(ids)).astype(np.float32) if has_weights else None,
            "weighting": draw(st.sampled_from(["tensorflow", "fbgemm"])),
            "out_of_range": policies,
        },
        grad=batch.grad,
    )


@PROPERTY
@given(call=calls())
def test_lookup_equals_the_reference(call: Call) -> None:
    np.testing.assert_allclose(call.look_up(), call.look_up(reference), **TOLERANCE)


@PROPERTY
@given(call=calls())
def test_gradient_equals_the_reference(call: Call) -> None:
    for gradient, expected in zip(call.gradients(), call.gradients(reference), strict=True):
        np.testing.assert_array_equal(gradient.ids, expected.ids)
        # A row of a small table is the sum of thousands of products.
        np.testing.assert_allclose(gradient.rows, expected.rows, rtol=1e-5, atol=2e-3)


@PROPERTY
@given(call=calls(row_types=("float32",), weighted=True))
def test_weight_gradient_equals_the_reference(call: Call) -> None:
    ours = arrays.pooled_lookup_weight_gradient(call.grad, call.tables, call.ids, call.offsets, **call.options)
    truth = reference.pooled_lookup_weight_gradient(call.grad, call.tables, call.ids, call.offsets, **call.options)
    # Differences of products of rows, divided by as little as 0.1.
    np.testing.assert_allclose(ours, truth, rtol=1e-3, atol=1e-2)


@PROPERTY
@given(call=calls())
def test_rows_equal_the_reference_bit_for_bit(call: Call) -> None:
    options = {name: call.options[name] for name in ("feature_tables", "out_of_range")}
    ours = arrays.lookup_rows(call.tables, call.ids, call.offsets, **options)
    truth = reference.lookup_rows(call.tables, call.ids, call.offsets, **options)
    for rows, expected in zip(ours, truth, strict=True):
        np.testing.assert_array_equal(rows, expected)


@PROPERTY
@given(call=calls(), num_threads=st.sampled_from([2, 3, 8]))
def test_threads_change_no_bit_and_no_count(call: Call, num_threads: int) -> None:
    reports: list[list[BadIds]] = [[], []]
    one = call.look_up(num_threads=1, bad_ids=reports[0])
    assert one.tobytes() == call.look_up(num_threads=num_threads, bad_ids=reports[1]).tobytes()
    assert reports[0] == reports[1]


def big_call(seed: int = 4) -> Call:
    """Enough work for several threads."""
    shapes = [(300, 16), (4000, 128), (500, 5), (90_000, 300)]
    batch = make_batch(seed, shapes=shapes, feature_tables=[0, 1, 2, 3, 0], batch_size=3000, max_hotness=6)
    weights = np.random.default_rng(seed).uniform(-1, 1, len(batch.ids)).astype(np.float32)
    options = {
        "feature_tables": batch.feature_tables,
        "combiners": ["sum", "mean", "sqrtn", "sum", "mean"],
        "weights": weights,
    }
    return Call(batch.tables, batch.ids, batch.offsets, options, batch.grad)


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_threads_change_no_bit_of_a_big_batch(num_threads: int) -> None:
    call = big_call()
    assert call.look_up(num_threads=1).tobytes() == call.look_up(num_threads=num_threads).tobytes()
    gradients = [
        arrays.pooled_lookup_weight_gradient(
            call.grad, call.tables, call.ids, call.offsets, **call.options, num_threads=n
        ).tobytes()
        for n in (1, num_threads)
    ]
    assert gradients[0] == gradients[1]


@pytest.mark.parametrize("dim", [1, 5, 16, 24, 128, 300])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_sums_have_the_order_of_the_ids(dim: int, combiner: str) -> None:
    # What lookup.h promises, followed step by step in float32.
    rng = np.random.default_rng(dim)
    table = rng.standard_normal((1000, dim)).astype(np.float32)
    ids = rng.integers(0, 1000, 700)
    weights = rng.uniform(0.5, 1, 700).astype(np.float32)
    total = weights[0] * table[ids[0]]
    divisor = np.float32(weights[0] * weights[0] if combiner == "sqrtn" else weights[0])
    for n in range(1, 700):
        total = total + weights[n] * table[ids[n]]
        divisor += weights[n] * weights[n] if combiner == "sqrtn" else weights[n]
    if combiner != "sum":
        total *= np.float32(1) / (np.sqrt(divisor) if combiner == "sqrtn" else divisor)
    pooled = arrays.pooled_lookup(
        [table], ids, np.array([0, 700]), feature_tables=[0], combiners=[combiner], weights=weights
    )
    np.testing.assert_array_equal(pooled[0], total)


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("dim", [1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 127, 128, 129, 145, 256, 300])
def test_tables_with_strides_and_odd_addresses(row_type: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    packed = quantize_rows(rng.standard_normal((20, dim)).astype(np.float32), row_type)
    row_bytes = packed.shape[1] * packed.itemsize
    shift, stride = (3, row_bytes + 5) if row_type == "int8" else (packed.itemsize, row_bytes + packed.itemsize)
    memory = np.full(shift + 20 * stride, 0xFF, np.uint8)
    apart = np.ndarray(packed.shape, packed.dtype, memory, shift, (stride, packed.itemsize))
    apart[:] = packed
    ids, offsets = rng.integers(0, 20, 100), np.sort(np.append(rng.integers(0, 101, 12), [0, 100]))
    options: dict[str, Any] = {"feature_tables": [0], "combiners": ["sum"]}
    pooled = arrays.pooled_lookup([apart], ids, offsets, **options)
    np.testing.assert_array_equal(pooled, arrays.pooled_lookup([packed], ids, offsets, **options))
    values = [dequantize_rows(packed)]
    np.testing.assert_array_equal(pooled, arrays.pooled_lookup(values, ids, offsets, **options))


def test_large_outputs_are_written_past_the_caches() -> None:
    # Above the size from which a copy streams, aligned and not.
    table = np.random.default_rng(0).standard_normal((77, 128)).astype(np.float32)
    ids = np.random.default_rng(1).integers(0, 77, 70_000)
    options: dict[str, Any] = {"feature_tables": [0], "combiners": ["sum"]}
    memory = allocate_rows(len(ids) + 1, 128).reshape(-1)
    for shift in (0, 4):
        out = memory[shift : shift + ids.size * 128].reshape(-1, 128)
        arrays.pooled_lookup([table], ids, FixedHotness((1,)), **options, out=out)
        np.testing.assert_array_equal(out, table[ids])


def test_narrow_outputs_of_a_large_batch_are_put_together() -> None:
    draws, batch_size, dims = np.random.default_rng(2), 250_000, (8, 3, 16, 15, 1)
    tables = [draws.standard_normal((50, dim)).astype(np.float32) for dim in dims]
    ids = draws.integers(0, 50, (len(dims), batch_size))
    options: dict[str, Any] = {"feature_tables": range(len(dims)), "combiners": ["sum", "mean", "sum", "sum", "sqrtn"]}
    expected = np.concatenate([table[own] for table, own in zip(tables, ids, strict=True)], axis=1)
    memory = allocate_rows(batch_size + 1, 44).reshape(-1)
    for shift in (0, 3):
        out = memory[shift : shift + batch_size * 43].reshape(-1, 43)
        arrays.pooled_lookup(tables, ids.reshape(-1), FixedHotness((1,) * len(dims)), **options, out=out)
        np.testing.assert_array_equal(out, expected)
    ids[1, -1] = 50
    with pytest.raises(IdOutOfRangeError, match=r"id 50 of feature 1 \(sample 249999, position 0"):
        arrays.pooled_lookup(tables, ids.reshape(-1), FixedHotness((1,) * len(dims)), **options)


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_weights_that_add_up_to_nothing_give_zeros(combiner: str) -> None:
    table = np.array([[1, 2], [np.inf, 5]], np.float32)
    weights = np.array([1, -1, 0, 0, 2], np.float32) if combiner == "mean" else np.array([0, 0, 0, 0, 2], np.float32)
    call: dict[str, Any] = {"feature_tables": [0], "combiners": [combiner], "weights": weights}
    ids, offsets = np.array([0, 1, 0, 0, 0]), np.array([0, 2, 4, 5])
    pooled = arrays.pooled_lookup([table], ids, offsets, **call)
    np.testing.assert_array_equal(pooled, [[0, 0], [0, 0], [1, 2]])
    gradient = arrays.pooled_lookup_weight_gradient(np.ones((3, 2), np.float32), [table], ids, offsets, **call)
    np.testing.assert_array_equal(gradient, np.zeros(5))


def test_a_single_row_keeps_its_bits() -> None:
    table = np.array([[-0.0, 1e-40, np.inf, -np.inf]], np.float32)
    for offsets in (np.array([0, 1]), FixedHotness((1,))):
        pooled = arrays.pooled_lookup([table], np.zeros(1, np.int64), offsets, feature_tables=[0], combiners=["mean"])
        assert pooled.tobytes() == table.tobytes()


@pytest.mark.parametrize(
    ("policy", "expected"), [("zero", [[0], [0], [3], [0]]), ("clip", [[1], [1], [3], [3]]), (1, [[2], [2], [3], [2]])]
)
def test_policies(policy: str | int, expected: list[list[int]]) -> None:
    table = np.array([[1], [2], [3]], np.float32)
    ids = np.array([-(2**63), -1, 2, 2**63 - 1])
    report: list[BadIds] = []
    pooled = arrays.pooled_lookup(
        [table], ids, FixedHotness((1,)), feature_tables=[0], combiners=["sum"], out_of_range=policy, bad_ids=report
    )
    np.testing.assert_array_equal(pooled, expected)
    assert report == [BadIds(count=3, feature=0, sample=0, position=0, id=-(2**63))]
    mean = arrays.pooled_lookup(
        [table], ids, np.array([0, 4]), feature_tables=[0], combiners=["mean"], out_of_range=policy
    )
    np.testing.assert_allclose(mean, [[np.sum(expected) / 4]])


def test_bad_ids_are_counted_by_table_and_the_first_is_named() -> None:
    tables = [np.ones((10, 3), np.float32), np.ones((5, 300), np.float32), np.ones((7, 2), np.float32)]
    ids = np.zeros(3 * 2000 * 2, np.int32)
    ids[4000 + 1201 :: 7] = 9  # features 1 and 2, of the tables 1 and 0
    ids[8000 + 3] = -4
    report: list[BadIds] = [BadIds(1, 1, 1, 1, 1)]
    options: dict[str, Any] = {"feature_tables": [0, 1, 0], "bad_ids": report}
    bad = np.flatnonzero((ids[4000:8000] < 0) | (ids[4000:8000] >= 5))
    for threads in (1, 2, 8):
        arrays.pooled_lookup(
            tables, ids, FixedHotness((2, 2, 2)), combiners=["sum"] * 3, out_of_range="zero", num_threads=threads,
            **options,
        )  # fmt: skip
        assert report == [BadIds(1, 2, 1, 1, -4), BadIds(len(bad), 1, 600, 1, 9), report[2]]
        assert report[2].count == 0
    with pytest.raises(IdOutOfRangeError, match=r"id 9 of feature 1 \(sample 600, position 1"):
        arrays.lookup_rows(tables, ids, FixedHotness((2, 2, 2)), out_of_range=["zero", "error", "error"], **options)
    assert report[:2] == [BadIds(1, 2, 1, 1, -4), BadIds(len(bad), 1, 600, 1, 9)]


@pytest.mark.parametrize("policy", ["clip", 0])
def test_a_table_without_rows_has_none_to_give(policy: str | int) -> None:
    with pytest.raises(IdOutOfRangeError, match=r"id 3 of feature 0 .*: table 0 has 0 rows"):
        arrays.pooled_lookup(
            [np.zeros((0, 2), np.float32)], np.array([3]), np.array([0, 1]), feature_tables=[0], combiners=["sum"],
            out_of_range=policy,
        )  # fmt: skip


def test_rows_of_fixed_hotness_keep_their_samples() -> None:
    tables = [np.arange(10, dtype=np.float32).reshape(5, 2), np.arange(100, dtype=np.float32).reshape(5, 20)]
    ids = np.array([0, 1, 2, 3, 4, 0, 4, 3])
    first, second, none = arrays.lookup_rows(tables, ids, FixedHotness((3, 1, 0)), feature_tables=[0, 1, 0])
    np.testing.assert_array_equal(first, tables[0][[[0, 1, 2], [3, 4, 0]]])
    np.testing.assert_array_equal(second, tables[1][[[4], [3]]])
    assert none.shape == (2, 0, 2)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [True, False])
def test_bags_of_one_size_change_no_bit_and_no_message(combiner: str, *, weighted: bool) -> None:
    rng, hotness, num_samples = np.random.default_rng(5), [1, 3, 1], 700
    tables = [
        rng.standard_normal((rows, dim)).astype(np.float32) for rows, dim in ((50, 8), (9, 16), (40, 128), (7, 4))
    ]
    tables[0][0] = -0.0
    even_ids = [rng.integers(0, len(table), num_samples * h) for table, h in zip(tables, hotness, strict=False)]
    # The bags of the last feature are uneven, so all are found by offsets where it is there.
    ids = np.concatenate([*even_ids, [3, 4]])
    lengths = np.concatenate([np.repeat(hotness, num_samples), np.repeat([0, 2], [num_samples - 1, 1])])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    grad = rng.standard_normal((num_samples, 156)).astype(np.float32)
    weights = rng.random(len(ids), np.float32)

    def call(num_features: int) -> Call:
        num_bags = num_features * num_samples
        num_ids = offsets[num_bags]
        width = sum(table.shape[1] for table in tables[:num_features])
        options = {"feature_tables": range(num_features), "combiners": [combiner] * num_features}
        options |= {"weights": weights[:num_ids]} if weighted else {}
        return Call(
            tables[:num_features],
            ids[:num_ids],
            offsets[: num_bags + 1],
            options,
            np.ascontiguousarray(grad[:, :width]),
        )

    assert call(4).look_up()[:, :152].tobytes() == call(3).look_up().tobytes()
    for one, other in zip(call(4).gradients(), call(3).gradients(), strict=False):
        assert (one.ids.tobytes(), one.rows.tobytes()) == (other.ids.tobytes(), other.rows.tobytes())
    ids[num_samples + 11] = 9
    for num_features in (3, 4):
        with pytest.raises(IdOutOfRangeError, match=r"id 9 of feature 1 \(sample 3, position 2 in its bag\)"):
            call(num_features).look_up()
        with pytest.raises(IdOutOfRangeError, match=r"id 9 of feature 1 \(sample 3, position 2 in its bag\)"):
            call(num_features).gradients()


def test_no_samples_and_no_tables() -> None:
    none = np.zeros(0, np.int64)
    table = np.zeros((3, 4), np.float32)
    pooled = arrays.pooled_lookup([table], none, np.zeros(1, np.int64), feature_tables=[0], combiners=["sqrtn"])
    assert pooled.shape == (0, 4)
    assert arrays.lookup_rows([table], none, np.zeros(1, np.int64), feature_tables=[0])[0].shape == (0, 4)
    assert arrays.pooled_lookup([], none, np.zeros(1, np.int64), feature_tables=[], combiners=[]).shape == (0, 0)


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [True, False])
def test_lookup_equals_tensorflow(combiner: str, *, weighted: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(8)
    table = rng.standard_normal((40, 12)).astype(np.float32)
    lengths = rng.integers(0, 5, 30)
    samples = np.repeat(np.arange(30), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    indices = np.stack([samples, positions], 1)
    ids = rng.integers(0, 40, len(samples))
    weights = rng.uniform(0.1, 2, len(ids)).astype(np.float32)
    sparse = [tf.SparseTensor(indices, values, [30, 5]) for values in (ids, weights)]
    variable, weight_values = tf.Variable(table), tf.Variable(weights)
    with tf.GradientTape() as tape:
        tf_weights = tf.SparseTensor(indices, weight_values, [30, 5]) if weighted else None
        # The safe lookup gives zeros for samples without ids, also at the end.
        expected = tf.nn.safe_embedding_lookup_sparse(variable, sparse[0], tf_weights, combiner=combiner)
        grad = rng.standard_normal(expected.shape).astype(np.float32)
        loss = tf.reduce_sum(expected * grad)
    offsets = arrays.offsets_from_samples(indices[:, 0], batch_size=30)
    options: dict[str, Any] = {"feature_tables": [0], "combiners": [combiner]}
    if weighted:
        options["weights"] = weights
    ours = arrays.pooled_lookup([table], ids, offsets, **options)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-5, atol=1e-6)
    if weighted:
        gradient = arrays.pooled_lookup_weight_gradient(grad, [table], ids, offsets, **options)
        np.testing.assert_allclose(
            gradient, tf.convert_to_tensor(tape.gradient(loss, weight_values)), rtol=1e-4, atol=1e-5
        )


def test_offsets_from_samples() -> None:
    samples = np.array([[1, 0], [1, 1], [4, 0]])
    np.testing.assert_array_equal(arrays.offsets_from_samples(samples[:, 0], batch_size=6), [0, 0, 2, 2, 2, 3, 3])
    np.testing.assert_array_equal(arrays.offsets_from_samples(np.zeros(0, np.int64), batch_size=2), [0, 0, 0])
    np.testing.assert_array_equal(arrays.offsets_from_samples(np.zeros(0, np.int64), batch_size=0), [0])


@pytest.mark.parametrize(
    ("samples", "batch_size", "message"),
    [
        ([1, 0], 3, r"the sample of id 1 is 0: expected 1 .that of the id before it. to 2"),
        ([0, 3], 3, "the sample of id 1 is 3: expected 0"),
        ([-1], 3, "the sample of id 0 is -1"),
        ([0], 0, "the sample of id 0 is 0: expected 0 .* to -1"),
        ([], -1, "batch_size is -1"),
    ],
)
def test_offsets_refuse_samples_that_fall_or_are_none(samples: list[int], batch_size: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        arrays.offsets_from_samples(np.array(samples, np.int64), batch_size=batch_size)


WRONG_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "weights of another length": ({"weights": np.ones(3, np.float32)}, "there are 3 weights for 4 ids"),
    "weights of another dtype": ({"weights": np.ones(4)}, "weights is float64"),
    "an unknown weighting": ({"weighting": "torch"}, "weighting is 'torch': expected one of .'fbgemm', 'tensorflow'"),
    "an unknown policy": ({"out_of_range": "wrap"}, "table 0 has the policy 'wrap' .* or the row that takes their"),
    "policies for other tables": ({"out_of_range": ["zero"] * 2}, "2 policies for 1 tables"),
    "a policy's row that is none": ({"out_of_range": 5}, "table 0 has oov_row 5: expected one of its 5 rows"),
    "a combiner that does not pool": ({"combiners": ["none"]}, "'none' does not pool: use lookup_rows"),
    "a closed number of threads": ({"num_threads": -3}, "num_threads is -3"),
}


@pytest.mark.parametrize("wrong", WRONG_OPTIONS)
def test_wrong_options_are_refused(wrong: str) -> None:
    arguments: dict[str, Any] = {
        "tables": [np.zeros((5, 2), np.float32)],
        "ids": np.zeros(4, np.int32),
        "offsets": np.array([0, 1, 4]),
        "feature_tables": [0],
        "combiners": ["mean"],
    }
    arrays.pooled_lookup(**arguments)
    changed, message = WRONG_OPTIONS[wrong]
    with pytest.raises(ArgumentError, match=message):
        arrays.pooled_lookup(**(arguments | changed))


@pytest.mark.parametrize("first", [-5, -(2**62), 2**40])
def test_offsets_that_leave_the_ids_touch_no_memory(first: int) -> None:
    offsets = np.array([0, first, 2, 4])
    with pytest.raises(ArgumentError, match=r"sample 0 run from 0 to .* expected them never to fall"):
        arrays.lookup_rows([np.zeros((5, 2), np.float32)], np.zeros(4, np.int64), offsets, feature_tables=[0])
