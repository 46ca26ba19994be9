"""Reading and hashing versions' files in a process of low priority, so that requests do not wait for it."""

import asyncio
import os
import signal
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from rankhouse.embedding_cache.format.delta import check_deltas
from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.serving.errors import PreparationTimeoutError, ProcessFailedError
from rankhouse.serving.processes import die_with_parent

# A task of the worker is so large, so that what it found is kept although a later one fails or takes too long.
_TASK_BYTES, _TASK_FILES = 1 << 30, 256
_START_SECONDS, _SLOWEST_BYTES_PER_SECOND = 60.0, 5e6
# Remembering a file takes some 300 bytes.
_MOST_REMEMBERED = 200_000
_LOWEST_PRIORITY = 19

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Contents:
    """What a sound version holds for the gateway.

    Attributes:
        features: What a row may hold.
        golden: The golden requests.
    """

    features: tuple[Feature, ...]
    golden: tuple[GoldenRequest, ...]


class Verifier:
    """Verifies versions, each file once: a delta costs its own bytes. Use from one event loop's thread.

    The worker process starts with the first version, and dies with this process.

    Args:
        location: The version store, a folder or a URL.
        cache: The folder below which a URL is mirrored.
    """

    def __init__(self, location: str, *, cache: Path | None = None) -> None:
        self._place = (location, None if cache is None else str(cache))
        self._verified: OrderedDict[tuple[str, FileRecord], None] = OrderedDict()
        self._pool: ProcessPoolExecutor | None = None
        self._pid: Future[int] | None = None

    async def verify(self, version: Version, *, on_bytes: Callable[[int, int], None]) -> Contents:
        """Reads what was not read before, compares checksums, and checks that the parts belong together.

        Args:
            version: The version.
            on_bytes: Called with the bytes that were read, and those that are to be read.

        Raises:
            FormatError: The version is damaged, or the store cannot be reached.
            PreparationTimeoutError: Reading takes longer than it may.
            ProcessFailedError: The worker died.
        """
        files = version.files()
        new = {path: record for path, record in files.items() if (path, record) not in self._verified}
        to_read = sum(record.bytes for record in new.values())
        done = 0
        for part in _tasks(new):
            on_bytes(done, to_read)
            size = sum(record.bytes for record in part.values())
            await self._call(_check_files, self._place, part, num_bytes=size)
            done += size
            self._remember(part)
        return await self._call(_check_whole, self._place, version.name, version.model, num_bytes=0)

    def forget(self, version: Version) -> None:
        """Has a version's files read again when it is verified the next time."""
        for file in version.files().items():
            self._verified.pop(file, None)

    def close(self) -> None:
        """Ends the worker, whatever it is doing."""
        pool, pid = self._pool, self._pid
        self._pool = self._pid = None
        if pool is None or pid is None:
            return
        if pid.done() and not pid.cancelled() and pid.exception() is None:
            with suppress(ProcessLookupError):
                os.kill(pid.result(), signal.SIGKILL)
        pool.shutdown(wait=False, cancel_futures=True)

    async def _call(self, function: Callable[..., _Result], *arguments: Any, num_bytes: int) -> _Result:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1, mp_context=get_context("spawn"), initializer=_step_back, initargs=(os.getpid(),)
            )
            self._pid = self._pool.submit(os.getpid)
        seconds = _START_SECONDS + num_bytes / _SLOWEST_BYTES_PER_SECOND
        try:
            task = asyncio.wrap_future(self._pool.submit(function, *arguments))
            return await asyncio.wait_for(task, seconds)
        except asyncio.TimeoutError as exc:
            self.close()
            raise PreparationTimeoutError(
                f"reading {num_bytes:,} bytes of {self._place[0]} took longer than {seconds:.0f} s; is it reachable?"
            ) from exc
        except BrokenProcessPool as exc:
            self.close()
            raise ProcessFailedError("the process that verifies versions died; it is started again") from exc
        except asyncio.CancelledError:
            self.close()
            raise

    def _remember(self, files: Mapping[str, FileRecord]) -> None:
        self._verified.update(dict.fromkeys(files.items()))
        while len(self._verified) > _MOST_REMEMBERED:
            self._verified.popitem(last=False)


def _tasks(files: Mapping[str, FileRecord]) -> Iterator[dict[str, FileRecord]]:
    """Cuts files into parts, none of them larger than a task may be unless it is one file."""
    part: dict[str, FileRecord] = {}
    size = 0
    for path, record in files.items():
        if part and (size + record.bytes > _TASK_BYTES or len(part) == _TASK_FILES):
            yield part
            part, size = {}, 0
        part[path] = record
        size += record.bytes
    if part:
        yield part


# What follows runs in the worker.


def _step_back(parent: int) -> None:
    """Takes the processor only where nobody else wants it, and dies with the parent."""
    die_with_parent()
    if os.getppid() != parent:  # It died before.
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_LOWEST_PRIORITY)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@lru_cache(maxsize=1)
def _store(place: tuple[str, str | None]) -> VersionStore:
    location, cache = place
    return VersionStore(location, cache=cache)


def _check_files(place: tuple[str, str | None], files: Mapping[str, FileRecord]) -> None:
    _store(place).storage.fetch(files, verify=True)


def _check_whole(place: tuple[str, str | None], name: str, model: str) -> Contents:
    store = _store(place)
    version = store.open(name, model=model, verify=False)
    for table in version.tables:
        check_deltas(store.path, table)
    return Contents(version.transform().features, version.golden())
