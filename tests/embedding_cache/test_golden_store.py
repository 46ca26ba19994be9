"""The committed stores: they must stay readable. Never make them anew; what is new gets another store beside them.

`golden` was made once by `write_version` of tests/serving/small_version.py, `golden_chain` by `write_chain` of
golden_chain.py.
"""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.format.version_record import Source
from tests.embedding_cache.golden_chain import DAYS, ROW_TYPES, ROWS, ChainModel

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "format/golden"
GOLDEN_CHAIN = GOLDEN.with_name("golden_chain")
NAME = "000001-00f043b8"
CHAIN = ["000001-ab01e749", "000002-233a39bb", "000003-b7a8a7ab"]
SEGMENTS = {
    "78926f99309fda755bd3452541248e3fffc5a761d8838edf8a1e470d1a32d58d",
    "a639aae75619e3c524663fa07dde211383cc0f46f5984aa3c11487b699a9a3ed",
    "ad36103d158ba8a461a053edc24110a818f76e293c7a4cd39735033564424a18",
    "db87addd3e5f9906ef55bfcddda5f25fc95d782833545a16deb7354b8a12898f",
}


def test_the_stores_are_those_that_were_committed() -> None:
    assert {path.stem for path in (GOLDEN / "segments").iterdir()} == SEGMENTS
    assert len(list((GOLDEN_CHAIN / "segments").iterdir())) == 16
    for store, names in ((GOLDEN, [NAME]), (GOLDEN_CHAIN, CHAIN)):
        assert sorted(path.name for path in (store / "versions").iterdir()) == names
        for path in (store / "segments").iterdir():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
        for name in names:
            manifest = (store / "versions" / name / "manifest.json").read_bytes()
            assert hashlib.sha256(manifest).hexdigest()[:8] == name.split("-")[1]


def test_opens_and_scores_its_golden_requests() -> None:
    version = VersionStore(GOLDEN).open(NAME)
    assert (version.model, version.num_dense, version.embeddings_dim) == ("small", 2, 16)
    assert {table.name: len(table.segments) for table in version.tables} == {"city": 2, "tag": 1, "item": 1}
    transform = version.transform()
    dense = onnxruntime.InferenceSession(version.dense_path)
    for golden in version.golden():
        batch = transform.apply(RawBatch.from_rows(transform.features, golden.rows()))
        embeddings = Engine().open(version.store, version.name).lookup(batch.ids, batch.lengths)
        (scores,) = dense.run(["scores"], {"dense": batch.dense, "embeddings": embeddings})
        np.testing.assert_allclose(scores, golden.scores, atol=1e-6)


def test_every_day_of_the_chain_scores_as_its_model_did() -> None:
    model = ChainModel()
    for number, name in enumerate(CHAIN):
        if number:
            model.live_through(DAYS[number - 1])
        version = VersionStore(GOLDEN_CHAIN).open(name)
        assert version.source == Source("chain-1", f"0{number}", 100 + number)
        assert {table.name: table.dtype for table in version.tables} == ROW_TYPES
        for table in version.tables:
            np.testing.assert_array_equal(version.rows(table.name, np.arange(table.num_rows)), model.rows[table.name])
        transform = version.transform()
        assert len(transform.vocabularies.layers) == 1 + number
        batch = transform.apply(RawBatch.from_rows(transform.features, list(ROWS)))
        embeddings = Engine().open(version.store, version.name).lookup(batch.ids, batch.lengths)
        dense = onnxruntime.InferenceSession(version.dense_path)
        (scores,) = dense.run(["scores"], {"dense": batch.dense, "embeddings": embeddings})
        np.testing.assert_allclose(scores, model.scores(), atol=1e-6)
        np.testing.assert_allclose(version.golden()[0].scores, model.scores(), atol=1e-12)


def test_deltas_lie_as_the_format_says() -> None:
    first, _, last = (VersionStore(GOLDEN_CHAIN).open(name) for name in CHAIN)
    assert [len(table.deltas) for table in first.tables] == [0, 0, 0, 0]
    assert [len(table.deltas) for table in last.tables] == [2, 2, 2, 2]
    for table in last.tables:
        names = [segment.sha256 for segment in table.segments]
        for number, delta in enumerate(table.deltas):
            content = shared_path(GOLDEN_CHAIN, delta.sha256).read_bytes()
            assert int.from_bytes(content[:8], "little") == 4088
            header = json.loads(content[8:4096])
            chain = hashlib.sha256("".join(f"{name}\n" for name in names).encode()).hexdigest()
            assert header.pop("__metadata__") == {
                "format": "rankhouse.delta",
                "format_version": "1",
                "table": table.name,
                "row_type": table.dtype,
                "chain": chain,
            }
            code, element, extra = {"city": ("F32", 4, 0), "tag": ("F16", 2, 0), "shop": ("BF16", 2, 0)}.get(
                table.name, ("U8", 1, 8)
            )
            columns = table.dim + extra
            ends = np.cumsum([0, delta.num_rows * columns * element, delta.num_rows * 8, delta.num_removed * 8])
            assert list(header) == ["rows", "ids", "removed"]
            assert header["rows"] == {"dtype": code, "shape": [delta.num_rows, columns], "data_offsets": [0, ends[1]]}
            assert header["ids"] == {"dtype": "I64", "shape": [delta.num_rows], "data_offsets": [ends[1], ends[2]]}
            assert header["removed"]["data_offsets"] == [ends[2], ends[3]]
            assert len(content) == 4096 + ends[3] == delta.bytes
            day = DAYS[number]
            ids = np.frombuffer(content[4096 + ends[1] :], "<i8").tolist()
            assert ids == [*day.changed.get(table.name, []), *day.removed.get(table.name, [])]
            names.append(delta.sha256)


