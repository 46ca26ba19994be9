import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.errors import (
    ContentError,
    CorruptFileError,
    ManifestError,
    StorageError,
    VersionNotFoundError,
)
from rankhouse.embedding_cache.format.files import file_record
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.records import FeatureContent, FeatureRecord, TableContent
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.tensors import write_tensors
from rankhouse.embedding_cache.format.version import Version, VersionStore
from tests.embedding_cache.format.small_store import blocks_of, forge, rows_of, small_content

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    store = VersionStore(tmp_path / "store")
    store.write(small_content(tmp_path / "parts"))
    return store


def segment_path(version: Version) -> Path:
    return shared_path(version.store, version.tables[0].segments[0].sha256)


def test_opens_what_was_written(store: VersionStore, tmp_path: Path) -> None:
    version = store.open()
    assert store.names() == [version.name]
    assert version.name == f"000001-{version.manifest.sha256[:8]}"
    assert (version.model, version.num_dense, version.embeddings_dim) == ("dlrm", 2, 8)
    assert version.metrics == {"auc": 0.75}
    assert version.dense_path.read_bytes() == b"dense.onnx of 0.0"
    assert version.features == (
        FeatureRecord("C1", "C1", "sum", 3, 0),
        FeatureRecord("C2", "C2", "mean", 2, 3),
        FeatureRecord("clicked", "C1", "mean", 3, 5),
    )
    for table, rows in zip(version.tables, (rows_of(11, 3), rows_of(5, 2)), strict=True):
        (segment,) = version.table_rows(table.name).segments
        np.testing.assert_array_equal(segment, rows)
        assert not segment.flags.writeable
    (golden,) = version.golden()
    assert golden.scores == (0.25, 0.5)
    assert golden.rows() == [{"I1": 1, "C1": "a"}, {"I1": 1, "C1": None}]
    assert not list((tmp_path / "store").glob("*/.tmp-*"))


def test_document_has_the_fields_of_the_future(store: VersionStore) -> None:
    document = store.open().manifest.document
    assert (document["sequence"], document["parent"], document["origin"]["action"]) == (1, None, "export")
    assert document["created_at"].endswith("+00:00")


def test_versions_share_segments(store: VersionStore, tmp_path: Path) -> None:
    second = store.write(small_content(tmp_path / "parts", first=100))
    assert store.names() == [store.open(store.names()[0]).name, second.name]
    assert store.open("latest") == second
    assert second.name.startswith("000002-")
    assert len(list((tmp_path / "store/segments").iterdir())) == 4  # C1 twice, C2 and the vocabularies once
    np.testing.assert_array_equal(second.table_rows("C1").segments[0], rows_of(11, 3, 100))


def test_latest_of_a_model(store: VersionStore, tmp_path: Path) -> None:
    other = store.write(small_content(tmp_path / "parts", model="other"))
    assert store.open(model="other") == other
    assert store.open(model="dlrm").name == store.names()[0]
    with pytest.raises(VersionNotFoundError, match="is of the model 'other', not 'dlrm'"):
        store.open(other.name, model="dlrm")
    with pytest.raises(VersionNotFoundError, match="has no version of the model 'third'"):
        store.open(model="third")


@pytest.mark.parametrize("rows_per_segment", [1, 3, 4, 11, 12])
def test_large_tables_are_cut_into_segments(tmp_path: Path, rows_per_segment: int) -> None:
    store = VersionStore(tmp_path / "store", segment_bytes=rows_per_segment * 12)
    version = store.write(small_content(tmp_path / "parts"))
    segments = version.table_rows("C1").segments
    assert [len(segment) for segment in segments][:-1] == [rows_per_segment] * (len(segments) - 1)
    np.testing.assert_array_equal(np.concatenate(segments), rows_of(11, 3))


def test_damaged_segment_is_repaired_by_writing_it_again(store: VersionStore, tmp_path: Path) -> None:
    path = segment_path(store.open())
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptFileError):
        store.open()
    store.write(small_content(tmp_path / "parts"))
    store.open()


def test_refuses_a_store_or_version_that_is_not_there(store: VersionStore, tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match="there is no such version store; `rankhouse export` makes one"):
        VersionStore(tmp_path / "nowhere").open()
    with pytest.raises(VersionNotFoundError, match=rf"has no version '000007-00000000'.*{store.names()[0]}"):
        store.open("000007-00000000")
    shutil.rmtree(tmp_path / "store/versions")
    with pytest.raises(VersionNotFoundError, match="has no version; `rankhouse export` writes one"):
        store.open()


