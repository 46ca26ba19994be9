"""Bytes that each of two ranks sends in a training step, by what travels and in which format.

    rankhouse bench wire_bytes

Two ranks hold half of the tables each, and look ids up that follow a power law of exponent 1.05, as those of the
synthetic models do. The plain way sends every id to its owner, and a float32 row (the pooled one, where a bag has
several ids) and its gradient between them for every bag; the others send each row that a rank needs once, rounded or
not. Counted are the bytes of lookup and gradient as the ranks count them in training; dense layers are none here.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from benchmarks.support.machine import describe_machine
from benchmarks.support.sheet import Sheet, report

NUM_RANKS = 2
EXPONENT = 1.05
NUM_TABLES = 4


@dataclass(frozen=True)
class Case:
    """Tables and a batch over all ranks."""

    num_rows: int
    dim: int
    batch: int
    hotness: int

    def __str__(self) -> str:
        return f"{NUM_TABLES} x {self.num_rows:,} x {self.dim}, batch {self.batch}, hotness {self.hotness}"


CASES = (
    Case(1_000_000, 16, 8192, 1),
    Case(1_000_000, 16, 65536, 1),
    Case(1_000_000, 16, 8192, 10),
    Case(100_000, 128, 8192, 1),
)

# What travels, and in which formats there and back: the first ones in every case, all in the first case.
NUM_FIRST_WAYS = 3
WAYS = (
    ("pooled", "float32", "float32"),
    ("rows", "float32", "float32"),
    ("rows", "bfloat16", "bfloat16"),
    ("rows", "float16", "float16"),
    ("rows", "int8", "bfloat16"),
    ("rows", "int8", "int8"),
)


def main() -> None:
    """Starts the ranks and prints what they counted, or is one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5, help="counted steps of each")
    parser.add_argument("--quick", action="store_true", help="the first case alone")
    parser.add_argument("--output", type=Path, help="also write it as markdown")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        work(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Prints a table for each case."""
    found = run_ranks(options)
    sheets = []
    for case in CASES[: 1 if options.quick else None]:
        own = [line for line in found if line["case"] == asdict(case)]
        plain = own[0]["bytes"]
        lines = [
            (
                f"{way['exchange']}, {way['forward']} there, {way['backward']} back",
                *(f"{way['parts'].get(part, 0) / 2**10:,.0f}" for part in ("ids", "rows", "rows_gradient")),
                f"{way['bytes'] / 2**10:,.0f}",
                f"{plain / way['bytes']:.2f}x",
                *(f"{error:.2%}" for error in way["errors"]),
            )
            for way in own
        ]
        columns = ("way", "ids", "rows", "gradients", "KiB", "fewer", "error there", "error back")
        sheets.append(Sheet(f"{case}: KiB that a rank sends in a step", columns, lines))
    before = [describe_machine(), " ".join((__doc__ or "").split("\n\n", 2)[2].split())]
    after = ["Errors: the largest of an element relative to the largest of its row. Times are not measured here."]
    report(Console(), before, sheets, after, options.output)


def run_ranks(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns what the ranks say, their bytes as means."""
    command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(NUM_RANKS), "--gloo", sys.executable]
    command += ["-m", "benchmarks.wire_bytes", "--rank", "--steps", str(options.steps)]
    command += ["--quick"] if options.quick else []
    done = subprocess.run(
        command, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, capture_output=True, text=True, check=False
    )
    lines = [line[line.index('{"case"') :] for line in done.stdout.splitlines() if '{"case"' in line]
    if done.returncode or not lines:
        raise SystemExit(f"the ranks gave no figures:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return [json.loads(line) for line in lines]


def work(options: argparse.Namespace) -> None:
    """Is one rank: makes the steps of every case and way; rank 0 prints them."""
    import tensorflow as tf

    from rankhouse.training.ranks import Ranks

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    ranks = Ranks.init()
    for number, case in enumerate(CASES[: 1 if options.quick else None]):
        for exchange, forward, backward in WAYS[: NUM_FIRST_WAYS if number else None]:
            name = f"embedding_{number}_{exchange}_{forward}_{backward}"
            own = measure(case, exchange, forward, backward, ranks=ranks, name=name, num_steps=options.steps)
            everyone = ranks.exchange_json(own, name="figures")
            if ranks.rank == 0:
                errors = [max(errors) for errors in zip(*(each["errors"] for each in everyone), strict=True)]
                parts = {part: mean(each["parts"].get(part, 0) for each in everyone) for part in own["parts"]}
                line = {"case": asdict(case), "exchange": exchange, "forward": forward, "backward": backward}
                sent = mean(each["bytes"] for each in everyone)
                print(json.dumps({**line, "bytes": sent, "parts": parts, "errors": errors}), flush=True)


def measure(
    case: Case, exchange: Any, forward: Any, backward: Any, *, ranks: Any, name: str, num_steps: int
) -> dict[str, Any]:
    """Returns this rank's bytes per step, by exchange and together, and its rounding errors."""
    import numpy as np
    import tensorflow as tf

    from rankhouse.training.distributed_embedding import DistributedEmbedding
    from rankhouse.training.exchange.wire_format import WireFormat
    from rankhouse.training.plan import Plan, TableSpec, place
    from rankhouse.training.tables.specs import EmbeddingSpec

    tables = tuple(TableSpec(f"table{t}", case.num_rows, case.dim, case.hotness) for t in range(NUM_TABLES))
    placements = (
        place(table, "table_wise", num_ranks=ranks.size, ranks=[t % ranks.size], exchange=exchange)
        for t, table in enumerate(tables)
    )
    embedding = DistributedEmbedding(
        [EmbeddingSpec(case.num_rows, case.dim, table.name) for table in tables],
        ranks=ranks,
        plan=Plan(tables, tuple(placements), ranks.size),
        wire=WireFormat(forward=forward, backward=backward, gradient_scale=float(case.batch), measure_every=1),
        name=name,
    )
    batch = case.batch // ranks.size
    lengths = tf.fill([NUM_TABLES, batch], case.hotness)
    target = tf.random.stateless_normal([batch, NUM_TABLES * case.dim], seed=[ranks.rank, 1])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)  # type: ignore[untyped-decorator]
    def step(ids: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((embedding.lookup(ids, lengths) - target) ** 2) / case.batch
        gradients = tape.gradient(loss, embedding.owned_variables)
        return [tf.reduce_sum(gradient.values) for gradient in gradients]

    generator = np.random.default_rng([ranks.rank, case.batch])
    for number in range(num_steps + 1):
        power = 1 - EXPONENT
        uniform = generator.random(NUM_TABLES * batch * case.hotness)
        ids = ((uniform * (case.num_rows**power - 1) + 1) ** (1 / power)).astype(np.int64) - 1
        if number == 1:
            ranks.traffic.restart()  # The first step traces, and measures whether the formats will do.
        step(tf.constant(np.minimum(ids, case.num_rows - 1)))
    parts = {
        exchange.removeprefix(f"{name}_"): count.sent / num_steps
        for exchange, count in ranks.traffic.read().items()
        if exchange.startswith(name)
    }
    roundings = ranks.traffic.roundings()
    errors = [
        roundings[key].max_relative_error if key in roundings else 0.0
        for key in (f"{name}_rows", f"{name}_rows_gradient")
    ]
    return {
        "bytes": ranks.traffic.total().sent / num_steps,
        "parts": parts,
        "errors": errors,
    }


if __name__ == "__main__":
    main()
