"""Which files a version is made of: its own, in its folder, and those that it shares with other versions."""

from pathlib import Path

from rankhouse.embedding_cache.format.files import MANIFEST_NAME, FileRecord
from rankhouse.embedding_cache.format.version import Version


def shared_files(version: Version) -> dict[Path, FileRecord]:
    """The files of a version that other versions may name as well."""
    segments = [segment for table in version.tables for segment in table.segments]
    return {segment.path(version.store): FileRecord(bytes=segment.bytes, sha256=segment.sha256) for segment in segments}


def own_files(version: Version) -> dict[Path, FileRecord]:
    """The files in a version's folder that its manifest names."""
    return {version.path / name: record for name, record in version.manifest.files.items()}


def manifest_bytes(version: Version) -> int:
    """The size of a version's manifest."""
    return (version.path / MANIFEST_NAME).stat().st_size