@pytest.mark.parametrize("verify", [True, False])
def test_refuses_missing_and_truncated_files(store: VersionStore, verify: bool) -> None:
    version = store.open()
    segment = segment_path(version)
    for path in (segment, version.dense_path, version.path / "golden.json", version.path / "transform.json"):
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        with pytest.raises(CorruptFileError, match=path.name):
            store.open(verify=verify)
        path.unlink()
        with pytest.raises(CorruptFileError, match=f"{path.name}: is missing"):
            store.open(verify=verify)
        path.write_bytes(content)
    store.open(verify=verify)


def test_refuses_a_flipped_bit_anywhere(store: VersionStore) -> None:
    version = store.open()
    segment = segment_path(version)
    for path in (segment, version.dense_path, version.path / "golden.json", version.path / "manifest.json"):
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        with pytest.raises((CorruptFileError, ManifestError), match=path.name):
            store.open()
        path.write_bytes(content)
    store.open()


def test_refuses_a_manifest_changed_by_hand(store: VersionStore) -> None:
    path = store.open().path / "manifest.json"
    path.write_text(path.read_text().replace('"auc": 0.75', '"auc": 0.99'))
    with pytest.raises(ManifestError, match=r"manifest\.json: was altered: its SHA-256 begins with"):
        store.open()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": [{"name": "C1"}]}, "is malformed: KeyError"),
        ({"tables": []}, "feature 'C1' has table 'C1'"),
        ({"features": [{"name": "C1", "surprise": 1}]}, "unexpected keyword argument 'surprise'"),
        ({"dense": {}}, "is malformed: KeyError"),
        ({"format_version": 9}, "use a newer Rankhouse"),
        ({"metric": {}}, "has the unknown key 'metric'; did you mean 'metrics'"),
        ({"parent": {"name": "000001-00000000", "sha256": "1" * 64}}, "cannot be a version"),
        ({"sequence": 2}, "its sequence is 2, its name's 1"),
        ({"model": "../x"}, "'../x' cannot be a model's name"),
        ({"files": {}}, r"it names the files \[\]; expected \['dense.onnx'"),
        (
            {"dense": {"file": "dense.onnx", "inputs": {"dense": 2, "embeddings": 9}, "output": "scores"}},
            "does not take what the features give",
        ),
        ({"created_at": "yesterday"}, "Invalid isoformat"),
    ],
)
def test_refuses_a_malformed_manifest(store: VersionStore, changes: dict[str, object], message: str) -> None:
    name = forge(store.open(), **changes)
    with pytest.raises(ManifestError, match=message):
        store.open(name)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dtype", "float64", "has dtype 'float64'; this release reads float32, float16"),
        ("num_rows", 12, "has 12 rows, its segments 11 rows, its deltas 0"),
        ("dim", 4, "not those of their tables"),
        ("segments", [], "its segments 0 rows"),
        (
            "segments",
            [{"sha256": "../../x", "bytes": 1, "row_begin": 0, "num_rows": 11}],
            "impossible SHA-256",
        ),
        ("segments", [{"sha256": "0" * 64, "bytes": 1, "row_begin": 0, "num_rows": 0}], "expected a segment at row 0"),
        ("dim", 3.0, r"has an impossible size: \[11, 3.0\]"),
        ("name", "C2", "the table 'C2' stands twice"),
    ],
)
def test_refuses_impossible_tables(store: VersionStore, field: str, value: object, message: str) -> None:
    version = store.open()
    tables = [dict(table) for table in version.manifest.document["tables"]]
    tables[0][field] = value
    name = forge(version, tables=tables)
    with pytest.raises(ManifestError, match=message):
        store.open(name)


def test_refuses_a_feature_that_stands_twice(store: VersionStore) -> None:
    version = store.open()
    features = version.manifest.document["features"]
    with pytest.raises(ManifestError, match="the feature 'C1' stands twice"):
        store.open(forge(version, features=[*features, features[0]]))


def test_refuses_a_segment_whose_rows_are_not_aligned(store: VersionStore) -> None:
    version = store.open()
    tables = [dict(table) for table in version.manifest.document["tables"]]
    metadata = {"format": "rankhouse.segment", "format_version": "1", "table": "C1", "row_begin": "0"}
    other = store.path / "other.safetensors"
    write_tensors(other, {"rows": rows_of(11, 3)}, metadata)
    record = file_record(other)
    other.rename(store.path / "segments" / f"{record.sha256}.safetensors")
    tables[0]["segments"] = [{"sha256": record.sha256, "bytes": record.bytes, "row_begin": 0, "num_rows": 11}]
    opened = store.open(forge(version, tables=tables))
    with pytest.raises(CorruptFileError, match="do not begin on a multiple of 4096 bytes"):
        opened.table_rows(opened.tables[0].name)


