"""What a version adds to those that were there before it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rankhouse.embedding_cache.format.version import Version


@dataclass(frozen=True)
class Addition:
    """What a version adds to a store by itself: what a delta costs beyond its parent.

    Attributes:
        num_rows: Rows in files that none of the versions before it names.
        num_removed: Rows that its new deltas remove.
        num_bytes: The bytes of these files and of those in its folder.
    """

    num_rows: int
    num_removed: int
    num_bytes: int


def additions(versions: Sequence[Version]) -> list[Addition]:
    """Says for each of some versions of a store, oldest first, what it adds to those before it."""
    seen: set[str] = set()
    found = []
    for version in versions:
        segments = [file for table in version.tables for file in table.segments if file.sha256 not in seen]
        deltas = [file for table in version.tables for file in table.deltas if file.sha256 not in seen]
        shared = {file.sha256: file for file in version.record.shared_files if file.sha256 not in seen}
        files = (*version.manifest.files.values(), *shared.values())
        found.append(
            Addition(
                num_rows=sum(file.num_rows for file in segments) + sum(file.num_rows for file in deltas),
                num_removed=sum(file.num_removed for file in deltas),
                num_bytes=sum(file.bytes for file in files),
            )
        )
        seen |= set(shared)
    return found
