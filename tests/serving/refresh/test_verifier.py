import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import PreparationTimeoutError, ProcessFailedError
from rankhouse.serving.refresh import verifier as verifier_module
from rankhouse.serving.refresh.verifier import Contents, Verifier
from tests.serving.small_version import FEATURES, write_delta, write_version


def with_verifier(store: Path, use: Callable[[Verifier], Awaitable[None]]) -> None:
    async def run() -> None:
        verifier = Verifier(str(store))
        try:
            await use(verifier)
        finally:
            verifier.close()

    asyncio.run(run())


async def bytes_read(verifier: Verifier, version: Version) -> int:
    to_read = [0]
    contents = await verifier.verify(version, on_bytes=lambda done, whole: to_read.append(whole))
    assert contents == Contents(FEATURES, version.golden())
    return to_read[-1]


def workers() -> list[psutil.Process]:
    """This process's children that run `spawn_main`; one that just ended has no command any more."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
    return found


def has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def worker() -> Callable[[], psutil.Process]:
    """Finds a verifier's worker. Workers of earlier tests may still be ending."""
    others = set(workers())

    def find() -> psutil.Process:
        (found,) = set(workers()) - others
        return found

    return find


def test_a_file_is_read_once(tmp_path: Path) -> None:
    whole = write_version(tmp_path, seed=1)
    delta = write_delta(tmp_path, whole, seed=2)

    async def use(verifier: Verifier) -> None:
        assert await bytes_read(verifier, whole) == whole.num_bytes
        shared = sum(file.bytes for file in whole.record.shared_files)
        assert await bytes_read(verifier, delta) == delta.num_bytes - shared
        assert await bytes_read(verifier, delta) == 0
        verifier.forget(delta)
        assert await bytes_read(verifier, delta) == delta.num_bytes

    with_verifier(tmp_path, use)


def test_the_worker_takes_no_time_from_others(tmp_path: Path, worker: Callable[[], psutil.Process]) -> None:
    version = write_version(tmp_path, seed=1)

    async def use(verifier: Verifier) -> None:
        await bytes_read(verifier, version)
        assert worker().nice() == 19
        assert os.sched_getscheduler(worker().pid) == os.SCHED_IDLE

    with_verifier(tmp_path, use)


def test_damage_is_found_in_the_other_process(tmp_path: Path) -> None:
    version = write_version(tmp_path, seed=1)
    content = bytearray(version.dense_path.read_bytes())
    content[-1] ^= 1
    version.dense_path.write_bytes(content)

    async def use(verifier: Verifier) -> None:
        for _ in range(2):
            with pytest.raises(CorruptFileError, match=r"dense.onnx: its content was altered"):
                await bytes_read(verifier, version)

    with_verifier(tmp_path, use)


def test_a_worker_that_dies_is_replaced(tmp_path: Path, worker: Callable[[], psutil.Process]) -> None:
    versions = [write_version(tmp_path, seed=seed) for seed in range(2)]

    async def use(verifier: Verifier) -> None:
        await bytes_read(verifier, versions[0])
        worker().kill()
        with pytest.raises(ProcessFailedError, match="died"):
            await bytes_read(verifier, versions[1])
        assert await bytes_read(verifier, versions[1]) > 0

    with_verifier(tmp_path, use)


def test_a_worker_that_hangs_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Callable[[], psutil.Process]
) -> None:
    versions = [write_version(tmp_path, seed=seed) for seed in range(2)]

    async def use(verifier: Verifier) -> None:
        await bytes_read(verifier, versions[0])
        hung = worker()
        hung.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(verifier_module, "_START_SECONDS", 0.2)
        with pytest.raises(PreparationTimeoutError, match="is it reachable"):
            await bytes_read(verifier, versions[1])
        monkeypatch.undo()
        assert await bytes_read(verifier, versions[1]) > 0
        deadline = time.monotonic() + 300
        while not has_ended(hung):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    with_verifier(tmp_path, use)
