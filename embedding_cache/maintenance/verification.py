"""Verification: every byte of versions is read and compared, several files at a time, each shared file once."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rankhouse.embedding_cache.format.delta import check_deltas
from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError, ManifestError
from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.local_storage import LocalStorage
from rankhouse.embedding_cache.format.storage import Storage
from rankhouse.embedding_cache.format.version import Version, VersionStore

_File = tuple[str, FileRecord]

# Reading from one disk gains little from more; hashing runs at about 1 GB/s in each.
_MOST_THREADS = 8


@dataclass(frozen=True)
class Damage:
    """A file that is not what its version says.

    Attributes:
        reason: The file, what is wrong with it and what to do.
        versions: The versions that need it.
    """

    reason: str
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Verification:
    """What a verification found.

    Attributes:
        sound: The versions without damage, with the size of all their files in bytes.
        damages: What is damaged, in the order of the versions.
        collected: The versions that went meanwhile, so that a file that is missing says nothing.
    """

    sound: dict[str, int]
    damages: tuple[Damage, ...]
    collected: frozenset[str] = frozenset()


def verify_versions(
    store: VersionStore,
    names: Sequence[str],
    *,
    num_threads: int | None = None,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Reads all files of versions in parallel and goes on after the first that is damaged.

    Args:
        store: The store.
        names: The versions.
        num_threads: How many files are read at the same time; None takes one per processor, 8 at most.
        on_bytes: Called with the bytes read so far and in all; by one thread at a time.

    Raises:
        VersionNotFoundError: There is no such version.
    """
    versions: list[Version] = []
    damages: list[Damage] = []
    for name in names:
        try:
            versions.append(store.read(name))
        except ManifestError as exc:
            damages.append(Damage(str(exc), (name,)))
    users: dict[_File, list[str]] = {}
    for version in versions:
        for file in version.files().items():
            users.setdefault(file, []).append(version.name)
    reasons = _check_files(store.storage, list(users), num_threads or _num_threads(), on_bytes)
    damages += [Damage(reason, tuple(users[file])) for file, reason in reasons.items()]
    damaged = {name for damage in damages for name in damage.versions}
    for version in versions:
        if version.name not in damaged and (reason := _misfit(store, version)):
            damages.append(Damage(reason, (version.name,)))
            damaged.add(version.name)
    sound = {version.name: version.num_bytes for version in versions if version.name not in damaged}
    collected = frozenset(damaged - set(store.names())) if damaged else frozenset()
    return Verification(
        sound, tuple(damage for damage in damages if not collected.issuperset(damage.versions)), collected
    )


def open_verified(
    store: VersionStore,
    name: str,
    *,
    model: str | None = None,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Version:
    """Opens a version as `VersionStore.open` does, with all that it verifies, but reads several files at a time.

    Args:
        store: The store.
        name: The version, or "latest".
        model: The model that it must be a version of; None takes any.
        on_bytes: Called with the bytes read so far and in all; by one thread at a time.

    Raises:
        VersionNotFoundError, ManifestError, CorruptFileError, StorageError: As `VersionStore.open` does.
    """
    version = store.open(name, model=model, verify=False)
    if _check_files(LocalStorage(store.path), list(version.files().items()), _num_threads(), on_bytes):
        # The store says what is wrong, or fetches again what is wrong in a bucket's mirror alone.
        return store.open(version.name)
    for table in version.tables:
        check_deltas(store.path, table)
    return version


def _num_threads() -> int:
    return min(_MOST_THREADS, os.cpu_count() or 1)


def _check_files(
    storage: Storage, files: Sequence[_File], num_threads: int, on_bytes: Callable[[int, int], None]
) -> dict[_File, str]:
    """Reads files in parallel; returns what is wrong with those that are damaged, in their order."""
    total, done, lock = sum(record.bytes for _, record in files), 0, threading.Lock()

    def count(num_bytes: int) -> None:
        nonlocal done
        with lock:
            done += num_bytes
            on_bytes(done, total)

    def fault(file: _File) -> str:
        try:
            storage.check(*file, on_bytes=count)
        except CorruptFileError as exc:
            return str(exc)
        return ""

    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="verify")
    try:
        reasons = dict(zip(files, pool.map(fault, files), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)
    return {file: reason for file, reason in reasons.items() if reason}


def _misfit(store: VersionStore, version: Version) -> str:
    """Opens what a version says it is made of; says what does not fit, though every byte is as it was written.

    Not the tables of a bucket, which would all be fetched into the mirror for that.
    """
    tables = version.tables if isinstance(store.storage, LocalStorage) else ()
    try:
        store.open(version.name, verify=False, tables=bool(tables))
        for table in tables:
            version.table_rows(table.name)
        version.golden()
    except FormatError as exc:
        return str(exc)
    return ""
