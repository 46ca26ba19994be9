from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.errors import HpsError
from rankhouse.embedding_cache.format.row_types import row_type_of
from rankhouse.embedding_cache.hps import external_order
from rankhouse.embedding_cache.hps.ps_json import HpsTable
from rankhouse.embedding_cache.hps.table_files import TableFiles, open_table
from tests.embedding_cache.hps.hps_folder import ITEMS, USERS, Rows, row_of, write_table


def opened(folder: Path, rows: Rows, *, has_long_keys: bool = True) -> TableFiles:
    dim = len(next(iter(rows.values())))
    table = HpsTable("item", write_table(folder, rows), dim, 0.5, 2, "models[0].sparse_files[0]")
    return open_table(table, has_long_keys=has_long_keys)


@pytest.mark.parametrize("rows", [ITEMS, USERS], ids=["unsorted", "sorted"])
@pytest.mark.parametrize("block_bytes", [1, 30, 1 << 20])
@pytest.mark.parametrize("direct_bytes", [0, 1 << 20])
def test_rows_come_in_the_order_of_their_keys(
    tmp_path: Path, rows: Rows, block_bytes: int, direct_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_BLOCK_BYTES", "_BUCKET_BYTES"):
        monkeypatch.setattr(external_order, name, block_bytes)
    monkeypatch.setattr(external_order, "DIRECT_BYTES", direct_bytes)
    table = opened(tmp_path, rows)
    assert (table.order is None) == (list(rows) == sorted(rows))
    assert table.num_rows == 3 + len(rows)
    padding, missing, unknown, *known = np.concatenate(list(table.blocks(scratch=tmp_path)))
    assert padding.tolist() == [0.0] * len(padding)
    assert missing.tolist() == unknown.tolist() == [0.5] * len(padding)
    np.testing.assert_array_equal(known, [rows[key] for key in sorted(rows)])
    assert sum(table.check_values(row_type_of("float32"))) == table.rows.nbytes


def test_an_unknown_key_gives_the_default(tmp_path: Path) -> None:
    keys = [7, 8, 2**63 - 1, -(2**63), -3]
    np.testing.assert_array_equal(
        opened(tmp_path, ITEMS).find(np.array(keys)), [row_of(ITEMS, key, 0.5) for key in keys]
    )


@pytest.mark.parametrize("name", ["key", "emb_vector"])
def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path, name: str) -> None:
    table = opened(tmp_path / "t", ITEMS).table
    (tmp_path / "t" / name).write_bytes(b"")
    with pytest.raises(HpsError, match=f"{tmp_path / 't' / name}: is empty, for table 'item'"):
        open_table(table, has_long_keys=True)
    (tmp_path / "t" / name).unlink()
    with pytest.raises(HpsError, match=rf"{name}: there is no such file, .* into models\[0\].sparse_files\[0\]"):
        open_table(table, has_long_keys=True)
    (tmp_path / "t" / name).mkdir()
    with pytest.raises(HpsError, match=f"{name}: there is no such file"):
        open_table(table, has_long_keys=True)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("emb_vector", bytes(4 * 3 * 4 - 4), "key has 32 bytes, 4 keys of int64; .*44 bytes, 3.666666667 rows of 3"),
        ("emb_vector", bytes(4 * 5 * 4), "they fit an embedding_vecsize_per_table of 5"),
        ("key", bytes(30), "was one cut off"),
        ("key", bytes(7), "was one cut off"),
        ("key", bytes(16), "they fit keys of 32 bits, but HPS reads int64"),
    ],
)
def test_files_that_do_not_fit_each_other_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    table = opened(tmp_path, ITEMS).table
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HpsError, match=message):
        open_table(table, has_long_keys=True)


@pytest.mark.parametrize("keys", [[4, 9, 2, 9, 1], [1, 9, 9, 11], [9, 9]])
def test_a_key_that_stands_twice_is_refused(tmp_path: Path, keys: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_order, "_BLOCK_BYTES", 16)
    table = opened(tmp_path, dict.fromkeys(range(len(keys)), (1.0,))).table
    np.array(keys).tofile(tmp_path / "key")
    first, second = (index for index, key in enumerate(keys) if key == 9)
    with pytest.raises(HpsError, match=f"key: key 9 stands twice, at {first} and {second}, for table 'item'"):
        open_table(table, has_long_keys=True)


@pytest.mark.parametrize(("key", "found"), [(-1, 2**32 - 1), (2**32, 0), (2**40 + 5, 5)])
def test_a_key_that_hps_would_cut_is_refused(tmp_path: Path, key: int, found: int) -> None:
    rows = {3: (1.0,), key: (2.0,), 2**32 - 1: (3.0,)}
    assert len(opened(tmp_path, rows).keys) == 3
    with pytest.raises(HpsError, match=f"key {key}, at 1, .* is false, HPS finds it as {found}. Set supportlonglong"):
        opened(tmp_path, rows, has_long_keys=False)
    del rows[key]
    assert opened(tmp_path, rows, has_long_keys=False).keys.tolist() == [3, 2**32 - 1]


@pytest.mark.parametrize(
    ("value", "row_type", "message"),
    [
        (np.nan, "float32", "row 1, of key 2, holds nan, which float32 cannot; export the table from a sound model"),
        (np.inf, "int8", "row 1, of key 2, holds inf, which int8 cannot; export"),
        (-70000.0, "float16", "row 1, of key 2, holds -70000.0, which float16 cannot; use another row type"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused(tmp_path: Path, value: float, row_type: str, message: str) -> None:
    table = opened(tmp_path, {5: (1.0, 2.0), 2: (3.0, value), 9: (4.0, 5.0)})
    with pytest.raises(HpsError, match=message):
        list(table.check_values(row_type_of(row_type)))


def test_a_default_that_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    table = HpsTable("item", write_table(tmp_path, USERS), 2, 1e5, 2, "models[0].sparse_files[0]")
    found = open_table(table, has_long_keys=True)
    with pytest.raises(HpsError, match=r"table 'item' has the default 100000\.0, which float16 cannot hold"):
        list(found.check_values(row_type_of("float16")))
    assert sum(found.check_values(row_type_of("bfloat16"))) == found.rows.nbytes
