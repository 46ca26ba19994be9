"""Whole scripts on two ranks, held against plain Keras on one; all of them in one launch."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.compat.distributed_embeddings import DistributedEmbedding, IntegerLookup
from rankhouse.training.compat.distributed_embeddings import dist_model_parallel as dmp
from rankhouse.training.errors import OptimizerError
from tests.training.compat import scripts
from tests.training.compat.scripts import BATCH, BY_TABLE, INPUTS, TABLES, Model
from tests.training.launching import run_on_ranks

EVERY_WAY = {"data_parallel_threshold": 50, "row_slice_threshold": 400, "column_slice_threshold": 100}
legacy = tf_keras.optimizers.legacy


# By name: the inputs, the optimizer, and the options of the layer.
LOOPS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "basic": (INPUTS, lambda: legacy.SGD(0.1), {}),
    "memory_balanced, columns": (
        INPUTS,
        lambda: legacy.Adagrad(0.1),
        {"strategy": "memory_balanced", "column_slice_threshold": 60},
    ),
    "memory_optimized, every way": (
        INPUTS,
        # Its rows rest unless they are touched, also where every rank holds them.
        lambda: legacy.Ftrl(0.1),
        {"strategy": "memory_optimized", "in_graph": True, **EVERY_WAY},
    ),
    "uneven batches": (INPUTS, lambda: tf_keras.optimizers.Adam(0.1), {"cuts": [0, 6, 8], **EVERY_WAY}),
    "inputs by table": (
        BY_TABLE,
        lambda: legacy.SGD(0.1),
        {"dp_input": False, "column_slice_threshold": 60},
    ),
}


def run(ranks: Any, directory: Path) -> dict[str, Any]:
    """Runs on each rank."""
    differences = {}
    for name, (inputs, make_optimizer, options) in LOOPS.items():
        model = scripts.train_by_tape(ranks, inputs, make_optimizer, **options)
        differences[name] = scripts.difference(model, scripts.train_alone(inputs, make_optimizer))
    make_optimizer = tf_keras.optimizers.Adam
    model = scripts.train_by_fit(ranks, INPUTS, make_optimizer(0.1), **EVERY_WAY)
    differences["fit"] = scripts.difference(model, scripts.train_alone(INPUTS, lambda: make_optimizer(0.1)))
    return {
        "differences": differences,
        "initial": digests(make_layer(**EVERY_WAY).get_weights(all_ranks=True)),
        "weights": exchange_weights(ranks, directory),
        "shapes": shapes(),
        "half": half(),
        "broadcast": broadcast(ranks),
        "gradients": gradients(ranks),
        "clipped": clipped(ranks),
        "clipped together": clipped_together(ranks),
        "overflow": overflow(ranks),
        "vocabulary": vocabulary(ranks),
        "errors": errors(ranks),
    }


def make_layer(**options: Any) -> DistributedEmbedding:
    layer = Model(INPUTS, options).embedding
    layer.build()
    return layer


def digests(tables: list[Any]) -> list[str]:
    return [hashlib.sha256(np.ascontiguousarray(table).tobytes()).hexdigest() for table in tables]


def exchange_weights(ranks: Any, directory: Path) -> dict[str, Any]:
    """From files, of which each rank maps its part, also of tables that every rank holds."""
    own = directory / str(ranks.rank)
    own.mkdir()
    layer = make_layer(**EVERY_WAY)
    layer.set_weights(scripts.saved_tables(own), chunk=16, use_lock=True)
    expected = scripts.initial_tables()
    equal = [np.array_equal(*pair) for pair in zip(layer.get_weights(True), expected, strict=True)]
    held = {bool(getattr(variable, "de_local", False)) for variable in layer.weights}
    return {"equal": all(equal), "from one rank": len(layer.get_weights()), "held": sorted(held)}


def shapes() -> list[Any]:
    layer = make_layer(**EVERY_WAY)
    return [list(output.shape) for output in layer(scripts.batch_of(0, INPUTS)[0])]


def half() -> list[bool]:
    """Rows that travel in the compute dtype are what would be cast to it anyway."""
    batch, _ = scripts.batch_of(0, INPUTS)
    whole = make_layer()
    small = dmp.DistributedEmbedding(Model(INPUTS).tables, input_table_map=[0, 1, 2, 3, 4, 1], dtype="mixed_bfloat16")
    pairs = zip(whole(batch), small(batch), strict=True)
    return [bool(tf.reduce_all(tf.cast(one, tf.bfloat16) == other)) for one, other in pairs]


def broadcast(ranks: Any) -> dict[str, bool]:
    """After the first batch of `fit` all ranks have the dense layers of rank 0, and their own tables and slots."""
    model = Model(INPUTS, {})
    batch, labels = scripts.batch_of(0, INPUTS)
    model(batch)
    model.top.set_weights([weight + ranks.rank for weight in model.top.get_weights()])
    tables = digests(model.get_tables())
    model.compile(legacy.Adagrad(0.0), "mse", run_eagerly=True)
    data = tf.data.Dataset.from_tensors((tuple(batch), labels))
    model.fit(data, callbacks=[dmp.BroadcastGlobalVariablesCallback(0)], verbose=0)
    answers = ranks.allgather(model(batch)[tf.newaxis], name="answers").numpy()
    return {"same answers": bool((answers[0] == answers[1]).all()), "own tables": digests(model.get_tables()) == tables}


def gradients(ranks: Any) -> dict[str, Any]:
    """Horovod's arguments, on a variable of all ranks and on one of this rank."""
    import horovod.tensorflow as hvd  # Where this process is not a rank: it would make tf.keras Keras 3 for all tests.

    shared, own = tf.Variable([1.0, 1.0]), tf.Variable([1.0], name=f"own_of_{ranks.rank}")
    found = {}
    options: dict[str, dict[str, Any]] = {
        "default": {},
        "sum": {"op": hvd.Sum, "scale_local_gradients": False},
        "fp16": {"compression": hvd.Compression.fp16},
    }
    for name, arguments in options.items():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared) * (ranks.rank + 1.0) + own[0] * 4.0
        tape = dmp.DistributedGradientTape(tape, **arguments)
        tape.register_local_source(own)
        found[name] = [gradient.numpy().tolist() for gradient in tape.gradient(loss, [shared, own])]
    return found


