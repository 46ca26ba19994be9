"""Which files a version is made of: its own, in its folder, and those that it shares with other versions."""

from pathlib import Path

from rankhouse.embedding_cache.format.files import MANIFEST_NAME, FileRecord
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version


def shared_files(version: Version) -> dict[Path, FileRecord]:
    """The files of a version that other versions may name as well."""
    return {shared_path(version.store, record.sha256): record for record in version.record.shared_files}


def own_files(version: Version) -> dict[Path, FileRecord]:
    """The files in a version's folder that its manifest names."""
    return {version.path / name: record for name, record in version.manifest.files.items()}


def manifest_bytes(version: Version) -> int:
    """The size of a version's manifest."""
    return (version.path / MANIFEST_NAME).stat().st_size
