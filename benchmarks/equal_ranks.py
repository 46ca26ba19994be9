"""How equal 1, 2, 3 and 4 ranks train: which tables have the same bits after 50 steps, and by how much others differ.

    rankhouse bench equal_ranks

Tables in every mode, one-hot and pooled inputs whose ids follow a power law, batches of uneven parts. In the first
sheet a sample's gradient depends on its own rows alone, so that nothing but the order of sums can differ; in the second
one a synthetic model's dense layers stand behind the tables, and carry what differs anywhere into everything.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.support.machine import describe_machine
from benchmarks.support.sheet import Sheet, report
from rankhouse.training.tables.row_dtypes import ROW_DTYPES

ROWS, DIM, BATCH = 2000, 8, 192
# By name: mode and options of `place`.
MODES: dict[str, tuple[Any, dict[str, Any]]] = {
    "data_parallel": ("data_parallel", {}),
    "table_wise": ("table_wise", {}),
    "table_wise, rows": ("table_wise", {"exchange": "rows"}),
    "column_wise": ("column_wise", {"num_slices": 4}),
    "column_wise, rows": ("column_wise", {"num_slices": 4, "exchange": "rows"}),
    "row_wise": ("row_wise", {}),
}
RULES = ("Sgd", "Adagrad", "Adam", "Ftrl")
HOTNESS = (1, 5)
NETWORK_ROWS, NETWORK_BATCH = 2000, 1024


def main() -> None:
    """Starts the ranks and compares their tables, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50, help="training steps")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4], help="numbers of ranks beside 1")
    parser.add_argument(
        "--dtype", choices=ROW_DTYPES, default="float32", help="what the first sheet's rows are held in"
    )
    parser.add_argument("--output", type=Path, help="also write it as markdown")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        work(options.rank, options.steps, options.dtype)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Prints what is equal, and how far apart the rest is."""
    with tempfile.TemporaryDirectory() as folder:
        found = {size: run_ranks(size, options, Path(folder)) for size in (1, *options.ranks)}
    numbers = options.ranks
    sizes = [f"{size} ranks" for size in numbers]
    lines = [
        (mode, *(_difference(found, size, [f"{rule}/{mode}" for rule in RULES]) for size in numbers)) for mode in MODES
    ]
    parts = {"tables": "network/table", "dense layers": "network/dense", "losses": "network/losses"}
    network = [
        (what, *(_difference(found, size, [name for name in found[1] if name.startswith(start)]) for size in numbers))
        for what, start in parts.items()
    ]
    sheets = [
        Sheet(
            f"Tables of {options.dtype} after {options.steps} steps of {', '.join(RULES)}, against 1 rank",
            ("mode", *sizes),
            lines,
        ),
        Sheet(f"tiny, tables capped at {NETWORK_ROWS:,} rows, Adagrad", ("what", *sizes), network),
    ]
    before = [describe_machine(), " ".join((__doc__ or "").split("\n\n", 2)[2].split())]
    after = ["Differences: the largest of an element, absolute; rows begin within 1/sqrt(rows) of zero."]
    report(Console(), before, sheets, after, options.output)


def run_ranks(size: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Trains on so many ranks; returns what rank 0 saw, by name."""
    file = folder / f"{size}.npz"
    command = [sys.executable, "-m", "benchmarks.equal_ranks", "--rank", str(file)]
    command += ["--steps", str(options.steps), "--dtype", options.dtype]
    if size > 1:
        command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(size), "--gloo", *command]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{size} ranks failed:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    with np.load(file) as arrays:
        return dict(arrays)


def work(file: Path, steps: int, dtype: str) -> None:
    """Is one rank: trains everything, and rank 0 leaves the tables in a file."""
    from rankhouse.training.ranks import Ranks

    ranks = Ranks.init()
    found: dict[str, Any] = {}
    for rule in RULES:
        found |= {f"{rule}/{mode}": table for mode, table in train_tables(ranks, rule, steps, dtype)}
    found |= {f"network/{name}": values for name, values in train_network(ranks, steps)}
    if ranks.rank == 0:
        np.savez(file, **found)


