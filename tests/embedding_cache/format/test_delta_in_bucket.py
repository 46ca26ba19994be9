"""A delta over a version in a bucket: what it moves is what it changes, on a machine that has nothing of it."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.format.content import DeltaContent
from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.excerpt import excerpt
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.records import TableContent
from rankhouse.embedding_cache.format.row_types import ROW_TYPES
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.vocabulary import Vocabularies
from tests.embedding_cache.format.small_store import blocks_of, rows_of, small_content, table_delta

NUM_ROWS = 20_000


def write_base(url: str, tmp_path: Path, *, dtype: str = "float32", **options: Any) -> Version:
    """Tables of 20,000 rows of 16 and of 5 rows of 2; a vocabulary of as many values."""
    content = small_content(tmp_path / "parts")
    CompiledTransform([], Vocabularies.build({"C1": np.arange(NUM_ROWS), "C2": np.arange(2)})).save(tmp_path / "parts")
    rows = rows_of(NUM_ROWS, 16) % 251
    tables = [TableContent("C1", NUM_ROWS, 16, blocks_of(rows, 1000), dtype), content.tables[1]]
    return VersionStore(url, cache=tmp_path / "base", **options).write(replace(content, tables=tables))


def write_delta(store: VersionStore, tmp_path: Path, row: int, **options: Any) -> Version:
    content = small_content(tmp_path / "delta")
    for name in ("transform.json", "transform.safetensors"):
        shutil.copy(tmp_path / "parts" / name, tmp_path / "delta")
    delta = table_delta("C1", {row: np.full(16, row % 7)}, num_rows=NUM_ROWS)
    parts = DeltaContent(content.dense, content.transform, 2, [delta], golden=content.golden)
    return store.write_delta(parts, store.open_in_place(), **options)


def looked_up(ids: Sequence[int], found: list[Any]) -> Callable[[Version], None]:
    """A check as an export's: it looks ids of C1 up, one to a bag, and nothing of C2."""
    lengths = np.array([[1] * len(ids), [0] * len(ids), [0] * len(ids)], np.int32)

    def check(version: Version) -> None:
        version.transform()
        with excerpt(version, {"C1": np.array(ids)}) as store:
            opened = Engine().open(store, version.name, verify=False)
            found.append(opened.lookup(np.array(ids), lengths)[:, :16])

    return check


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the bytes that are read from a storage, whole or in part."""
    counts: list[int] = []
    for name in ("_range", "read", "ranges"):
        method = getattr(ObjectStorage, name)

        def counted(*arguments: Any, method: Any = method) -> Any:
            found = method(*arguments)
            counts.append(sum(map(len, found)) if isinstance(found, list) else len(found or b""))
            return found

        monkeypatch.setattr(ObjectStorage, name, counted)
    return counts


@pytest.mark.parametrize("dtype", list(ROW_TYPES))
def test_a_delta_reads_the_rows_that_it_checks(tmp_path: Path, url: str, moved: list[int], dtype: str) -> None:
    base = write_base(url, tmp_path, dtype=dtype, segment_bytes=300_000)
    assert base.num_bytes > 300_000
    ids = [3, 0, 7, 19_999, 8, 7, 12_345]
    found: list[Any] = []
    for number, row in enumerate((7, 9)):
        moved.clear()
        store = VersionStore(url, cache=tmp_path / f"fresh-{number}")
        over = write_delta(store, tmp_path, row, check=looked_up(ids, found))
        assert sum(moved) < 40_000, "headers, a few rows and the parts of a version that are its own"
    expected = VersionStore(url, cache=tmp_path / "reader").open(over.name)
    np.testing.assert_array_equal(found[1], expected.rows("C1", np.array(ids)))
    for table in base.tables:
        assert not [file for file in table.files if (store.path / "segments" / f"{file.sha256}.safetensors").exists()]


def test_a_base_that_is_damaged_is_named(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/store"
    base = write_base(url, tmp_path)
    segment = f"segments/{base.tables[0].segments[0].sha256}.safetensors"
    files, root = fsspec.url_to_fs(url)
    content = files.cat_file(f"{root}/{segment}")
    fresh = VersionStore(url, cache=tmp_path / "fresh")
    files.pipe_file(f"{root}/{segment}", content[:-1])
    with pytest.raises(CorruptFileError, match=f"{url}/{segment}: has {len(content) - 1} bytes, expected"):
        fresh.open_in_place()
    files.pipe_file(f"{root}/{segment}", bytes(len(content)))
    with (
        pytest.raises(CorruptFileError, match=f"{segment}: is not a well-formed tensor file"),
        excerpt(fresh.open_in_place(), {}),
    ):
        pass
    files.pipe_file(f"{root}/{segment}", content)
    opened = fresh.open_in_place()
    files.rm_file(f"{root}/{segment}")
    with pytest.raises(CorruptFileError, match=f"{segment}: is missing"), excerpt(opened, {}):
        pass
    with pytest.raises(CorruptFileError, match=f"{segment}: is missing"):
        fresh.open_in_place()


def test_a_base_that_went_meanwhile_cannot_be_put_again(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/store"
    base = write_base(url, tmp_path)

    def remove(version: Version) -> None:
        ObjectStorage(url).delete(f"segments/{base.tables[0].segments[0].sha256}.safetensors")

    with pytest.raises(CorruptFileError, match="is not in the bucket, or not any more, and cannot be put"):
        write_delta(VersionStore(url, cache=tmp_path / "fresh"), tmp_path, 7, check=remove)
    assert VersionStore(url, cache=tmp_path / "fresh").names() == [base.name]
