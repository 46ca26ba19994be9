"""What a training step costs where a table lies in host memory with some rows cached, beside the table held whole.

    rankhouse bench host_tables

One table, Adagrad, ids by a power law of exponent 1.05 over rows in random order: a step is a pooled lookup, its
gradient and the update. All layers learn from the same batches in one process and take turns step by step, so that
whatever else the machine does meets all. Their outputs are compared to the bit in every step. Here host and
device are the same memory, so a miss costs what it costs to find room and to copy rows, not what a bus adds.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.support.machine import describe_machine
from benchmarks.support.sheet import Sheet, report

COLUMNS = ("rows", "step ms", "x held whole", "ids that hit", "rows loaded", "written back", "MiB moved")
EXPONENT = 1.05
SHARES = (0.01, 0.1, 0.5)


@dataclass
class Candidate:
    """A layer that trains.

    Attributes:
        name: What of the table is cached.
        step: Does a step of training with ids [batch, hotness].
        stats: What was moved so far, counts by name.
        before: The same before the first timed step.
        seconds: Of the timed steps.
    """

    name: str
    step: Callable[[Any], Any]
    stats: Callable[[], dict[str, int]]
    before: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def moved(self) -> dict[str, int]:
        """Returns what was moved in the timed steps."""
        return {name: count - self.before[name] for name, count in self.stats().items()}


def main() -> None:
    """Measures all and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the table")
    parser.add_argument("--dim", type=int, default=32, help="width of a row")
    parser.add_argument("--batch-size", type=int, default=4096, help="samples per step")
    parser.add_argument("--hotness", type=int, default=8, help="ids per sample")
    parser.add_argument(
        "--warmup", type=int, default=60, help="steps before those that are timed, in which caches fill"
    )
    parser.add_argument("--steps", type=int, default=60, help="timed steps of each")
    parser.add_argument("--folder", type=Path, help="also with the table in a file of this folder")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows and of the steps, small batches")
    parser.add_argument("--output", type=Path, help="write the result as Markdown, too")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.warmup, options.steps = options.rows // 10, options.warmup // 10, options.steps // 10
        options.batch_size //= 16  # so few that a hundredth of the rows holds those of a batch
    candidates = measure(options)
    uniques = f"{options.batch_size} samples of {options.hotness} ids"
    title = (
        f"{options.rows:,} rows of {options.dim} float32, Adagrad; {uniques}; {options.steps} steps of each, medians"
    )
    sheet = Sheet(title, COLUMNS, [line(candidate, candidates[0]) for candidate in candidates])
    report(Console(), [describe_machine()], [sheet], [], options.output)


def line(candidate: Candidate, whole: Candidate) -> list[str]:
    """Returns what was measured of a candidate, beside the table held whole."""
    milliseconds, num_steps = 1e3 * median(candidate.seconds), len(candidate.seconds)
    slower = median(mine / other for mine, other in zip(candidate.seconds, whole.seconds, strict=True))
    if candidate is whole:
        return [candidate.name, f"{milliseconds:.2f}", "1.00", "", "", "", ""]
    moved = candidate.moved()
    hits, misses, written_back, bytes_moved = (count / num_steps for count in moved.values())
    return [
        candidate.name,
        f"{milliseconds:.2f}",
        f"{slower:.2f}",
        f"{hits / (hits + misses):.1%}",
        f"{misses:,.0f}",
        f"{written_back:,.0f}",
        f"{bytes_moved / 2**20:.2f}",
    ]


def measure(options: argparse.Namespace) -> list[Candidate]:
    """Trains all candidates side by side."""
    candidates = [make_candidate(options, share, None) for share in (None, *SHARES)]
    if options.folder:
        candidates.append(make_candidate(options, 0.1, options.folder))
    batches = zipf_batches(np.random.default_rng(1), options)
    for number in range(options.warmup + options.steps):
        if number == options.warmup:
            for candidate in candidates:
                candidate.before = candidate.stats()
        ids, found, first = next(batches), [], number % len(candidates)
        for candidate in candidates[first:] + candidates[:first]:
            start = time.perf_counter()
            rows = candidate.step(ids)
            seconds = time.perf_counter() - start
            found.append(rows.numpy())
            if number >= options.warmup:
                candidate.seconds.append(seconds)
        if not all(np.array_equal(rows, found[0]) for rows in found):
            raise SystemExit(f"the candidates do not compute the same in step {number}")
    return candidates


def make_candidate(options: argparse.Namespace, share: float | None, folder: Path | None) -> Candidate:
    """Makes a layer of one table that is held whole, or of which a share of the rows is cached."""
    import tensorflow as tf

    from rankhouse.kernels.optimizer_settings import Adagrad
    from rankhouse.training.distributed_embedding import DistributedEmbedding
    from rankhouse.training.optimizers.optimizers import Optimizer
    from rankhouse.training.plan import Plan, TableSpec, place
    from rankhouse.training.tables.host_rows import HostRowsStats
    from rankhouse.training.tables.specs import EmbeddingSpec

    table = TableSpec("table", options.rows, options.dim)
    placement = place(table, "table_wise", num_ranks=1)
    name = "held whole"
    if share is not None:
        placement = replace(
            placement,
            device="host",
            cache_rows=int(share * options.rows),
            host_folder=str(folder) if folder is not None else None,
        )
        name = f"{share:.0%} cached{', in a file' if folder else ''}"
    layer = DistributedEmbedding(
        [EmbeddingSpec(options.rows, options.dim, "table")], plan=Plan((table,), (placement,), 1), seed=1
    )
    variable = layer.shards[0].variable
    optimizer = Optimizer(Adagrad(), tables=[variable], learning_rate=0.05)

    @tf.function(input_signature=[tf.TensorSpec([None, options.hotness], tf.int64)], autograph=False)  # type: ignore[untyped-decorator]
    def step(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            (rows,) = layer([ids], training=True)
            loss = tf.reduce_sum((rows - 0.1) ** 2) / options.batch_size
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return rows

    return Candidate(name, step, lambda: layer.host_stats().get("table", HostRowsStats()).document())


def zipf_batches(generator: np.random.Generator, options: argparse.Namespace) -> Iterator[npt.NDArray[np.int64]]:
    """Yields ids [batch, hotness] whose frequencies fall by a power law."""
    shares = np.arange(1, options.rows + 1, dtype=np.float64) ** -EXPONENT
    edges = np.cumsum(shares) / shares.sum()
    order = generator.permutation(options.rows)
    while True:
        ranks = np.searchsorted(edges, generator.random([options.batch_size, options.hotness]))
        yield order[np.minimum(ranks, options.rows - 1)]


if __name__ == "__main__":
    main()
