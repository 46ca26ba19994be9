import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.errors import StorageError
from rankhouse.embedding_cache.format.locks import collecting, committing, fetching, writing


def open_modes(folder: Path) -> list[int]:
    """How this process has the files of a folder open."""
    modes = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent == folder:
                modes.append(fcntl.fcntl(int(descriptor), fcntl.F_GETFL) & os.O_ACCMODE)
        except OSError:  # That of the listing itself.
            continue
    return modes


@pytest.mark.parametrize("lock", [writing, partial(collecting, on_wait=lambda: None), committing, fetching])
def test_every_lock_can_be_had_on_nfs(tmp_path: Path, lock: Callable[[Path], AbstractContextManager[None]]) -> None:
    with lock(tmp_path):
        assert open_modes(tmp_path) == [os.O_RDWR]
    assert open_modes(tmp_path) == []


@pytest.mark.parametrize("is_relative", [False, True])
def test_only_the_errors_of_the_store_are_told_as_such(
    tmp_path: Path, is_relative: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Path("store") if is_relative else tmp_path / "store"
    store.mkdir()
    full = errno.ENOSPC, os.strerror(errno.ENOSPC)
    for error in (OSError(*full), OSError(*full, "store/a"), OSError(*full, str(tmp_path / "store" / "a"))):
        with pytest.raises(StorageError, match=r"No space left .* no version was changed"), writing(store):
            raise error
    for elsewhere in ("checkpoint", tmp_path / "store.old", b"/nowhere"):
        with pytest.raises(FileNotFoundError), writing(store):
            os.stat(elsewhere)


def test_writers_hold_theirs_together_and_keep_a_collection_waiting(tmp_path: Path) -> None:
    writers = ExitStack()
    with writing(tmp_path):
        writers.enter_context(writing(tmp_path))
    waited: list[bool] = []

    def let_go() -> None:
        waited.append(True)
        writers.close()

    with collecting(tmp_path, on_wait=let_go):
        assert waited == [True]