def clipped(ranks: Any) -> list[list[float]]:
    """A step of gradients with norm 9 over both ranks, clipped to 1."""
    found = []
    for make in (tf_keras.optimizers.SGD, legacy.SGD):
        shared, own = tf.Variable([0.0, 0.0]), tf.Variable([[0.0], [0.0]], name="own_rows")
        dmp.DistributedGradientTape(tf.GradientTape()).register_local_source(own)
        rows = tf.IndexedSlices(tf.constant([[5.0 if ranks.rank else 2.0]]), tf.constant([1]), tf.constant([2, 1]))
        optimizer = dmp.DistributedOptimizer(make(1.0, global_clipnorm=1.0))
        optimizer.apply_gradients([(tf.constant([4.0, 6.0]), shared), (rows, own)])
        found += [*shared.numpy().tolist(), *own.numpy()[:, 0].tolist()]
    return found


def clipped_together(ranks: Any) -> list[float]:
    """Steps of a function, clipped to 1, of what every rank holds: one rank has nothing of its own to say of a norm."""
    shared = tf.Variable([0.0, 0.0])
    optimizer = dmp.DistributedOptimizer(tf_keras.optimizers.SGD(1.0, global_clipnorm=1.0))
    optimizer.build([shared])

    @tf.function(autograph=False)
    def step(slopes: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(shared * slopes)
        optimizer.minimize(loss, [shared], tape=tape)

    for number in (1.0, 2.0):
        step(number * tf.constant([6.0, 0.0] if ranks.rank else [0.0, 8.0]))
    return list(shared.numpy().tolist())


def overflow(ranks: Any) -> list[bool]:
    """Whether a dense gradient is finite, where that of a row of rank 1 is not; by Keras' policy."""
    found = []
    for policy in ("float32", "mixed_float16"):
        shared, own = tf.Variable([1.0]), tf.Variable([1.0], name="own_number")
        with tf.GradientTape() as tape:
            loss = shared[0] + own[0] * (np.inf if ranks.rank else 1.0)
        tape = dmp.DistributedGradientTape(tape)
        tape.register_local_source(own)
        tf_keras.mixed_precision.set_global_policy(policy)
        try:
            found.append(bool(np.isfinite(tape.gradient(loss, [shared, own])[0])))
        finally:
            tf_keras.mixed_precision.set_global_policy("float32")
    return found


def vocabulary(ranks: Any) -> list[int]:
    lookup = IntegerLookup(5, name="lookup")
    lookup(tf.constant([[70], [10]]) if ranks.rank else tf.constant([30, 20, 30, 10]))
    return lookup.get_vocabulary()


def errors(ranks: Any) -> dict[str, str]:
    found = {}
    by_table = Model(BY_TABLE, {"dp_input": False}).embedding
    batch, _ = scripts.batch_of(0, BY_TABLE)
    odd = [scripts.part_of(batch[number], 1, BATCH) for number in by_table.strategy.input_ids_list[ranks.rank]]
    calls = {
        "indivisible": lambda: by_table(odd),
        "too few": lambda: DistributedEmbedding([tf_keras.layers.Embedding(9, 1)], dp_input=False),
        "not built": lambda: Model(INPUTS, {}).embedding.set_weights(scripts.initial_tables()),
        "root": lambda: dmp.broadcast_variables([], root_rank=2),
        "clipnorm": lambda: clip_a_cut_table(),
        "adafactor": lambda: dmp.DistributedOptimizer(tf_keras.optimizers.Adafactor()),
    }
    for name, call in calls.items():
        try:
            call()
        except (ValueError, OptimizerError) as error:
            found[name] = str(error)
    return found


def clip_a_cut_table() -> None:
    variables = make_layer(**EVERY_WAY).trainable_variables
    dmp.DistributedOptimizer(legacy.SGD(clipnorm=1.0)).apply_gradients([(tf.zeros_like(v), v) for v in variables])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_on_ranks(run, tmp_path_factory.mktemp("compat"), num_ranks=2)


@pytest.mark.horovod
@pytest.mark.parametrize("script", [*LOOPS, "fit"])
def test_a_script_trains_on_two_ranks_what_keras_trains_on_one(answers: list[dict[str, Any]], script: str) -> None:
    for answer in answers:
        assert answer["differences"][script] < 1e-5


@pytest.mark.horovod
def test_initial_values_are_those_of_one_rank_and_of_no_neighbour(answers: list[dict[str, Any]]) -> None:
    alone = make_layer().get_weights()
    for answer in answers:
        assert answer["initial"] == digests(alone)
    # Two tables of one width and one range of values, which lay in one variable there.
    assert not np.array_equal(alone[0][:12], alone[4])


@pytest.mark.horovod
def test_weights_come_from_files_and_go_to_the_ranks_that_want_them(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["weights"]["equal"]
        assert answer["weights"]["held"] == [False, True]
    assert [answer["weights"]["from one rank"] for answer in answers] == [len(TABLES), 0]


@pytest.mark.horovod
def test_outputs_have_the_shapes_of_keras_for_every_kind_of_input(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["shapes"] == [[8, 4], [8, 4], [8, 6], [8, 2, 8], [8, 4], [8, 4]]


@pytest.mark.horovod
def test_in_a_compute_dtype_of_16_bits_rows_travel_in_it(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["half"] == [True] * len(INPUTS)


@pytest.mark.horovod
def test_a_broadcast_reaches_what_every_rank_holds_and_nothing_else(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["broadcast"] == {"same answers": True, "own tables": True}


@pytest.mark.horovod
def test_a_tape_takes_the_arguments_of_horovod(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["gradients"]["default"] == answer["gradients"]["fp16"] == [[1.5, 1.5], [2.0]]
        assert answer["gradients"]["sum"] == [[3.0, 3.0], [4.0]]


@pytest.mark.horovod
def test_a_global_norm_is_that_of_all_ranks_so_what_they_share_stays_the_same(answers: list[dict[str, Any]]) -> None:
    for answer, own in zip(answers, (2.0, 5.0), strict=True):
        np.testing.assert_allclose(answer["clipped"], [-4 / 9, -6 / 9, 0, -own / 9] * 2, rtol=1e-6)
    assert answers[0]["clipped"][:2] == answers[1]["clipped"][:2]


@pytest.mark.horovod
def test_a_global_norm_is_known_in_every_step_where_a_rank_holds_nothing_alone(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        np.testing.assert_allclose(answer["clipped together"], [-1.2, -1.6], rtol=1e-6)


@pytest.mark.horovod
def test_an_overflow_in_a_table_of_one_rank_is_known_to_all(answers: list[dict[str, Any]]) -> None:
    assert [answer["overflow"] for answer in answers] == [[True, False]] * 2


@pytest.mark.horovod
def test_all_ranks_learn_the_same_keys(answers: list[dict[str, Any]]) -> None:
    assert [answer["vocabulary"] for answer in answers] == [[-1, 30, 20, 10, 70]] * 2


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("indivisible", "not divisible by the 2 ranks, each of which gets an equal part: it has 7 samples"),
        ("too few", "every rank must hold a table, but of 2 ranks 1 holds none"),
        ("not built", "before it has tables: call the layer or its build() first"),
        ("root", "root_rank is 2: expected one of the 2 ranks"),
        ("clipnorm", "ranks hold parts of table 'table_0', and none its norm; take global_clipnorm"),
        ("adafactor", "Adafactor on 2 ranks: it scales a step by means over a whole table"),
    ],
)
def test_what_cannot_be_is_an_error_on_every_rank(answers: list[dict[str, Any]], call: str, message: str) -> None:
    for answer in answers:
        assert message in answer["errors"][call]
