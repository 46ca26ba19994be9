"""What a version adds to those that were there before it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rankhouse.embedding_cache.format.version import Version


@dataclass(frozen=True)
class Addition:
    """What a version adds to a store by itself.

    Attributes:
        num_rows: Rows in files that no older version names.
        num_removed: Rows that its new deltas remove.
        num_bytes: The bytes of these files and of those in its folder.
    """

    num_rows: int
    num_removed: int
    num_bytes: int


def additions(versions: Sequence[Version]) -> list[Addition]:
    """Says for each of a store's versions, oldest first, what it adds to those before it."""
    seen: set[str] = set()
    found = []
    for version in versions:
        segments = [file for table in version.tables for file in table.segments if file.sha256 not in seen]
        deltas = [file for table in version.tables for file in table.deltas if file.sha256 not in seen]
        shared = [file for file in version.record.shared_files if file.sha256 not in seen]
        files = (*version.manifest.files.values(), *shared)
        found.append(
            Addition(
                num_rows=sum(file.num_rows for file in segments) + sum(file.num_rows for file in deltas),
                num_removed=sum(file.num_removed for file in deltas),
                num_bytes=sum(file.bytes for file in files),
            )
        )
        seen |= {file.sha256 for file in shared}
    return found
