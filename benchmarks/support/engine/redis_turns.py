"""Redis beside our Redis tier: one server with the same rows twice, as plain keys and as a pushed version."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.support.embedding.cells import Cell, make_ids
from benchmarks.support.engine.dataset import Dataset
from benchmarks.support.engine.report import NEW, Place, Timing
from benchmarks.support.machine import rankhouse
from benchmarks.support.process import CommandError, Process
from rankhouse.serving.processes import free_ports

WORKER = "benchmarks.support.engine.worker"
# A row cache has seen so many keys before requests are timed, and these then once each; what has none, some batches.
SEEN_KEYS, SEEN_BATCHES, NUM_NEW = 8_000_000, 3, 20
KEYS_OF_MSET = 1000
START_SECONDS = 30


def time_redis(dataset: Dataset, sizes: Sequence[int], num_threads: int, say: Callable[[str], None]) -> list[Timing]:
    """Times requests of so many candidates each, with ids that were drawn after those that a cache has seen.

    Raises:
        SystemExit: There is no redis-server.
        ProcessError: A candidate failed, or gives other rows than the tables were made of.
    """
    timings = []
    with redis_server() as port, tempfile.TemporaryDirectory() as temporary:
        folder, url = Path(temporary), f"redis://127.0.0.1:{port}"
        say(f"{dataset.folder.name}: filling Redis")
        fill(port, dataset)
        rankhouse("version", "push", dataset.store, dataset.version(0).name, "--to", url)
        arguments = {
            "native": {
                "folder": str(dataset.folder),
                "tables": asdict(dataset.tables),
                "shares": dataset.shares,
                "redis_url": url,
            },
            "stores": {"folder": "", "rows_of_table": dataset.tables.rows, "redis_url": url},
        }
        for kind, given in arguments.items():
            with Process(WORKER, kind, num_threads, {}) as process:
                candidates = process.ask("dataset", **given)["candidates"]
                for number, size, distribution in product(range(len(candidates)), sizes, ("uniform", "zipf")):
                    cell, name = Cell(dataset.tables, size, 1, distribution), candidates[number]["name"]
                    say(f"{cell.label}: {name}")
                    seconds = _time(process, number, dataset, cell, folder)
                    timings.append(Timing(Place(cell, NEW), name, seconds))
    return timings


def _time(process: Process, candidate: int, dataset: Dataset, cell: Cell, folder: Path) -> list[float]:
    has_cache = process.kind == "native"
    num_seen = -(-SEEN_KEYS // (cell.tables.num_tables * cell.batch_size)) if has_cache else SEEN_BATCHES
    ids = make_ids(cell, num_seen + NUM_NEW)[..., 0]
    np.save(folder / "ids.npy", ids)
    process.ask("open", candidate=candidate, warmed=False)
    process.ask("batches", path=str(folder / "ids.npy"))
    process.ask("result", batch=0, path=str(folder / "result.npy"))
    if not np.array_equal(np.load(folder / "result.npy"), dataset.expected(ids[0], 0)):
        raise CommandError(f"{process.kind} gives other rows than the tables were made of: {cell.label}")
    seconds: list[float] = process.ask("time_new", num_seen=num_seen)["seconds"]
    process.ask("close")
    return seconds


@contextmanager
def redis_server() -> Iterator[int]:
    """Runs a server that keeps nothing on the disk; yields its port."""
    (port,) = free_ports("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as folder:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        try:
            process = subprocess.Popen([*command, "--logfile", "redis.log"])
        except FileNotFoundError as exc:
            raise SystemExit("there is no redis-server: install it, or give --no-redis") from exc
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"redis-server did not start: {(Path(folder) / 'redis.log').read_text()[-2000:]}")
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait()


def fill(port: int, dataset: Dataset) -> None:
    """Sets a key for each row: its number, 8 bytes, big-endian."""
    row_bytes = 4 * dataset.tables.dim
    rows = np.memmap(dataset.rows_file, np.uint8, "r").reshape(-1, row_bytes)
    header = f"${row_bytes}\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for begin in range(0, len(rows), KEYS_OF_MSET):
            block = rows[begin : begin + KEYS_OF_MSET]
            keys = np.arange(begin, begin + len(block), dtype=">u8")[:, None].view(np.uint8)
            command = np.concatenate(
                [
                    _repeated(b"$8\r\n", block),
                    keys,
                    _repeated(b"\r\n" + header, block),
                    block,
                    _repeated(b"\r\n", block),
                ],
                axis=1,
            )
            connection.sendall(f"*{2 * len(block) + 1}\r\n$4\r\nMSET\r\n".encode() + command.tobytes())
            if connection.recv(64) != b"+OK\r\n":
                raise SystemExit("Redis refused rows: is there memory enough?")


def _repeated(text: bytes, block: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.frombuffer(text, np.uint8), (len(block), len(text)))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
