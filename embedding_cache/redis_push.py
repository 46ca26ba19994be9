"""Versions pushed to Redis, whose rows an engine without room for the files reads there. FORMAT.md, "In Redis"."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.errors import OptionError
from rankhouse.embedding_cache.format.files import FORMAT_VERSION
from rankhouse.embedding_cache.format.progress import ByteProgress
from rankhouse.embedding_cache.format.records import DeltaRecord, SegmentRecord, TableRecord
from rankhouse.embedding_cache.format.row_types import row_type_of
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.redis_client import RedisClient

# A version is gone before its rows are, so that what was opened just before its end can still be read.
_GRACE_SECONDS = 3600


@dataclass(frozen=True)
class PushedVersion:
    """What a push did.

    Attributes:
        num_files: How many files the version's tables have.
        num_bytes: Their size.
        num_sent: How many of these bytes Redis lacked.
    """

    num_files: int
    num_bytes: int
    num_sent: int


def push_version(
    version: Version,
    client: RedisClient,
    *,
    ttl_seconds: float | None = None,
    patience_seconds: float = 30,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> PushedVersion:
    """Brings the rows of a version into Redis; it appears there when all of them are.

    Files that other versions have brought are not sent again. A push that broke is just done again.

    Args:
        version: The version, opened with all its files verified: they are known by their hashes alone afterwards.
        client: Where to.
        ttl_seconds: How long the version stays; None is for ever. What is shared with versions that stay longer, stays.
        patience_seconds: How long a step of some MiB may take.
        on_bytes: Called with the bytes so far and in all.

    Raises:
        TierError: Redis cannot be reached, is too slow, or does not hold what it was given.
        CorruptFileError: A file is missing or not what the manifest says.
        OptionError: The time to live is not positive.
    """
    if ttl_seconds is not None and ttl_seconds <= 0:
        raise OptionError(f"the version is to stay for {ttl_seconds} seconds; expected more than 0, or None for ever")
    ends_ms = None if ttl_seconds is None else int(1000 * (time.time() + ttl_seconds))
    patience_ms = int(1000 * patience_seconds)
    files = {file.sha256: (table, file.bytes) for table in version.tables for file in table.files}
    progress = ByteProgress(on_bytes, total=sum(num_bytes for _, num_bytes in files.values()))
    for table in version.tables:
        version.table_rows(table.name)  # Its files' headers say the same as the manifest.
    num_sent = 0
    for sha256, (table, _) in files.items():
        path = shared_path(version.store, sha256)
        num_sent += client.push_file(
            path,
            sha256=sha256,
            rows=(_rows_begin(path), _row_bytes(table), _num_rows(table, sha256)),
            expires_at_ms=0 if ends_ms is None else ends_ms + 1000 * _GRACE_SECONDS,
            patience_ms=patience_ms,
            on_bytes=progress.add,
        )
    client.push_version(version.name, _document(version), expires_at_ms=ends_ms or 0, patience_ms=patience_ms)
    return PushedVersion(len(files), sum(num_bytes for _, num_bytes in files.values()), num_sent)


def _document(version: Version) -> str:
    """What the version's key holds: always the same for the same version, so that a push can be done again."""
    return json.dumps(
        {
            "format": "rankhouse.redis_version",
            "format_version": FORMAT_VERSION,
            "model": version.model,
            "name": version.name,
            "manifest_sha256": version.manifest.sha256,
            "files": [file.sha256 for table in version.tables for file in table.files],
        }
    )


def _rows_begin(path: Path) -> int:
    """Where the rows of a segment or a delta begin: behind the header, whose length the file begins with."""
    with open(path, "rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def _row_bytes(table: TableRecord) -> int:
    return row_type_of(table.dtype).row_bytes(table.dim)


def _num_rows(table: TableRecord, sha256: str) -> int:
    files: tuple[SegmentRecord | DeltaRecord, ...] = (*table.segments, *table.deltas)
    return next(file.num_rows for file in files if file.sha256 == sha256)
