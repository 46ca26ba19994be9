import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.kernels.optimizer_settings import Adagrad
from rankhouse.training.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from rankhouse.training.checkpoint.files import step_folder
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import EmbeddingError
from rankhouse.training.exchange.wire_format import WireDtypes, WireFormat
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, TableSpec, make_plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input
from tests.training.launching import run_on_ranks
from tests.training.small_model import SPECS, arrays, build, train

ALONE = Ranks(0, 1)
NUM_STEPS = 50
THRESHOLDS = {"every table whole": 0, "every table everywhere": 1000}


def train_everything(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains with checkpoints, then under other plans, then from the checkpoint of one rank; runs on each rank."""
    root = directory / f"checkpoints-{ranks.size}"
    state = build(ranks)
    losses = train(state, ranks, 0, NUM_STEPS // 2)
    save_checkpoint(root, state, ranks=ranks, step=NUM_STEPS // 2, document={"epoch": 1})
    losses += train(state, ranks, NUM_STEPS // 2, NUM_STEPS)
    save_checkpoint(root, state, ranks=ranks, step=NUM_STEPS, document={"epoch": 2})
    replicas = b"".join(shard.variable.numpy().tobytes() for shard in state.embedding.shards if shard.replicated)
    return {
        "losses": losses,
        "owned": [shard.table for shard in state.embedding.shards if not shard.replicated],
        "replicas": hashlib.sha256(replicas).hexdigest(),
        "other plans": {
            name: train(build(ranks, threshold=threshold), ranks, 0, 5) for name, threshold in THRESHOLDS.items()
        },
        "resumed": resume(directory / "checkpoints-1", ranks),
    }


def resume(root: Path, ranks: Ranks) -> list[float]:
    state = build(ranks, seed=99)
    load_checkpoint(step_folder(root, NUM_STEPS // 2), state, ranks=ranks)
    return train(state, ranks, NUM_STEPS // 2, NUM_STEPS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("parity")


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    return train_everything(ALONE, directory)


@pytest.fixture(scope="module", params=[2, 3])
def together(request: pytest.FixtureRequest, directory: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    return run_on_ranks(train_everything, directory, num_ranks=request.param)


@pytest.mark.horovod
def test_n_ranks_train_as_one_does(alone: dict[str, Any], together: list[dict[str, Any]], directory: Path) -> None:
    for answer in together:
        np.testing.assert_allclose(answer["losses"], alone["losses"], rtol=1e-5)
    expected = arrays(step_folder(directory / "checkpoints-1", NUM_STEPS))
    found = arrays(step_folder(directory / f"checkpoints-{len(together)}", NUM_STEPS))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.horovod
def test_tables_lie_where_the_plan_says_and_copies_are_equal_to_the_bit(together: list[dict[str, Any]]) -> None:
    assert [answer["owned"] for answer in together] == [["user"], ["item"], []][: len(together)]
    assert len({answer["replicas"] for answer in together}) == 1


@pytest.mark.horovod
def test_plans_do_not_change_the_training(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    for name in THRESHOLDS:
        for answer in together:
            np.testing.assert_allclose(answer["other plans"][name], alone["losses"][:5], rtol=1e-5, err_msg=name)


@pytest.mark.horovod
def test_n_ranks_go_on_from_the_checkpoint_of_one(alone: dict[str, Any], together: list[dict[str, Any]]) -> None:
    for answer in together:
        np.testing.assert_allclose(answer["resumed"], alone["losses"][NUM_STEPS // 2 :], rtol=1e-5)


@pytest.mark.horovod
def test_one_rank_goes_on_from_the_checkpoint_of_n(
    alone: dict[str, Any], together: list[dict[str, Any]], directory: Path
) -> None:
    resumed = resume(directory / f"checkpoints-{len(together)}", ALONE)
    np.testing.assert_allclose(resumed, alone["losses"][NUM_STEPS // 2 :], rtol=1e-5)


def test_one_rank_resumes_to_the_bit(alone: dict[str, Any]) -> None:
    assert alone["resumed"] == alone["losses"][NUM_STEPS // 2 :]


def keras_layers() -> list[tf_keras.layers.Embedding]:
    layers = [
        tf_keras.layers.Embedding(20, 4, name="a", embeddings_initializer=tf_keras.initializers.RandomNormal(seed=1)),
        tf_keras.layers.Embedding(30, 8, name="b", embeddings_initializer=tf_keras.initializers.RandomNormal(seed=2)),
    ]
    for layer in layers:
        layer.build(None)
    return layers


def test_trains_as_plain_keras_does() -> None:
    """Shared tables, several ids in a bag, dense and ragged inputs; Keras pools its own layers' rows by reduce_sum."""
    plain = keras_layers()
    ours = DistributedEmbedding(plain, input_table_map=[0, 1, 0, 1])
    assert [item.name for item in ours.inputs] == ["a", "b", "a#1", "b#1"]
    keras = tf_keras.optimizers.legacy.Adagrad(0.5)
    optimizer = Optimizer(Adagrad(), tables=ours.trainable_variables, learning_rate=0.5)
    generator = np.random.default_rng(3)
    for _ in range(10):
        one, pair = tf.constant(generator.integers(0, 20, 6)), tf.constant(generator.integers(0, 20, (6, 2)))
        many = tf.RaggedTensor.from_row_lengths(generator.integers(0, 30, 9), [0, 3, 0, 1, 5, 0])
        column = tf.constant(generator.integers(0, 30, (6, 1)), tf.int32)
        inputs = [one, column, pair, many]
        target = tf.constant(generator.normal(size=(6, 24)), tf.float32)
        with tf.GradientTape() as tape:
            rows = [plain[0](one), plain[1](column)[:, 0], tf.reduce_sum(plain[0](pair), axis=1)]
            rows.append(tf.reduce_sum(tf.gather(plain[1].embeddings, many), axis=1))
            loss = tf.reduce_mean((tf.concat(rows, axis=1) - target) ** 2)
        sources = [layer.embeddings for layer in plain]
        keras.apply_gradients(zip(tape.gradient(loss, sources), sources, strict=True))
        with tf.GradientTape() as tape:
            outputs = ours(inputs)
            our_loss = tf.reduce_mean((tf.concat(outputs, axis=1) - target) ** 2)
        tables = ours.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(our_loss, tables), tables, strict=True))
        assert [tuple(output.shape) for output in outputs] == [(6, 4), (6, 8), (6, 4), (6, 8)]
        assert float(our_loss) == pytest.approx(float(loss), rel=1e-5)
    for table, layer in zip(ours.trainable_variables, plain, strict=True):
        np.testing.assert_allclose(table.numpy(), layer.embeddings.numpy(), rtol=1e-5, atol=1e-6)


