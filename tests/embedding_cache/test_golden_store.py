"""The committed store, made once by `write_version` of tests/serving/small_version.py: it must stay readable.

Never make it anew. A new format version gets a second store beside it.
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

from rankhouse.embedding_cache.engine import EmbeddingEngine
from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import VersionStore

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "format/golden"
NAME = "000001-00f043b8"
SEGMENTS = {
    "78926f99309fda755bd3452541248e3fffc5a761d8838edf8a1e470d1a32d58d",
    "a639aae75619e3c524663fa07dde211383cc0f46f5984aa3c11487b699a9a3ed",
    "ad36103d158ba8a461a053edc24110a818f76e293c7a4cd39735033564424a18",
    "db87addd3e5f9906ef55bfcddda5f25fc95d782833545a16deb7354b8a12898f",
}


def test_the_store_is_the_one_that_was_committed() -> None:
    assert [path.name for path in (GOLDEN / "versions").iterdir()] == [NAME]
    assert {path.stem for path in (GOLDEN / "segments").iterdir()} == SEGMENTS
    for path in (GOLDEN / "segments").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    manifest = (GOLDEN / "versions" / NAME / "manifest.json").read_bytes()
    assert hashlib.sha256(manifest).hexdigest()[:8] == NAME.split("-")[1]


def test_opens_and_scores_its_golden_requests() -> None:
    version = VersionStore(GOLDEN).open(NAME)
    assert (version.model, version.num_dense, version.embeddings_dim) == ("small", 2, 16)
    assert {table.name: len(table.segments) for table in version.tables} == {"city": 2, "tag": 1, "item": 1}
    transform = version.transform()
    dense = onnxruntime.InferenceSession(version.dense_path)
    for golden in version.golden():
        batch = transform.apply(RawBatch.from_rows(transform.features, golden.rows()))
        embeddings = EmbeddingEngine(version).lookup(batch.ids, batch.lengths)
        (scores,) = dense.run(["scores"], {"dense": batch.dense, "embeddings": embeddings})
        np.testing.assert_allclose(scores, golden.scores, atol=1e-6)


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


def test_the_script_of_the_format_reads_it() -> None:
    done = run_script_of_the_format(GOLDEN)
    assert done.returncode == 0, done.stderr
    version = VersionStore(GOLDEN).open()
    expected = [
        f"{table.name} row {segment.row_begin} = {rows[0].tolist()}"
        for table in version.tables
        for segment, rows in zip(table.segments, version.table_rows(table.name).segments, strict=True)
    ]
    assert done.stdout.splitlines() == expected


@pytest.mark.parametrize("file", ["segments/*", "versions/*/golden.json", "versions/*/manifest.json"])
def test_the_script_of_the_format_refuses_altered_bytes(tmp_path: Path, file: str) -> None:
    store = tmp_path / "store"
    shutil.copytree(GOLDEN, store)
    path = next(store.glob(file))
    content = path.read_bytes()
    path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert "AssertionError" in run_script_of_the_format(store).stderr
    with pytest.raises(FormatError, match=path.name):
        VersionStore(store).open()


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
