from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings

from rankhouse.kernels import arrays, tf_ops
from rankhouse.kernels import rows as rows_module
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.errors import ArgumentError, LibraryError, UnsupportedError
from rankhouse.kernels.optimizer_settings import Adagrad
from rankhouse.kernels.tf_ops.native import ops
from tests.kernels.batches import BAD_IDS, Batch, bad_id_message, batches, make_batch, with_bad_id

PROPERTY = settings(deadline=None, max_examples=40, derandomize=True)


def lookup_and_gradients(batch: Batch) -> tuple[tf.Tensor, list[tf.IndexedSlices], list[tf.Variable]]:
    variables = [tf.Variable(table) for table in batch.tables]
    with tf.GradientTape() as tape:
        pooled = tf_ops.pooled_lookup(variables, batch.ids, batch.offsets, **batch.lookup)
        loss = tf.reduce_sum(pooled * batch.grad)
    return pooled, tape.gradient(loss, variables), variables


@PROPERTY
@given(batch=batches())
def test_ops_equal_the_array_view(batch: Batch) -> None:
    pooled, slices, _ = lookup_and_gradients(batch)
    np.testing.assert_array_equal(pooled, arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup))
    expected = arrays.pooled_lookup_gradient(
        batch.grad, batch.ids, batch.offsets, tables_shape=batch.tables_shape, **batch.lookup
    )
    for t, truth in enumerate(expected):
        if slices[t] is None:  # no operation at all reads a table when nothing is looked up
            assert len(truth.ids) == 0
            continue
        np.testing.assert_array_equal(slices[t].indices, truth.ids)
        np.testing.assert_array_equal(slices[t].values, truth.rows)
        np.testing.assert_array_equal(slices[t].dense_shape, batch.tables_shape[t])


def tensorflow_truth(batch: Batch, variables: list[tf.Variable]) -> tf.Tensor:
    """The same lookup by TensorFlow's own operations."""
    columns = []
    for f, table in enumerate(batch.feature_tables):
        begin = f * batch.batch_size
        splits = batch.offsets[begin : begin + batch.batch_size + 1]
        ragged = tf.RaggedTensor.from_row_splits(batch.ids[splits[0] : splits[-1]], splits - splits[0])
        rows = tf.gather(variables[table], ragged)
        columns.append(tf.reduce_sum(rows, 1) if batch.combiners[f] == "sum" else tf.reduce_mean(rows, 1))
    return tf.concat(columns, 1)