def test_an_empty_batch_and_empty_bags_are_zeros() -> None:
    layer = DistributedEmbedding(SPECS)
    assert layer.lookup(tf.zeros([0], tf.int64), tf.zeros([3, 0], tf.int32)).shape == (0, 10)
    assert not layer.lookup(tf.zeros([0], tf.int64), tf.zeros([3, 2], tf.int32)).numpy().any()


def test_initial_values_belong_to_seed_and_table_alone() -> None:
    one = DistributedEmbedding([EmbeddingSpec(30, 4, "a"), EmbeddingSpec(9, 4, "b")], seed=5)
    other = DistributedEmbedding([EmbeddingSpec(9, 4, "b"), EmbeddingSpec(30, 4, "a")], seed=5)
    assert np.array_equal(one.shards[0].variable.numpy(), other.shards[1].variable.numpy())
    assert np.abs(one.shards[0].variable.numpy()).max() < 30**-0.5
    reseeded = DistributedEmbedding([EmbeddingSpec(30, 4, "a")], seed=6)
    assert not np.array_equal(one.shards[0].variable.numpy(), reseeded.shards[0].variable.numpy())


def test_a_default_keras_layer_keeps_its_bound() -> None:
    layer = DistributedEmbedding([tf_keras.layers.Embedding(1000, 4, name="a")])
    assert 0.049 < np.abs(layer.shards[0].variable.numpy()).max() < 0.05


def test_works_in_a_keras_model_and_comes_back_from_its_configuration() -> None:
    layer = DistributedEmbedding(
        [EmbeddingSpec(30, 4, "a", embeddings_initializer="ones"), {"input_dim": 9, "output_dim": 2, "name": "b"}],
        inputs=[Input("x", "b", "mean"), Input("y", "a")],
        name="embedding",
    )
    x, y = tf_keras.Input((), dtype=tf.int64), tf_keras.Input((None,), ragged=True, dtype=tf.int64)
    model = tf_keras.Model([x, y], tf_keras.layers.Concatenate()(layer([x, y])))
    ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    assert model([tf.constant([1, 2, 8]), ragged])[:, 2:].numpy().tolist() == [[2.0] * 4, [0.0] * 4, [1.0] * 4]
    again = DistributedEmbedding.from_config(layer.get_config())
    assert (again.inputs, again.name, again.output_dim) == (layer.inputs, "embedding", 6)
    assert np.array_equal(again.shards[1].variable.numpy(), layer.shards[1].variable.numpy())