def test_segments_lie_as_the_format_says() -> None:
    version = VersionStore(GOLDEN).open()
    for table in version.tables:
        for segment in table.segments:
            content = shared_path(GOLDEN, segment.sha256).read_bytes()
            assert int.from_bytes(content[:8], "little") == 4088
            header = json.loads(content[8:4096])
            assert header == {
                "__metadata__": {
                    "format": "rankhouse.segment",
                    "format_version": "1",
                    "table": table.name,
                    "row_begin": str(segment.row_begin),
                },
                "rows": {
                    "dtype": "F32",
                    "shape": [segment.num_rows, table.dim],
                    "data_offsets": [0, 4 * segment.num_rows * table.dim],
                },
            }
            rows = np.frombuffer(content[4096:], "<f4").reshape(-1, table.dim)
            number = table.segments.index(segment)
            np.testing.assert_array_equal(rows, version.table_rows(table.name).segments[number])


def run_script_of_the_format(store: Path) -> subprocess.CompletedProcess[str]:
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "embedding_cache/FORMAT.md").read_text(), re.DOTALL)
    assert "rankhouse" not in script
    command = [sys.executable, "-c", script, str(store)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("store", [GOLDEN, GOLDEN_CHAIN], ids=["whole", "chain"])
def test_the_script_of_the_format_reads_it(store: Path) -> None:
    done = run_script_of_the_format(store)
    assert done.returncode == 0, done.stderr
    version = VersionStore(store).open()
    expected = []
    for table in version.tables:
        rows = version.rows(table.name, np.arange(table.num_rows))
        expected.append(f"{table.name} {rows.shape} row 3 = {rows[3].tolist()} sum = {rows.sum(dtype=np.float64)}")
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("store", [GOLDEN, GOLDEN_CHAIN], ids=["whole", "chain"])
@pytest.mark.parametrize("file", ["segments/*", "versions/*/golden.json", "versions/*/manifest.json"])
def test_the_script_of_the_format_refuses_altered_bytes(tmp_path: Path, store: Path, file: str) -> None:
    shutil.copytree(store, tmp_path / "store")
    altered = sorted((tmp_path / "store").glob(file))[-2:]
    for path in altered:
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert "AssertionError" in run_script_of_the_format(tmp_path / "store").stderr
    with pytest.raises(FormatError, match="|".join(path.name for path in altered)):
        VersionStore(tmp_path / "store").open()


def test_the_text_index_hashes_as_the_format_says() -> None:
    version = VersionStore(GOLDEN).open()
    transform = version.transform()
    index = transform.vocabularies.layers[0].texts
    for number in range(len(index.offsets) - 1):
        text = index.data[index.offsets[number] : index.offsets[number + 1]].tobytes()
        table = int(np.searchsorted(index.table_starts, number, side="right")) - 1
        value = documented_hash(text, table)
        slot = value % len(index.slots)
        while int(index.slots[slot]) & 0xFFFFFFFF != number + 1:
            assert index.slots[slot], f"{text!r} is not where its hash says"
            slot = (slot + 1) % len(index.slots)
        assert int(index.slots[slot]) >> 32 == value >> 32


def documented_hash(text: bytes, table: int) -> int:
    modulus = 2**64
    base = 0x9E3779B97F4A7C15
    value = sum((byte + 1) * base ** (place + 1) for place, byte in enumerate(text)) % modulus
    value ^= (len(text) * 0xCA5A826395121157 + (table + 1) * 0xD6E8FEB86659FD93) % modulus
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD % modulus
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 % modulus
    return value ^ value >> 33


def test_refuses_a_store_that_lost_a_segment(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "store")
    next((tmp_path / "store/segments").iterdir()).unlink()
    with pytest.raises(CorruptFileError, match="is missing; restore the file"):
        VersionStore(tmp_path / "store").open()
