"""Every parallel mode with every kind of input: one process against NumPy, and 1 rank against 2 and 3."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.kernels.reference.lookup import pooled_lookup
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import EmbeddingError
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input
from tests.training.launching import run_on_ranks
from tests.training.modes import KINDS, NAMES, TABLES, batch, build, train_all

ALONE = Ranks(0, 1)
# Of these the owner adds up the gradients of the global batch in one rank's order.
SAME_ORDER = {"pooled": ("whole", "columns"), "apart": ()}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("modes")


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    return train_all(ALONE, directory)


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, directory: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    return run_on_ranks(train_all, directory, num_ranks=request.param)


def found(directory: Path, num_ranks: int) -> Iterator[tuple[str, str, Any, list[Any]]]:
    """Yields what one rank and N ranks found: (kinds, name, array, arrays by rank)."""
    for kinds in KINDS:
        one = np.load(directory / f"{kinds}-1-0.npz")
        many = [np.load(directory / f"{kinds}-{num_ranks}-{rank}.npz") for rank in range(num_ranks)]
        for name in one.files:
            yield kinds, name, one[name], [arrays[name] for arrays in many]


@pytest.mark.horovod
def test_n_ranks_start_and_look_up_as_one_does_to_the_bit(together: list[dict[str, Any]], directory: Path) -> None:
    for kinds, name, expected, parts in found(directory, len(together)):
        if name.startswith("before/"):
            assert all(np.array_equal(part, expected) for part in parts), (kinds, name)
        elif name.startswith("output/"):
            assert np.array_equal(np.concatenate(parts), expected), (kinds, name)


@pytest.mark.horovod
def test_n_ranks_train_as_one_does(together: list[dict[str, Any]], directory: Path) -> None:
    """To the bit where tables are pooled by their owner. Else each rank first adds up the gradients of its own samples,
    which is another order of sums."""
    for kinds, name, expected, parts in found(directory, len(together)):
        if not name.startswith("after/"):
            continue
        assert all(np.array_equal(part, parts[0]) for part in parts), (kinds, name)
        np.testing.assert_allclose(parts[0], expected, rtol=1e-5, atol=1e-6, err_msg=f"{kinds} {name}")
        if name.removeprefix("after/") in SAME_ORDER[kinds]:
            assert np.array_equal(parts[0], expected), (kinds, name)


def test_ids_that_were_sent_ahead_change_no_bit_on_one_rank(alone: dict[str, Any]) -> None:
    assert alone["ahead"] == {f"after/{name}": True for name in TABLES}


@pytest.mark.horovod
def test_ids_that_were_sent_ahead_change_no_bit(together: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    assert all(answer["ahead"] == alone["ahead"] for answer in together)


def test_ids_that_another_layer_sent_are_refused() -> None:
    ids, lengths = tf.constant([1, 2], tf.int64), tf.ones([2, 1], tf.int64)
    local, travelling = one_table("data_parallel"), one_table("column_wise", num_slices=2)
    with pytest.raises(EmbeddingError, match="another layer sent them"):
        local.lookup_sent(travelling.send_ids(ids, lengths))


@pytest.mark.horovod
def test_ranks_hold_their_rectangles_and_take_whole_tables_apart(together: list[dict[str, Any]]) -> None:
    held = [
        sorted((name, *shape) for name, *shape in answer["held"] if name in ("rows", "tiny")) for answer in together
    ]
    assert (
        held
        == {
            2: [[("rows", 25, 3), ("tiny", 1, 2)]] * 2,
            3: [[("rows", 17, 3)], [("rows", 17, 3), ("tiny", 1, 2)], [("rows", 16, 3), ("tiny", 1, 2)]],
        }[len(together)]
    )
    assert [answer["set"] for answer in together] == [[True] * len(TABLES)] + [[]] * (len(together) - 1)


@pytest.mark.horovod
def test_a_table_travels_in_its_own_format(together: list[dict[str, Any]]) -> None:
    for answer in together:
        assert {name for name, moved in answer["rounding"].items() if moved > 0} <= {"rows", "whole"}
    for name in ("rows", "whole"):
        assert 0 < max(answer["rounding"][name] for answer in together) < 0.02


def test_one_rank_pools_as_numpy_does() -> None:
    layer = build(ALONE, "pooled")
    tables = layer.get_weights()
    ids, weights, _ = batch("pooled", 0, ALONE)
    outputs = layer(ids, weights=weights)
    for number, (item, output) in enumerate(zip(layer.inputs, outputs, strict=True)):
        bags = to_bags(ids[number])
        given = weights[number]
        factors = None if given is None else np.concatenate(to_bags(given)).astype(np.float32)
        expected = pooled_lookup(
            [tables[list(TABLES).index(item.table)]],
            np.concatenate(bags).astype(np.int64),
            np.cumsum([0, *map(len, bags)]),
            feature_tables=[0],
            combiners=[str(item.combiner)],
            weights=factors,
        )
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6, err_msg=item.name)


def test_one_rank_takes_rows_apart_as_numpy_does() -> None:
    layer = build(ALONE, "apart")
    tables = layer.get_weights()
    ids, weights, _ = batch("apart", 0, ALONE)
    outputs = layer(ids, weights=weights)
    for number, item in enumerate(layer.inputs):
        if item.combiner is not None:
            continue
        table, output = tables[NAMES["apart"].index(item.table)], outputs[number]
        if isinstance(output, tf.RaggedTensor):
            assert output.row_lengths().numpy().tolist() == ids[number].row_lengths().numpy().tolist()
            assert np.array_equal(output.values, table[ids[number].values])
        else:
            assert np.array_equal(output, table[ids[number]])


def to_bags(tensor: Any) -> list[Any]:
    if isinstance(tensor, tf.SparseTensor):
        tensor = tf.RaggedTensor.from_sparse(tensor)
    if isinstance(tensor, tf.RaggedTensor):
        return [np.array(bag) for bag in tensor.to_list()]
    return list(tensor.numpy().reshape(len(tensor), -1))


def one_table(mode: Any, **options: Any) -> DistributedEmbedding:
    table = TableSpec("a", 6, 4)
    plan = Plan((table,), (place(table, mode, num_ranks=1, **options),), 1)
    inputs = [Input("x", "a"), Input("y", "a", None)]
    return DistributedEmbedding([EmbeddingSpec(6, 4, "a")], inputs=inputs, plan=plan)


@pytest.mark.parametrize(("mode", "options"), [("data_parallel", {}), ("column_wise", {"num_slices": 2})])
@pytest.mark.parametrize("bad", [-1, 6, 2**40])
@pytest.mark.parametrize("kind", ["flat", "ragged"])
def test_an_id_out_of_range_is_named_with_its_input(mode: Any, options: dict[str, Any], bad: int, kind: str) -> None:
    layer = one_table(mode, **options)
    wrong = tf.constant([0, bad]) if kind == "flat" else tf.ragged.constant([[0], [bad, 9]], dtype=tf.int64)
    message = f"id {bad} of input y is out of range: table a has 6 rows"
    for call in (layer, tf.function(layer, autograph=False)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call([tf.constant([1, 5]), wrong])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([None], "was given 1 of weights; expected a list of 2"),
        ([None, tf.ones([2, 1])], "input 'y' has weights, but no combiner"),
        ([tf.ragged.constant([[1.0], [2.0]]), None], "its weights are a RaggedTensor of float32"),
        ([tf.constant([1, 2]), None], "of int32; expected floats of the same kind"),
    ],
)
def test_refuses_weights_that_do_not_fit(weights: list[Any], message: str) -> None:
    with pytest.raises(EmbeddingError, match=message):
        one_table("table_wise").call([tf.constant([0, 1]), tf.constant([[0, 1], [1, 2]])], weights=weights)


def test_refuses_too_few_weights() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="'x' has another number of weights than of ids"):
        one_table("table_wise").call([tf.constant([0, 1]), tf.constant([0, 1])], weights=[tf.ones([1]), None])


def test_a_packed_lookup_without_a_combiner_needs_one_id_in_each_bag() -> None:
    layer = one_table("table_wise")
    ids = tf.constant([0, 1, 1, 5], tf.int64)
    rows = layer.lookup(ids, tf.constant([[2, 0], [1, 1]]))
    assert np.array_equal(rows[:, 4:], layer.get_weights()[0][[1, 5]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="without a combiner a bag needs one id, but some of 'y'"):
        layer.lookup(ids, tf.constant([[1, 1], [2, 0]]))


@pytest.mark.parametrize("file", ["weights.h5", "all.weights.h5", "checkpoint"])
def test_keras_saves_and_loads_each_slice(tmp_path: Path, file: str) -> None:
    ids = tf_keras.Input((), dtype="int64")
    models = [tf_keras.Model(ids, one_table("column_wise", num_slices=2)([ids, ids])) for _ in range(2)]
    layers = [model.layers[-1] for model in models]
    layers[0].set_weights([np.arange(24.0).reshape(6, 4)])
    models[0].save_weights(tmp_path / file)
    models[1].load_weights(tmp_path / file)
    assert np.array_equal(layers[1].get_weights()[0], np.arange(24.0).reshape(6, 4))


def test_tables_come_from_files_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    layer = one_table("column_wise", num_slices=3)
    values = np.arange(24.0).reshape(6, 4)
    np.save(tmp_path / "a.npy", values)
    layer.set_weights([tmp_path / "a.npy"])
    assert np.array_equal(layer.get_weights()[0], values)
    (tmp_path / "b.npy").write_bytes(b"no table")
    (tmp_path / "empty.npy").touch()
    for wrong, message in [
        ([], "there are 0 weights for 1 tables"),
        ([tmp_path / "b.npy"], "table 'a': .*b.npy cannot be read"),
        ([tmp_path / "empty.npy"], "table 'a': .*empty.npy cannot be read"),
        ([values.T], r"table 'a': its weights are float64 of shape \(4, 6\); expected floats of shape \(6, 4\)"),
        ([values.astype(int)], "are int64 of shape"),
    ]:
        with pytest.raises(EmbeddingError, match=message):
            layer.set_weights(wrong)
    assert np.array_equal(layer.get_weights()[0], values)


def test_initial_values_do_not_depend_on_the_plan() -> None:
    for initializer in (None, "normal", "orthogonal", tf.constant_initializer(np.arange(24).reshape(6, 4))):
        tables = []
        for mode, options in [("data_parallel", {}), ("table_wise", {}), ("column_wise", {"num_slices": 3})]:
            table = TableSpec("a", 6, 4)
            plan = Plan((table,), (place(table, mode, num_ranks=1, **options),), 1)
            spec = EmbeddingSpec(6, 4, "a", embeddings_initializer=initializer)
            tables += DistributedEmbedding([spec], plan=plan, seed=2).get_weights()
        assert np.array_equal(tables[0], tables[1])
        assert np.array_equal(tables[0], tables[2])