@pytest.mark.parametrize(
    ("embeddings", "options", "message"),
    [
        ([], {}, "there are no inputs"),
        ([3], {}, "cannot make an embedding table of 3"),
        ([EmbeddingSpec(3, 2, "a"), EmbeddingSpec(3, 2, "a")], {}, "named 'a'"),
        ([{"input_dim": 3, "output_dims": 2, "name": "a"}], {}, "unknown key 'output_dims'.*did you mean 'output_dim'"),
        ([{"input_dim": 3, "name": "a"}], {}, "lacks 'output_dim'"),
        ([tf_keras.layers.Embedding(3, 2, mask_zero=True, name="a")], {}, "'a' has mask_zero"),
        (
            [tf_keras.layers.Embedding(3, 2, embeddings_regularizer="l2", name="a")],
            {},
            "'a' has an embeddings_regularizer",
        ),
        (SPECS, {"input_table_map": [0, 3]}, r"input_table_map\[1\] is 3"),
        (SPECS, {"inputs": [Input("x", "shopp")]}, "unknown table 'shopp'; did you mean 'shop'"),
        (SPECS, {"inputs": [Input("x", "shop"), Input("x", "item")]}, "2 inputs are named 'x'"),
        (SPECS, {"inputs": [Input("x", "shop")], "input_table_map": [0]}, "both given"),
        (SPECS, {"plan": make_plan([TableSpec("user", 40, 4)], num_ranks=2)}, "is for 2 ranks, but 1 train"),
        (SPECS, {"plan": make_plan([TableSpec("user", 41, 4)], num_ranks=1)}, "'user' has 40 rows .* plan has 41 rows"),
        (SPECS, {"plan": make_plan([TableSpec("user", 40, 4)], num_ranks=1)}, "'shop' .* the plan has no such table"),
    ],
)
def test_refuses_tables_and_inputs_that_contradict(embeddings: list, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EmbeddingError, match=message):
        DistributedEmbedding(embeddings, **options)


def test_rows_travel_as_the_plan_says() -> None:
    spec = TableSpec("a", 8, 4)
    placed = replace(place(spec, "table_wise", num_ranks=1), wire=WireDtypes("bfloat16", "int8"))
    layer = DistributedEmbedding([EmbeddingSpec(8, 4, "a")], plan=Plan((spec,), (placed,), 1))
    assert layer.wires == {"a": WireFormat(forward="bfloat16", backward="int8")}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"input_dim": 0}, "'a' has input_dim = 0"),
        ({"output_dim": 1.5}, "'a' has output_dim = 1.5"),
        ({"combiner": "max"}, "'a' has the combiner 'max'; expected one of sum, mean"),
        ({"name": ""}, "empty name"),
    ],
)
def test_refuses_impossible_tables(values: dict[str, Any], message: str) -> None:
    with pytest.raises(EmbeddingError, match=message):
        EmbeddingSpec(**{"input_dim": 3, "output_dim": 2, "name": "a", **values})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([tf.zeros([2], tf.int64)], "was given 1 of inputs; expected a list of 2"),
        ([tf.zeros([2], tf.int64), tf.zeros([2])], "input 'b' has dtype float32; expected integer ids"),
        ([tf.zeros([2], tf.int64), tf.zeros([2, 1, 1], tf.int64)], r"input 'b' has shape \(2, 1, 1\)"),
        (
            [tf.zeros([1], tf.int64), tf.ragged.constant([[[1]]], dtype=tf.int64)],
            r"input 'b' is ragged of shape \(1, None, None\)",
        ),
    ],
)
def test_refuses_inputs_of_another_shape(inputs: list[Any], message: str) -> None:
    layer = DistributedEmbedding([EmbeddingSpec(3, 2, "a"), EmbeddingSpec(3, 2, "b")])
    with pytest.raises(EmbeddingError, match=message):
        layer.call(inputs)


def test_an_id_out_of_range_is_named() -> None:
    layer = DistributedEmbedding([EmbeddingSpec(3, 2, "a"), EmbeddingSpec(3, 2, "b")])
    with pytest.raises(tf.errors.InvalidArgumentError, match="3"):
        layer([tf.constant([0, 1]), tf.constant([2, 3])])
