"""What the crash tests do to a small store: it holds a whole version and a delta, then one more operation is done."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from rankhouse.embedding_cache.format.content import DeltaContent
from rankhouse.embedding_cache.format.records import TableDelta
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.maintenance.collection import collect_garbage
from rankhouse.embedding_cache.maintenance.publication import compact_version, roll_back
from tests.embedding_cache.format.small_store import blocks_of, rows_of, small_content


def make_store(root: Path) -> VersionStore:
    """A whole version and two deltas over it; C1 is float32, C2 int8."""
    store = VersionStore(root / "store")
    content = small_content(root / "parts")
    store.write(replace(content, tables=[content.tables[0], replace(content.tables[1], dtype="int8")]))
    _write_delta(store, root, 10)
    _write_delta(store, root, 20)
    return store


def _write_delta(store: VersionStore, root: Path, first: float) -> Version:
    parent = store.open(verify=False)
    num_rows = parent.tables[0].num_rows
    ids, removed = np.array([1, 4, num_rows]), np.array([2, 5])
    whole = small_content(root / "parts", first=first)
    content = DeltaContent(
        dense=whole.dense,
        transform=whole.transform,
        num_dense=whole.num_dense,
        tables=[
            TableDelta("C1", num_rows + 1, ids, blocks_of(rows_of(3, 3, first)), removed),
            TableDelta("C2", 5, np.array([3]), blocks_of(rows_of(1, 2, first))),
        ],
        golden=whole.golden,
    )
    return store.write_delta(content, parent)


def _write(store: VersionStore, root: Path) -> None:
    store.write(small_content(root / "parts", first=1000))


def _collect(store: VersionStore, root: Path) -> None:
    collect_garbage(store, keep=1, grace_seconds=0)


STORIES: dict[str, Callable[[VersionStore, Path], object]] = {
    "write": _write,
    "write_delta": lambda store, root: _write_delta(store, root, 30),
    "compact": lambda store, root: compact_version(store, "latest"),
    "rollback": lambda store, root: roll_back(store, store.names()[0]),
    "gc": _collect,
}


def contents(store: VersionStore) -> dict[str, str]:
    """Opens each version, reads all that it holds, and names that by its hash."""
    return {name: content_of(store.open(name)) for name in store.names()}


def content_of(version: Version) -> str:
    """The hash of what a version holds, but for its manifest."""
    digest = hashlib.sha256()
    for table in version.tables:
        digest.update(f"{table.name} {table.num_rows} {table.dim} {table.dtype}".encode())
        for block in version.blocks(table.name):
            digest.update(block.tobytes())
    for name in version.manifest.files:
        digest.update((version.path / name).read_bytes())
    return digest.hexdigest()