def test_refuses_golden_requests_with_an_unknown_key(store: VersionStore) -> None:
    version = store.open()
    path = version.path / "golden.json"
    document = json.loads(path.read_text())
    for change in ({"notes": 1}, {"requests": [{**document["requests"][0], "notes": 1}]}):
        path.write_text(json.dumps(document | change))
        with pytest.raises(ManifestError, match=r"golden\.json: .*notes"):
            version.golden()


def test_refuses_a_segment_of_another_table(store: VersionStore) -> None:
    version = store.open()
    tables = [dict(table) for table in version.manifest.document["tables"]]
    tables[0]["name"] = "renamed"
    features = [
        {**feature, "table": "renamed"} if feature["table"] == "C1" else feature
        for feature in version.manifest.document["features"]
    ]
    opened = store.open(forge(version, tables=tables, features=features))
    with pytest.raises(CorruptFileError, match=r"expected the segment .*'renamed'.* found .*'C1'"):
        opened.table_rows(opened.tables[0].name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "../x"}, "'../x' cannot be a model's name"),
        ({"features": [FeatureContent("C1", "C9", "sum")]}, r"feature 'C1' points into table 'C9'; known are \['C1'"),
        ({"features": [FeatureContent("C1", "C1", "max")]}, "feature 'C1' has combiner 'max'"),
        ({"features": [FeatureContent("C1", "C1", "sum")] * 2}, "the name 'C1' stands twice"),
        ({"tables": [TableContent("C1", 0, 3, [])]}, r"table 'C1': expected one row and one column or more"),
        (
            {"tables": [TableContent("C1", 3, 3, [rows_of(4, 3)])], "features": []},
            "table 'C1' has 3 rows, its blocks brought 4",
        ),
        ({"tables": [TableContent("C1", 5, 3, blocks_of(rows_of(4, 3)))], "features": []}, "its blocks brought 4"),
        ({"dense": Path("/nowhere")}, "/nowhere: cannot be read"),
        ({"golden": [GoldenRequest({"context": {"x": object()}, "candidates": []}, ())]}, "not plain JSON"),
        ({"metrics": {"auc": float("nan")}}, "not plain JSON"),
    ],
)
def test_refuses_content_that_contradicts_itself_and_leaves_the_store(
    store: VersionStore, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    names = store.names()
    with pytest.raises((ContentError, CorruptFileError), match=message):
        store.write(small_content(tmp_path / "parts", **changes))
    assert store.names() == names
    assert not list((tmp_path / "store").glob("*/.tmp-*"))


def test_a_check_sees_the_version_before_anyone_else(store: VersionStore, tmp_path: Path) -> None:
    def check(version: Version) -> None:
        assert store.names() == before
        np.testing.assert_array_equal(version.table_rows("C1").segments[0], rows_of(11, 3, 7))
        assert version.golden()[0].scores == (0.25, 0.5)
        raise ContentError("refused by the check")

    before = store.names()
    with pytest.raises(ContentError, match="refused by the check"):
        store.write(small_content(tmp_path / "parts", first=7), check=check)
    assert store.names() == before
    assert not list((tmp_path / "store").glob("*/.tmp-*"))


def test_golden_request_needs_a_score_for_each_candidate() -> None:
    with pytest.raises(ContentError, match="has 1 candidates and 2 scores"):
        GoldenRequest({"context": {}, "candidates": [{}]}, (0.1, 0.2))


def test_writers_take_turns(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from rankhouse.embedding_cache.format.version import VersionStore
from tests.embedding_cache.format.small_store import small_content
root, number = Path(sys.argv[1]), sys.argv[2]
for step in range(5):
    VersionStore(root / "store").write(small_content(root / number, first=int(number) * 100 + step))
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(number)], cwd=ROOT) for number in range(3)
    ]
    assert [writer.wait(timeout=300) for writer in writers] == [0, 0, 0]
    store = VersionStore(tmp_path / "store")
    assert [int(name.split("-")[0]) for name in store.names()] == list(range(1, 16))
    for name in store.names():
        store.open(name)


def test_a_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/store: cannot be made \(Not a directory\); correct the permissions"):
        VersionStore(tmp_path / "file" / "store").write(small_content(tmp_path / "parts"))