def test_values_and_gradients_equal_tensorflows() -> None:
    shapes = [(50, 16), (7, 5), (900, 32)]
    batch = make_batch(4, shapes=shapes, feature_tables=[0, 1, 2, 0], batch_size=60)
    # TensorFlow's mean of an empty bag is not a number: leave only bags that have ids.
    batch = Batch(
        tables=batch.tables,
        feature_tables=batch.feature_tables,
        combiners=["mean", "sum", "mean", "sum"],
        ids=np.arange(480, dtype=np.int64) * 5 % 7,
        offsets=np.arange(0, 481, 2, dtype=np.int64),
        grad=batch.grad,
    )
    pooled, slices, variables = lookup_and_gradients(batch)
    with tf.GradientTape() as tape:
        truth = tensorflow_truth(batch, variables)
        loss = tf.reduce_sum(truth * batch.grad)
    np.testing.assert_allclose(pooled, truth, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(slices, tape.gradient(loss, variables), strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(ours), tf.convert_to_tensor(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_gradient_equals_that_of_embedding_lookup_sparse(combiner: str) -> None:
    batch = make_batch(8, shapes=[(30, 8)], feature_tables=[0], batch_size=20, combiners=[combiner])
    ids = tf.RaggedTensor.from_row_splits(batch.ids, batch.offsets).to_sparse()
    pooled, slices, variables = lookup_and_gradients(batch)
    with tf.GradientTape() as tape:
        truth = tf.nn.safe_embedding_lookup_sparse(variables[0], ids, combiner=combiner)
        loss = tf.reduce_sum(truth * batch.grad)
    np.testing.assert_allclose(pooled, truth, rtol=1e-5, atol=1e-5)
    theirs = tape.gradient(loss, variables[0])
    np.testing.assert_allclose(tf.convert_to_tensor(slices[0]), tf.convert_to_tensor(theirs), rtol=1e-5, atol=1e-5)


def test_function_with_unknown_sizes_trains() -> None:
    variables = [tf.Variable(tf.ones((20, 4))), tf.Variable(tf.ones((5, 3)))]
    slots = [tf_ops.make_slots(variable, Adagrad()) for variable in variables]
    unknown = tf.TensorSpec([None], tf.int64)

    @tf.function(input_signature=[unknown, unknown])
    def step(ids: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            pooled = tf_ops.pooled_lookup(
                variables, ids, offsets, feature_tables=[0, 1, 0], combiners=["sum", "mean", "mean"]
            )
            assert pooled.shape.as_list() == [None, 11]
            loss = tf.reduce_sum(pooled)
        slices = tape.gradient(loss, variables)
        assert slices[0].values.shape.as_list() == [None, 4]
        for variable, its_slots, gradient in zip(variables, slots, slices, strict=True):
            tf_ops.apply(variable, its_slots, gradient, Adagrad(), learning_rate=0.1)
        return loss

    losses = [float(step(np.arange(6) % 5, np.arange(7))) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] == 22.0
    assert float(step(np.zeros(0, np.int64), np.zeros(1, np.int64))) == 0.0  # an empty batch
    seen = {variable.ref() for variable in step.get_concrete_function().graph.variables}
    assert seen >= {variable.ref() for variable in variables}


def test_static_shapes_are_inferred() -> None:
    table = tf.Variable(tf.ones((20, 4)))

    @tf.function
    def pool(ids: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
        return tf_ops.pooled_lookup([table], ids, offsets, feature_tables=[0, 0], combiners=["sum", "sum"])

    specs = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([9], tf.int64))
    assert pool.get_concrete_function(*specs).output_shapes.as_list() == [4, 8]


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("bad_id", BAD_IDS)
def test_bad_ids_are_named(bad_id: int, in_function: bool) -> None:
    batch = with_bad_id(bad_id)
    variables = [tf.Variable(table) for table in batch.tables]

    def pool() -> tf.Tensor:
        return tf_ops.pooled_lookup(variables, batch.ids, batch.offsets, **batch.lookup)

    with pytest.raises(tf.errors.InvalidArgumentError, match=bad_id_message(bad_id)):
        tf.function(pool)() if in_function else pool()


@pytest.mark.parametrize(
    ("ids", "offsets", "message"),
    [
        ([0, 1], [0, 1, 2], "offsets of shape .3. have 3 elements: expected F . B . 1 with F = 3 features"),
        ([0, 1], [0, 1, 2, 9], "offsets run from 0 to 9: expected 0 to the number of ids, 2"),
        ([0, 1], [0, 2, 1, 2], "offsets of feature 1 run from 2 to 1"),
        ([[0, 1]], [0, 1, 2, 2], "ids have shape .1,2.: expected .N."),
    ],
)
def test_wrong_offsets_are_refused(ids: Any, offsets: Any, message: str) -> None:
    table = tf.Variable(tf.ones((20, 4)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf_ops.pooled_lookup(
            [table], np.array(ids), np.array(offsets), feature_tables=[0] * 3, combiners=["sum", "mean", "sum"]
        )


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (tf.Variable(tf.ones((2, 3), tf.float64)), "is float64 of shape .2, 3.: expected float32"),
        (tf.Variable(tf.ones(3)), "shape .3,.: expected float32, float16 or bfloat16 .rows, width."),
        (tf.Variable(tf.ones((2, 3)), shape=tf.TensorShape([None, 3])), "shape .None, 3."),
    ],
)
def test_variables_of_another_kind_are_refused(variable: tf.Variable, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        tf_ops.pooled_lookup([variable], np.zeros(1, int), np.array([0, 1]), feature_tables=[0], combiners=["sum"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"feature_tables": [1]}, "feature 0 names table 1, but there are 1"),
        ({"combiners": ["max"]}, "feature 0 has combiner 'max'"),
        ({"combiners": []}, "0 combiners for 1 features"),
    ],
)
def test_wrong_features_are_refused(changed: dict[str, Any], message: str) -> None:
    table = tf.Variable(tf.ones((20, 4)))
    features: dict[str, Any] = {"feature_tables": [0], "combiners": ["sum"]}
    with pytest.raises(ArgumentError, match=message):
        tf_ops.pooled_lookup([table], np.zeros(1, int), np.array([0, 1]), **(features | changed))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"table_rows": [5, 5]}, "1 tables have 2 table_rows, 1 table_dims, .*: expected one each"),
        ({"table_dims": []}, "table"),
        ({"table_dims": [0]}, "expected a width of 1 to"),
        ({"table_dims": [-4]}, "expected a width of 1 to"),
        ({"table_dims": [2**31]}, "expected a width of 1 to"),
        ({"hotness": [-1], "combiners": [3]}, "expected a width of 1 to"),
        ({"hotness": [2]}, "expected a multiple of the 2 that hotness gives"),
        ({"hotness": []}, "feature_tables.* have different lengths"),
        ({"offsets": [tf.constant([0, 1], tf.int64)] * 2}, "not exactly one of offsets and hotness"),
        ({"weights": [tf.ones(1)] * 2}, "more than one of weights"),
        ({"weights": [tf.ones(2)]}, "weights have shape .2.: expected one for each of the ids, .1."),
        ({"table_types": [4]}, "table 0 has row type 4"),
        ({"out_of_range": [4]}, "table 0 has out_of_range 4"),
        ({"oov_rows": [5], "out_of_range": [3]}, "table 0 has oov_row 5"),
        ({"weighting": 2}, "weighting is 2"),
        ({"combiners": []}, "feature_tables.* have different lengths"),
        ({"feature_tables": [1]}, "feature_tables names table 1, but there are 1"),
        ({"feature_tables": [-1]}, "feature_tables names table -1, but there are 1"),
    ],
)
def test_attributes_that_contradict_each_other_are_refused(changes: dict[str, list[int]], message: str) -> None:
    """As a saved graph might hold them: the functions of tf_ops cannot make such."""
    attributes = {
        "table_rows": [5],
        "table_dims": [4],
        "table_types": [0],
        "out_of_range": [0],
        "oov_rows": [0],
        "feature_tables": [0],
        "combiners": [0],
        "hotness": [1],
        "weighting": 0,
        "weights": [],
        "offsets": [],
    } | changes
    ids = tf.constant([0], tf.int64)
    table = tf.Variable(tf.zeros((5, 4))).handle
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops().rankhouse_pooled_lookup(tables=[table], ids=ids, **attributes)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops().rankhouse_pooled_lookup_gradient(grad=tf.zeros((1, 4)), num_tables=1, ids=ids, **attributes)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ops().rankhouse_pooled_lookup_weight_gradient(grad=tf.zeros((1, 4)), tables=[table], ids=ids, **attributes)


