"""New versions made of old ones: a chain of deltas folded into a new base, and an older version brought back.

Both leave the store as it is but for the new version, so each may be stopped at any point.
"""

import functools
from collections.abc import Callable
from dataclasses import replace

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError
from rankhouse.embedding_cache.format.locks import writing
from rankhouse.embedding_cache.format.progress import ByteProgress
from rankhouse.embedding_cache.format.records import TableContent, TableRecord
from rankhouse.embedding_cache.format.row_types import row_type_of
from rankhouse.embedding_cache.format.version import SEGMENT_BYTES, Version, VersionStore
from rankhouse.embedding_cache.format.version_record import Origin
from rankhouse.embedding_cache.format.writing import write_whole
from rankhouse.embedding_cache.maintenance.verification import open_verified

OnBytes = Callable[[int, int], None]


def _unheard(done: int, total: int) -> None:
    pass


def compact_version(
    store: VersionStore,
    name: str = "latest",
    *,
    model: str | None = None,
    segment_bytes: int = SEGMENT_BYTES,
    on_verified: OnBytes = _unheard,
    on_bytes: OnBytes = _unheard,
) -> Version:
    """Folds a version's deltas into a new base and publishes that as a new version, in the memory of a few blocks.

    Rows are copied as they lie, so every lookup gives the same bits. A row that was removed becomes one of zero bytes,
    which reads as zeros. The layers of the vocabularies stay as they are, because a later delta is told by them which
    values are new.

    Args:
        store: The store.
        name: The version, or "latest". It must be the newest of its model, as the new one will be.
        model: The model that it must be a version of; None takes any.
        segment_bytes: How many bytes of rows a segment may hold.
        on_verified: Called with the bytes verified so far and in all, before rows are written; by one thread at a time.
        on_bytes: Called with the bytes of rows written so far and in all; by one thread at a time.

    Returns:
        The new version; the version itself if it has no deltas.

    Raises:
        VersionNotFoundError: There is no such version.
        ContentError: Its model has a newer one, or got one meanwhile.
        FormatError: The version is damaged.
    """
    store.read(name, model=model)  # Before the lock's file is made: there must be such a version.
    with writing(store.path):
        # Every byte is compared: what is copied gets a checksum of its own.
        version = open_verified(store, name, model=model, on_bytes=on_verified)
        folded = [table for table in version.tables if table.deltas]
        if not folded:
            return version
        _check_newest(store, version)
        progress = ByteProgress(on_bytes, total=sum(_num_bytes(table) for table in folded))
        contents = [
            TableContent(table.name, table.num_rows, table.dim, progress.watch(version.blocks(table.name)), table.dtype)
            for table in folded
        ]
        tables, _ = write_whole(store.path, contents, (), segment_bytes=segment_bytes)
        written = {table.name: table for table in tables}
        record = replace(
            version.record,
            tables=tuple(written.get(table.name, table) for table in version.tables),
            parent=None,
            origin=Origin("compact", version.name),
        )

        return store.commit(
            record,
            version.path,
            check=functools.partial(_check_copied, version),
            last_look=functools.partial(_check_newest, store, version),
        )


def roll_back(store: VersionStore, name: str, *, on_verified: OnBytes = _unheard) -> Version:
    """Publishes the content of an older version as a new one, which is the latest then; the history stays as it is.

    Args:
        store: The store.
        name: The older version.
        on_verified: Called with the bytes verified so far and in all; by one thread at a time.

    Raises:
        VersionNotFoundError: There is no such version.
        FormatError: The version is damaged.
    """
    store.read(name)
    with writing(store.path):
        version = open_verified(store, name, on_bytes=on_verified)
        record = replace(version.record, origin=Origin("rollback", version.name))
        return store.commit(record, version.path, check=functools.partial(_check_copied, version))


def _num_bytes(table: TableRecord) -> int:
    return table.num_rows * row_type_of(table.dtype).row_bytes(table.dim)


def _check_newest(store: VersionStore, version: Version) -> None:
    """Refuses what would make an older state the latest: that is a rollback, and should be one by name."""
    newest = store.read(model=version.model)
    if newest.name != version.name:
        raise ContentError(
            f"{version.name} is not the newest version of {version.model!r}, that is {newest.name}; folded, it would "
            f"take its place as the latest: compact {newest.name}, or roll back to {version.name} first"
        )


def _check_copied(old: Version, new: Version) -> None:
    """Checks that the files of a version's folder were copied as they are."""
    for name, record in old.manifest.files.items():
        if new.manifest.files[name] != record:
            raise CorruptFileError(
                f"{old.path / name}: was altered while it was copied; verify the store and try again"
            )
