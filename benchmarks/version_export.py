"""Full and delta exports beside plain NumPy, and how fast a store is verified and compacted.

    rankhouse bench version_export                   5 and 50 million rows, about 5 minutes
    rankhouse bench version_export --rows 5000000    the smaller one alone, about 1 minute

Checkpoints are made by the trainer's own code: float32 tables of 16 columns with row-wise Adagrad, and steps that touch
random rows. Plain NumPy and Rankhouse take turns: both read the same checkpoint, which is in the page cache, write the
same bytes to the same disk and flush them; before each turn, what the one before wrote is gone and the disk is idle.
NumPy neither verifies, nor checksums, nor publishes. A figure is the median over the turns.

`writing` is the part that depends on the number of rows: rows, vocabularies, manifest. `whole export` has besides the
dense part as ONNX, golden requests and their check; the start of Python and TensorFlow comes on top for a command.
"""

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console

from benchmarks.support.machine import CHECKOUT, describe_machine
from benchmarks.support.sheet import Sheet, report
from benchmarks.support.synthetic_run import DIM, make_run
from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.records import FeatureContent
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.maintenance.publication import compact_version
from rankhouse.embedding_cache.maintenance.verification import verify_versions
from rankhouse.training.checkpoint.files import WEIGHTS, Checkpoint
from rankhouse.training.export.export import export_delta, export_version
from rankhouse.training.export.served_rows import ServedRows
from rankhouse.training.models.trained_model import TrainedModel, load_trained_model
from rankhouse.training.runs.folder import RunFolder

MODEL = "bench"
SHARES = (0.01, 0.1)
# Those of a checkpoint with its row-wise accumulator and notes, of a version, and of NumPy's copy.
DISK_BYTES_PER_ROW = (4 * DIM + 8) + 3 * 4 * DIM
MEMORY_BYTES_PER_ROW = 2 * (4 * DIM + 8)
READ_BYTES = 1 << 20