def lookup_one(table: tf.Variable, ids: Any, **settings: Any) -> tf_ops.PooledRows:
    return tf_ops.pooled_lookup_counted(
        [table], ids, FixedHotness((1,)), feature_tables=[0], combiners=["sum"], **settings
    )


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(("policy", "row"), [("zero", None), ("clip", 3), (1, 1)])
def test_policies_count_bad_ids_and_train_the_row_in_their_place(
    policy: str | int, row: int | None, dtype: Any
) -> None:
    table = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2))
    with tf.GradientTape() as tape:
        rows, num_bad_ids = lookup_one(table, np.array([2, 9, 2, 7], dtype), out_of_range=policy)
    expected = np.zeros(2) if row is None else table.numpy()[row]
    np.testing.assert_array_equal(rows, [table[2], expected, table[2], expected])
    np.testing.assert_array_equal(num_bad_ids, [2])
    gradient = tf.convert_to_tensor(tape.gradient(rows, table))
    touched = np.zeros((4, 2))
    touched[2] = 2
    if row is not None:
        touched[row] = 2
    np.testing.assert_array_equal(gradient, touched)


@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_smaller_rows_are_looked_up_as_float32(dtype: tf.DType, trainable: bool) -> None:
    values = tf.constant([[1.5, -2.0, 0.25], [3.0, 4.0, 5.0]])
    table = tf.Variable(tf.cast(values, dtype), trainable=trainable)
    rows = lookup_one(table, [1, 0]).rows
    assert rows.dtype == tf.float32
    np.testing.assert_array_equal(rows, [values[1], values[0]])