def train_tables(ranks: Any, rule: str, steps: int, dtype: Any) -> Iterator[tuple[str, Any]]:
    """Trains a table in every mode, and yields them whole."""
    import tensorflow as tf

    from rankhouse.kernels import optimizer_settings
    from rankhouse.training.distributed_embedding import DistributedEmbedding
    from rankhouse.training.optimizers.optimizers import Optimizer
    from rankhouse.training.plan import Plan, TableSpec, place
    from rankhouse.training.tables.specs import EmbeddingSpec, Input

    tables = [TableSpec(mode, ROWS, DIM, dtype=dtype) for mode in MODES]
    placed = [
        place(table, mode, num_ranks=ranks.size, **more)
        for table, (mode, more) in zip(tables, MODES.values(), strict=True)
    ]
    specs = [EmbeddingSpec(ROWS, DIM, mode, dtype=dtype) for mode in MODES]
    inputs = [Input(f"{mode}/{hotness}", mode) for mode in MODES for hotness in HOTNESS]
    plan = Plan(tuple(tables), tuple(placed), ranks.size)
    layer = DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=5, name=rule.lower())
    variables = layer.trainable_variables
    own = {shard.variable.ref() for shard in layer.shards}
    optimizer = Optimizer(
        getattr(optimizer_settings, rule)(),
        tables=[variable for variable in variables if variable.ref() in own],
        dense=[variable for variable in variables if variable.ref() not in own],
        learning_rate=0.05,
    )

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
    def step(ids: Any, lengths: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((layer.lookup(ids, lengths) - targets) ** 2) / BATCH
        gradients = layer.sum_gradients(tape.gradient(loss, variables), variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    draws = np.random.default_rng(1)
    for number in range(steps):
        # The first rank's part grows and shrinks; the others share the rest.
        first = min(BATCH, 16 + 7 * number % BATCH) if ranks.size > 1 else BATCH
        cuts = [0, *np.linspace(first, BATCH, ranks.size).astype(int)]
        begin, end = cuts[ranks.rank], cuts[ranks.rank + 1]
        ids = [np.minimum(draws.zipf(1.2, (BATCH, hotness)), ROWS) - 1 for _ in MODES for hotness in HOTNESS]
        targets = draws.normal(size=(BATCH, layer.output_dim)).astype(np.float32)
        lengths = np.array([[bags.shape[1]] * (end - begin) for bags in ids], np.int64)
        step(
            tf.constant(np.concatenate([bags[begin:end].ravel() for bags in ids])),
            tf.constant(lengths),
            tf.constant(targets[begin:end]),
        )
    yield from zip(MODES, layer.get_weights(), strict=True)


def train_network(ranks: Any, steps: int) -> Iterator[tuple[str, Any]]:
    """Trains `tiny` with small tables by the default plan, and yields tables, dense layers and losses."""
    import tensorflow as tf

    from rankhouse.training.models.synthetic_models import synthetic_model
    from rankhouse.training.models.synthetic_network import (
        SyntheticNetwork,
        capped,
        make_synthetic_step,
        synthetic_batches,
    )

    model = capped(synthetic_model("tiny"), NETWORK_ROWS)
    network = SyntheticNetwork(model, ranks=ranks, seed=3)
    step = make_synthetic_step(network)
    cuts = np.linspace(0, NETWORK_BATCH, ranks.size + 1).astype(int)
    begin, end = cuts[ranks.rank], cuts[ranks.rank + 1]
    losses = []
    for _, batch in zip(range(steps), synthetic_batches(model, batch_size=NETWORK_BATCH, seed=2), strict=False):
        bags = np.split(batch.ids.numpy(), np.cumsum(batch.lengths.numpy().sum(1))[:-1])
        ids = [part.reshape(NETWORK_BATCH, -1)[begin:end].ravel() for part in bags]
        own = type(batch)(
            batch.numerical[begin:end],
            tf.constant(np.concatenate(ids)),
            batch.lengths[:, begin:end],
            batch.labels[begin:end],
        )
        losses.append(ranks.sum_tensors([step(own, NETWORK_BATCH)], name="loss")[0].numpy())
    yield "losses", np.array(losses)
    for number, table in enumerate(network.embedding.get_weights()):
        yield f"table_{number}", table
    for number, variable in enumerate(network.dense_variables):
        yield f"dense_{number}", variable.numpy()


def _difference(found: dict[int, dict[str, Any]], size: int, names: list[str]) -> str:
    worst = max(float(np.abs(found[size][name] - found[1][name]).max()) for name in names)
    return "equal to the bit" if worst == 0 else f"{worst:.1e}"


if __name__ == "__main__":
    main()
