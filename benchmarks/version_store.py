"""What a version costs: a whole one beside writing the same bytes, and a delta beside the rows that it holds.

    rankhouse bench version_store

Writers take turns, each into a folder of its own, and what they wrote is on the disk before their time ends. The figure
shown is the median over the turns.
"""

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.support.machine import describe_machine
from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.row_types import ROW_TYPES
from rankhouse.embedding_cache.format.version import Version, VersionStore

BLOCK_ROWS = 1 << 16


def main() -> None:
    """Measures all writers in turn and prints medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=4)
    parser.add_argument("--rows", type=int, default=1 << 20, help="rows of a table")
    parser.add_argument("--dim", type=int, default=64, help="width of a row")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    generator = np.random.default_rng(1)
    shape = (options.rows, options.dim)
    tables = [generator.standard_normal(shape, dtype=np.float32) for _ in range(options.tables)]
    console = Console(highlight=False)
    console.print(describe_machine())
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        bench = Bench(Path(folder), tables)
        print_whole(console, bench, options.turns)
        print_deltas(console, bench, options.turns)


class Bench:
    """A model of some tables, and the folder to write it to."""

    def __init__(self, folder: Path, tables: list[np.ndarray]) -> None:
        self.folder, self.tables = folder, tables
        self.parts = folder / "parts"
        self.parts.mkdir()
        (self.parts / "dense.onnx").write_bytes(b"dense")
        (self.parts / "transform.safetensors").write_bytes(b"vocabularies")
        (self.parts / "transform.json").write_text(json.dumps({"format": "rankhouse.transform", "format_version": 1}))

    def write_plainly(self) -> None:
        """Writes the same bytes without a hash, a file for each table."""
        for number, rows in enumerate(self.tables):
            with open(self.folder / f"plain-{number}", "wb") as file:
                for block in blocks_of(rows):
                    file.write(block.data)
                file.flush()
                os.fsync(file.fileno())

    def write(self, row_type: str, store: str = "whole") -> Version:
        """Writes a whole version into an empty store."""
        shutil.rmtree(self.folder / store, ignore_errors=True)
        content = VersionContent(
            model="bench",
            dense=self.parts / "dense.onnx",
            transform=self.parts,
            num_dense=1,
            tables=[
                TableContent(f"t{number}", *rows.shape, blocks_of(rows), row_type)
                for number, rows in enumerate(self.tables)
            ],
            features=[FeatureContent(f"t{number}", f"t{number}", "sum") for number in range(len(self.tables))],
        )
        return VersionStore(self.folder / store).write(content)

    def write_delta(self, parent: Version, num_rows: int, seed: int) -> Version:
        """Changes so many rows of each table."""
        generator = np.random.default_rng(seed)
        content = DeltaContent(self.parts / "dense.onnx", self.parts, 1, tables=())
        deltas = []
        for number, rows in enumerate(self.tables):
            ids = np.sort(generator.choice(len(rows), num_rows, replace=False))
            deltas.append(TableDelta(f"t{number}", len(rows), ids, [rows[ids] + seed]))
        return VersionStore(parent.store).write_delta(replace(content, tables=deltas), parent)


def print_whole(console: Console, bench: Bench, turns: int) -> None:
    """Compares whole versions of each row type with plain files of the same float32 rows."""
    writers: dict[str, Callable[[], object]] = {"plain files": bench.write_plainly}
    writers |= {f"a version, {row_type}": lambda row_type=row_type: bench.write(row_type) for row_type in ROW_TYPES}
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    for _ in range(turns):
        for name, write in writers.items():
            seconds[name].append(timed(write))
    gigabytes = sum(rows.nbytes for rows in bench.tables) / 1e9
    table = Table(title=f"{gigabytes:.2f} GB of float32 rows, {len(bench.tables)} tables: medians of {turns} turns")
    for column in ("written as", "s", "of plain files"):
        table.add_column(column, justify="left" if column == "written as" else "right")
    plain = median(seconds["plain files"])
    for name, taken in seconds.items():
        table.add_row(name, f"{median(taken):.2f}", f"{median(taken) / plain:.2f}x")
    console.print(table)


def print_deltas(console: Console, bench: Bench, turns: int) -> None:
    """Measures deltas of growing size over one base, and opening and looking through what they make."""
    base = bench.write("float32", "deltas")
    table = Table(title=f"a delta of a version of {base.num_bytes / 1e9:.2f} GB: medians of {turns} turns")
    for column in ("changed rows of each table", "ms to write", "MB beyond the parent", "ms to open unverified"):
        table.add_column(column, justify="right")
    for num_rows in (0, 100, 10_000, 100_000):
        if num_rows > len(bench.tables[0]):
            continue
        written, opened, version = [], [], base
        for turn in range(turns):
            written.append(timed(lambda turn=turn, num_rows=num_rows: bench.write_delta(base, num_rows, turn)))
            opened.append(timed(lambda: VersionStore(base.store).open(verify=False)))
            version = VersionStore(base.store).open(verify=False)
        megabytes = version.num_bytes_beyond(base) / 1e6
        table.add_row(
            f"{num_rows:,}", f"{1e3 * median(written):.1f}", f"{megabytes:.3f}", f"{1e3 * median(opened):.1f}"
        )
    console.print(table)


def blocks_of(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Cuts rows into blocks of some MiB."""
    return (rows[begin : begin + BLOCK_ROWS] for begin in range(0, len(rows), BLOCK_ROWS))


def timed(work: Callable[[], object]) -> float:
    """Returns the seconds that some work takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