def test_int8_rows_equal_their_dequantized_values() -> None:
    quantized = rows_module.quantize_rows(np.random.default_rng(0).random((5, 7), np.float32), "int8")
    table = tf.Variable(quantized, trainable=False)
    np.testing.assert_array_equal(lookup_one(table, [4, 2]).rows, rows_module.dequantize_rows(quantized)[[4, 2]])


def test_gradient_in_a_while_loop() -> None:
    table = tf.Variable(tf.ones((5, 2)))

    @tf.function
    def gradient(count: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            total = tf.constant(0.0)
            for i in tf.range(count):
                total += tf.reduce_sum(lookup_one(table, tf.stack([i, i + 1])).rows) * tf.cast(i, tf.float32)
        return tf.convert_to_tensor(tape.gradient(total, table))

    np.testing.assert_array_equal(gradient(3)[:, 0], [0, 1, 3, 2, 0])


def test_offsets_are_the_sums_of_lengths() -> None:
    lengths = np.random.default_rng(2).integers(0, 9, (3, 40_000))
    offsets = tf.function(tf_ops.offsets_from_lengths, input_signature=[tf.TensorSpec([3, None], tf.int64)])
    assert offsets.get_concrete_function().output_shapes == [None]
    np.testing.assert_array_equal(offsets(tf.constant(lengths)), np.concatenate([[0], np.cumsum(lengths)]))
    np.testing.assert_array_equal(tf_ops.offsets_from_lengths(tf.zeros([2, 0], tf.int64)), [0])
    with pytest.raises(UnsupportedError, match="offsets_from_lengths has no XLA version"):
        tf.function(tf_ops.offsets_from_lengths, jit_compile=True)(tf.constant(lengths))


def test_features_in_three_forms_are_joined() -> None:
    table = tf.Variable(np.arange(10, dtype=np.float32).reshape(10, 1))
    ragged = tf.ragged.constant([[1, 2], []], dtype=tf.int64)
    sparse = tf.SparseTensor([[1, 0]], tf.constant([5], tf.int64), [2, 4])
    ids, offsets = tf_ops.join([tf_ops.from_ragged(ragged), tf_ops.from_sparse(sparse)])
    pooled = tf_ops.pooled_lookup([table], ids, offsets, feature_tables=[0, 0], combiners=["sum", "sum"])
    np.testing.assert_array_equal(pooled, [[3, 0], [0, 5]])
    with pytest.raises(ArgumentError, match=r"expected a tf\.SparseTensor"):
        tf_ops.from_sparse(ragged)
    with pytest.raises(tf.errors.InvalidArgumentError, match="the sample of id 1 is 0"):
        tf_ops.from_sparse(tf.SparseTensor([[1, 0], [0, 0]], tf.constant([5, 5], tf.int64), [2, 4]))
    with pytest.raises(UnsupportedError, match="from_sparse has no XLA version"):
        tf.function(lambda: tf_ops.from_sparse(sparse), jit_compile=True)()


def test_combiner_none_puts_rows_side_by_side_and_needs_fixed_hotness() -> None:
    table = tf.Variable(np.arange(6, dtype=np.float32).reshape(3, 2))
    features: dict[str, Any] = {"feature_tables": [0, 0], "combiners": ["none", "sum"]}
    pooled = tf_ops.pooled_lookup([table], [0, 1, 2, 0, 1, 2], FixedHotness((2, 1)), **features)
    np.testing.assert_array_equal(pooled, [[0, 1, 2, 3, 2, 3], [4, 5, 0, 1, 4, 5]])
    with pytest.raises(ArgumentError, match="combiner 'none' with offsets"):
        tf_ops.pooled_lookup([table], [0, 1], np.array([0, 1, 2]), **features)


def test_huge_pages_leave_a_table_as_it_was() -> None:
    values = np.random.default_rng(0).random((2**15, 48), np.float32)
    table = tf.Variable(values)
    tf_ops.advise_huge_pages(table)
    np.testing.assert_array_equal(table, values)


def test_ops_of_an_older_build_are_refused_where_they_lack_one() -> None:
    with pytest.raises(LibraryError, match=r"tf_ops\.so has no op rankhouse_of_tomorrow: .* again with `make setup`"):
        ops().rankhouse_of_tomorrow()
    assert not hasattr(ops(), "__wrapped__")
