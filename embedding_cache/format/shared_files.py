"""Files that versions share: `segments/<sha256>.safetensors`, each named by the hash of its content.

Segments of rows, deltas and vocabularies lie there. What a version shares with another is stored once, and a name
vouches for what it names.
"""

import os
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path

from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.files import FileRecord, check_content, copy_file, file_record, flush

SEGMENTS = "segments"


def shared_path(store: Path, sha256: str) -> Path:
    """Where a file of this content lies in a store."""
    return store / SEGMENTS / f"{sha256}.safetensors"


def new_path(store: Path) -> Path:
    """A name for a file that is being written; readers look past it."""
    folder = store / SEGMENTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f".tmp-{uuid.uuid4().hex}"


def adopt(store: Path, temporary: Path, record: FileRecord) -> None:
    """Gives a complete file the name of its content; where a sound file of that name exists, it stays.

    The name is on the disk after `flush_names`, once for many files.

    Args:
        store: The store's folder.
        temporary: The file, flushed to the disk, under a name of `new_path`.
        record: Its size and checksum.
    """
    path = shared_path(store, record.sha256)
    if path.exists() and _is_sound(path, record):
        temporary.unlink()
    else:
        os.replace(temporary, path)


def flush_names(store: Path) -> None:
    """Flushes the names of all shared files to the disk, also of those that another writer has just put there."""
    flush(store / SEGMENTS)


def take_in(store: Path, source: Path, *, known: Collection[FileRecord] = ()) -> FileRecord:
    """Copies a file into a store.

    Args:
        store: The store's folder.
        source: The file.
        known: Files that the store holds already, and that need not be written again.

    Raises:
        CorruptFileError: It cannot be read.
    """
    if any(source.is_file() and source.stat().st_size == record.bytes for record in known):
        record = file_record(source)
        if record in known:
            return record
    temporary = new_path(store)
    try:
        record = copy_file(source, temporary)
        flush(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    adopt(store, temporary, record)
    return record


def shared_files(records: Iterable[FileRecord]) -> dict[str, FileRecord]:
    """Names shared files: path in the store to record."""
    return {str(shared_path(Path(), record.sha256)): record for record in records}


def _is_sound(path: Path, record: FileRecord) -> bool:
    try:
        check_content(path, record)
    except CorruptFileError:
        return False
    return True
