"""What stands where in a store, in a folder or in a bucket, and what a look at it finds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rankhouse.embedding_cache.format.files import Manifest
from rankhouse.embedding_cache.format.version_record import sequence_of

VERSIONS = "versions"
REMOVED = ".removed-"

# In a bucket: a collection that is about to remove files.
ANNOUNCEMENT = ".collection-"

# In a bucket, in place of a manifest, which is longer: this version was given up and can never appear.
ABANDONED = b"abandoned\n"

# Completes the version in a temporary folder with a manifest of this sequence number.
Seal = Callable[[int], Manifest]

# Reads parts of a file of a store, by its path in there and where they begin and end, in bytes; they are not verified.
Ranges = Callable[[str, Sequence[tuple[int, int]]], list[bytes]]

# Called when no version of a lower number can appear any more; if it raises, the new version does not appear.
LastLook = Callable[[], None]


@dataclass(frozen=True)
class Entry:
    """A file of `segments/`, or a folder or file of `versions/`.

    Attributes:
        path: Its path in the store.
        bytes: Its size, or that of the files in the folder.
        last_change: When it, or anything in the folder, was last written to; in seconds since 1970.
        is_complete: Whether it is a folder with a manifest.
    """

    path: str
    bytes: int
    last_change: float
    is_complete: bool


def version_name(sequence: int, manifest: Manifest) -> str:
    """Names a version: `<sequence, 6 digits>-<first 8 hex digits of the SHA-256 of its manifest>`."""
    return f"{sequence:06d}-{manifest.sha256[:8]}"


def oldest_first(names: Iterable[str]) -> list[str]:
    """Sorts versions' names by their sequence numbers."""
    return sorted(names, key=lambda name: (sequence_of(name), name))
