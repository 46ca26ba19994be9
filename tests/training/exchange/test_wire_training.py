"""A layer whose rows are rounded on the wire, in both kinds of exchange, on two ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from rankhouse.kernels.optimizer_settings import Sgd
from rankhouse.kernels.reference.rows import dequantize_rows, quantize_rows
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import WireError
from rankhouse.training.exchange.wire_format import RELATIVE_ERRORS, WireFormat
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec
from tests.training.launching import run_on_ranks

SPECS = [EmbeddingSpec(40, 4, "user"), EmbeddingSpec(60, 3, "item"), EmbeddingSpec(30, 2, "shop")]
PLACES: list[tuple[Any, dict[str, Any]]] = [
    ("table_wise", {"ranks": [0]}),
    ("row_wise", {}),
    ("table_wise", {"ranks": [1], "exchange": "rows"}),
]
BATCH, MAX_HOTNESS, NUM_STEPS = 24, 3, 24
SCALE = {"gradient_scale": 16.0, "measure_every": 10}
FORMATS: dict[str, Any] = {
    "float32": None,
    "bfloat16": WireFormat(forward="bfloat16", backward="bfloat16", **SCALE),
    "int8": WireFormat(forward="int8", backward="int8", **SCALE),
    "by_table": {
        "user": WireFormat(forward="int8", backward="float16", **SCALE),
        "shop": WireFormat(forward="float16", backward="bfloat16", **SCALE),
    },
}


def build(ranks: Ranks, wire: Any, name: str = "embedding") -> DistributedEmbedding:
    tables = tuple(spec.table_spec() for spec in SPECS)
    placements = [
        place(table, mode, num_ranks=ranks.size, **(more if ranks.size > 1 else {}))
        for table, (mode, more) in zip(tables, PLACES, strict=True)
    ]
    plan = Plan(tables, tuple(placements), ranks.size)
    return DistributedEmbedding(SPECS, ranks=ranks, plan=plan, seed=5, wire=wire, name=name)


def batch(step: int, part: slice) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Ids, lengths and labels of some samples of a step; every third step has the same."""
    generator = np.random.default_rng([step % 3])
    lengths = generator.integers(0, MAX_HOTNESS + 1, (len(SPECS), BATCH))
    bags = [[generator.integers(0, spec.input_dim, n) for n in row] for spec, row in zip(SPECS, lengths, strict=True)]
    ids = np.concatenate([np.empty(0, np.int64), *(bag for row in bags for bag in row[part])])
    labels = generator.normal(size=BATCH).astype(np.float32)
    return tf.constant(ids), tf.constant(lengths[:, part]), tf.constant(labels[part])


def part_of(ranks: Ranks) -> slice:
    return [slice(0, 17), slice(17, BATCH)][ranks.rank] if ranks.size > 1 else slice(0, BATCH)


def train(ranks: Ranks, wire: Any, name: str) -> dict[str, Any]:
    """Returns the outputs of the first step, and the mean loss of this rank's samples in every step."""
    layer = build(ranks, wire, name)
    tables = [shard.variable for shard in layer.shards]
    optimizer = Optimizer(Sgd(), tables=tables, learning_rate=0.5)
    kernel = tf.random.stateless_normal([layer.output_dim, 1], seed=[1, 2])

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([len(SPECS), None], tf.int64),
            tf.TensorSpec([None]),
        ],
        autograph=False,
    )
    def step(ids: tf.Tensor, lengths: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            outputs = layer.lookup(ids, lengths)
            loss = tf.reduce_sum((tf.squeeze(outputs @ kernel, axis=1) - labels) ** 2) / BATCH
        optimizer.apply_gradients(zip(tape.gradient(loss, tables), tables, strict=True))
        return outputs, loss

    steps = [step(*batch(number, part_of(ranks))) for number in range(NUM_STEPS)]
    return {"outputs": steps[0][0].numpy().tolist(), "losses": [float(loss) for _, loss in steps]}


def train_everything(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Runs on each of two ranks."""
    found: dict[str, Any] = {name: train(ranks, wire, name) for name, wire in FORMATS.items()}
    found["bytes"] = {name: count.sent for name, count in ranks.traffic.read().items()}
    found["roundings"] = {name: each.max_relative_error for name, each in ranks.traffic.roundings().items()}
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_on_ranks(train_everything, tmp_path_factory.mktemp("wire_training"), num_ranks=2)


def together(answers: list[Any], name: str, what: str) -> NDArray[np.float64]:
    """Outputs of all ranks, one below the other, or their losses, added up."""
    parts = [np.array(answer[name][what]) for answer in answers]
    return np.concatenate(parts) if what == "outputs" else sum(parts, np.zeros(NUM_STEPS))


@pytest.mark.horovod
@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
def test_outputs_are_those_of_rounded_rows_on_every_rank(answers: list[Any], name: str) -> None:
    """To the bit where rows travel, wherever they lie; where pooled rows do, those are rounded."""
    alone = build(Ranks(0, 1), None)
    ids, lengths, _ = batch(0, slice(0, BATCH))
    pooled = np.ascontiguousarray(alone.lookup(ids, lengths).numpy()[:, :4])
    alone.set_weights([dequantize_rows(quantize_rows(rows, name)) for rows in alone.get_weights()])
    found = np.float32(together(answers, name, "outputs"))
    np.testing.assert_array_equal(found[:, 4:], alone.lookup(ids, lengths).numpy()[:, 4:])
    np.testing.assert_array_equal(found[:, :4], dequantize_rows(quantize_rows(pooled, name)))


@pytest.mark.horovod
def test_each_table_may_have_its_format(answers: list[Any]) -> None:
    found, exact, int8 = (np.float32(together(answers, name, "outputs")) for name in ("by_table", "float32", "int8"))
    np.testing.assert_array_equal(found[:, :4], int8[:, :4])
    np.testing.assert_array_equal(found[:, 4:7], exact[:, 4:7])
    assert 0 < np.abs(found[:, 7:] - exact[:, 7:]).max() <= RELATIVE_ERRORS["float16"]


@pytest.mark.horovod
@pytest.mark.parametrize(("name", "bound"), [("bfloat16", 0.01), ("int8", 0.01), ("by_table", 0.01)])
def test_losses_stay_close_to_those_of_float32(answers: list[Any], name: str, bound: float) -> None:
    exact = together(answers, "float32", "losses")
    assert exact[-3:].sum() < 0.5 * exact[:3].sum()
    found = together(answers, name, "losses")
    assert np.abs(found - exact).max() < bound * exact[0]
    assert (found != exact).any()


@pytest.mark.horovod
def test_rounding_is_measured_and_within_its_bounds_and_bytes_are_fewer(answers: list[Any]) -> None:
    for answer in answers:
        for side in ("rows", "rows_gradient"):
            for dtype in ("bfloat16", "int8"):
                assert 0 < answer["roundings"][f"{dtype}_{side}"] <= RELATIVE_ERRORS[dtype], (dtype, side)
            assert answer["bytes"][f"float32_{side}"] == 2 * answer["bytes"][f"bfloat16_{side}"] > 0
        assert answer["bytes"]["float32_ids"] == answer["bytes"]["bfloat16_ids"]


def test_refuses_a_format_for_a_table_that_is_not_there() -> None:
    with pytest.raises(WireError, match="wire has a format for the table 'users', which there is not; did you mean"):
        build(Ranks(0, 1), {"users": WireFormat()})