def main() -> None:
    """Measures what is asked for and what the machine has room for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[5_000_000, 50_000_000])
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=CHECKOUT / "data", help="where to write; its disk is measured")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    fitting = [rows for rows in options.rows if _fits(rows, options.folder)]
    notes = [f"No room for {rows:,} rows." for rows in options.rows if rows not in fitting]
    if not fitting:
        parser.error(f"{' '.join(notes)} Give fewer --rows, or another --folder")
    full: list[Sequence[str]] = []
    sheets: list[Sheet] = []
    for number, rows in enumerate(sorted(fitting)):
        with tempfile.TemporaryDirectory(prefix="version-store-", dir=options.folder) as temporary:
            folder = Path(temporary)
            console.print(f"making checkpoints of {rows:,} rows")
            run, checkpoints = make_run(folder, num_rows=rows, touched=() if number else SHARES)
            bench = Bench(run, checkpoints, folder, options.turns)
            console.print(f"measuring with {rows:,} rows")
            full.append(bench.full_export())
            if not number:
                sheets = [bench.deltas(), bench.upkeep()]
    heads = ("rows", "MB", "NumPy s", "writing s", "ratio", "whole export s")
    sheets.insert(0, Sheet("Full export", heads, full))
    report(console, [describe_machine(), __doc__.split("\n\n")[2]], sheets, notes, options.output)


class Bench:
    """Measures on the checkpoints of one run."""

    def __init__(self, run: RunFolder, checkpoints: Sequence[Path], folder: Path, turns: int) -> None:
        self._run, self._checkpoints, self._turns = run, checkpoints, turns
        self._store, self._other, self._copy = (folder / name for name in ("store", "other", "copy"))
        self._trained = [load_trained_model(run.path, checkpoint=path) for path in checkpoints]

    def full_export(self) -> Sequence[str]:
        """Returns a line of the sheet; leaves the version in the store."""
        trained = self._trained[0]
        files = [_weights(trained.checkpoint), [np.memmap(path, np.uint8, "r") for path in trained.dataset.layers]]
        arrays = [array for part in files for array in part]
        numpy_seconds, seconds = self._turns_of(
            lambda: _write_plainly(self._copy, arrays),
            lambda: _write_whole(self._other, trained),
            lambda: shutil.rmtree(self._other),
        )
        whole = _time(
            lambda: export_version(self._run.path, store=self._store, model=MODEL, checkpoint=trained.checkpoint.path)
        )
        num_bytes = sum(array.nbytes for array in arrays)
        rows = sum(table.num_rows for table in trained.dataset.tables.values())
        ratio = f"{seconds / numpy_seconds:.2f}x"
        return (f"{rows:,}", f"{num_bytes / 1e6:,.0f}", f"{numpy_seconds:.2f}", f"{seconds:.2f}", ratio, f"{whole:.2f}")

    def deltas(self) -> Sheet:
        """Measures a delta over a delta over the full version; leaves the versions in the store."""
        lines = []
        for share, before, trained in zip(SHARES, self._trained[:-1], self._trained[1:], strict=True):
            parent = VersionStore(self._store).open(model=MODEL, verify=False)
            since = before.checkpoint.iterations
            arrays = [
                trained.checkpoint.gather(table, trained.checkpoint.touched_since(table, since))
                for table in trained.dataset.tables
            ]
            numpy_seconds, seconds = self._turns_of(
                lambda trained=trained, since=since: _gather_plainly(self._copy, trained.checkpoint, since),
                lambda trained=trained, since=since, parent=parent: _write_delta(self._store, trained, parent, since),
                lambda parent=parent: _remove_newer(self._store, parent),
            )
            whole = _time(
                lambda trained=trained: export_delta(
                    self._run.path, store=self._store, model=MODEL, checkpoint=trained.checkpoint.path
                )
            )
            version = VersionStore(self._store).open(model=MODEL, verify=False)
            row_bytes = sum(array.nbytes for array in arrays)
            new = sum(table.deltas[-1].bytes for table in version.tables)
            lines.append(
                (
                    f"{share:.0%}",
                    f"{sum(map(len, arrays)):,}",
                    f"{row_bytes / 1e6:.1f}",
                    f"{new / row_bytes:.3f}x",
                    f"{numpy_seconds:.3f}",
                    f"{seconds:.3f}",
                    f"{whole:.2f}",
                )
            )
        heads = ("touched", "rows", "MB of rows", "bytes written", "NumPy s", "writing s", "whole export s")
        rows = sum(table.num_rows for table in self._trained[0].dataset.tables.values())
        return Sheet(f"Delta export over {rows:,} rows", heads, lines)

    def upkeep(self) -> Sheet:
        """Measures reading, verifying and compacting the chain of versions."""
        store = VersionStore(self._store)
        files = [path for path in self._store.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        newest = store.open(model=MODEL, verify=False)
        num_bytes = {"read": size, "verify": size, "compact": newest.num_bytes}
        seconds: dict[str, list[float]] = {name: [] for name in num_bytes}
        for _ in range(self._turns):
            os.sync()
            seconds["read"].append(_time(lambda: _read_once(files)))
            seconds["verify"].append(_time(lambda: verify_versions(store, store.names())))
            seconds["compact"].append(_time(lambda: compact_version(store, newest.name)))
            _remove_newer(self._store, newest)
        lines = [
            (
                name,
                f"{num_bytes[name] / 1e6:,.0f}",
                f"{median(taken):.2f}",
                f"{num_bytes[name] / median(taken) / 1e9:.2f}",
            )
            for name, taken in seconds.items()
        ]
        return Sheet(
            "A full version and two deltas: every file read, verified, folded", ("what", "MB", "s", "GB/s"), lines
        )

    def _turns_of(
        self, plain: Callable[[], object], ours: Callable[[], object], undo: Callable[[], object]
    ) -> tuple[float, float]:
        """Returns the median seconds of both, which take turns, each as often first as second."""
        clean = (lambda: shutil.rmtree(self._copy), undo)
        seconds: list[list[float]] = [[], []]
        for turn in range(self._turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                os.sync()
                seconds[which].append(_time((plain, ours)[which]))
                clean[which]()
        return median(seconds[0]), median(seconds[1])


def _write_whole(store: Path, trained: TrainedModel) -> None:
    """What `export_version` does with rows and vocabularies."""
    dataset = trained.dataset
    rows = ServedRows(
        trained.checkpoint,
        dataset,
        dict.fromkeys(dataset.tables, "float32"),
        metrics={},
        on_bytes=lambda written, total: None,
    )
    VersionStore(store).write(
        VersionContent(
            model=MODEL,
            dense=None,
            transform=dataset.path,
            num_dense=0,
            tables=[rows.whole(table) for table in dataset.tables],
            features=[FeatureContent(each.name, each.table, each.combiner) for each in dataset.spec.categorical],
        )
    )


def _write_delta(store: Path, trained: TrainedModel, parent: Version, since: int) -> None:
    """What `export_delta` does with rows and vocabularies."""
    rows = ServedRows(
        trained.checkpoint,
        trained.dataset,
        {table.name: table.dtype for table in parent.tables},
        metrics={},
        on_bytes=lambda written, total: None,
    )
    tables = [rows.delta(table.name, since=since, num_known=table.num_rows, num_layers=1) for table in parent.tables]
    content = DeltaContent(dense=None, transform=trained.dataset.path, num_dense=0, tables=tables)
    VersionStore(store).write_delta(content, parent)


def _remove_newer(store: Path, kept: Version) -> None:
    """Removes the versions after one, with the files that are theirs alone."""
    versions = VersionStore(store)
    for name in versions.names()[versions.names().index(kept.name) + 1 :]:
        version = versions.read(name)
        for file in set(version.record.shared_files) - set(kept.record.shared_files):
            shared_path(store, file.sha256).unlink(missing_ok=True)
        shutil.rmtree(version.path)


def _weights(checkpoint: Checkpoint) -> list[np.ndarray]:
    """Maps the rows of all tables."""
    files = [item.file for item in checkpoint.pieces if item.array == WEIGHTS]
    return [np.memmap(checkpoint.path / file, np.float32, "r", offset=4096) for file in files]


def _write_plainly(folder: Path, arrays: Sequence[np.ndarray]) -> None:
    folder.mkdir()
    for number, array in enumerate(arrays):
        with open(folder / f"{number}", "wb") as file:
            array.tofile(file)
            file.flush()
            os.fsync(file.fileno())


def _gather_plainly(folder: Path, checkpoint: Checkpoint, since: int) -> None:
    """Finds touched rows and writes them with their ids."""
    arrays = []
    for table in checkpoint.tables:
        ids = np.concatenate(
            [
                item.start + np.flatnonzero(np.memmap(checkpoint.path / item.file, np.int32, "r", offset=4096) > since)
                for item in checkpoint.pieces
                if (item.table, item.array) == (table, "touched")
            ]
        )
        (weights,) = (
            np.memmap(checkpoint.path / item.file, np.float32, "r", offset=4096).reshape(-1, DIM)
            for item in checkpoint.pieces
            if (item.table, item.array) == (table, WEIGHTS)
        )
        arrays += [weights[ids], ids]
    _write_plainly(folder, arrays)


def _read_once(files: Sequence[Path]) -> None:
    buffer = bytearray(READ_BYTES)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def _time(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _fits(rows: int, folder: Path) -> bool:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return rows * DISK_BYTES_PER_ROW < shutil.disk_usage(folder).free and rows * MEMORY_BYTES_PER_ROW < memory


if __name__ == "__main__":
    main()
