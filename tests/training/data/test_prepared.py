import json
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.files import file_record
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.vocabulary import REMOVED, TableChange, TextValues, Vocabularies
from rankhouse.training.data.prepared import DATASET_NAME, PreparedDataset
from rankhouse.training.data.raw_sample import load_raw_sample
from rankhouse.training.errors import DatasetError
from tests.training.data.test_loader import SPEC, make_dataset


def test_what_was_committed_opens_the_same(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=10)
    dataset.commit()
    assert PreparedDataset.open(tmp_path / "x") == dataset
    assert dataset.features == SPEC.features
    assert dataset.split("train").num_rows == 10
    assert [path.name for path in dataset.layers] == ["transform.safetensors"]


def test_the_ids_that_layers_freed(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=10)
    none = np.empty(0, np.int64)
    vocabularies = Vocabularies.build({"c": TextValues.of(["a", "b", "c"]), "l": np.array([7])})
    swap = TableChange(TextValues.of(["d", "b"]), np.array([4, REMOVED]), np.array([4]))
    loss = TableChange(TextValues.of(["a", "c"]), np.array([REMOVED, REMOVED]), np.array([3, 5]))
    for change in (swap, loss):
        vocabularies = vocabularies.extended({"c": change, "l": TableChange(none, none, none)})
    CompiledTransform([], vocabularies).save(dataset.path)
    assert [path.name for path in dataset.layers] == [
        "transform.safetensors",
        "transform.1.safetensors",
        "transform.2.safetensors",
    ]
    found = {num_layers: dataset.freed_since(num_layers) for num_layers in (1, 2, 3)}
    assert {number: {table: ids.tolist() for table, ids in each.items()} for number, each in found.items()} == {
        1: {"c": [3, 4, 5], "l": []},
        2: {"c": [3, 5], "l": []},
        3: {},
    }


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="was not finished"):
        PreparedDataset.open(tmp_path)
    with pytest.raises(DatasetError, match="is no folder"):
        PreparedDataset.open(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["train/1.parquet", "transform.json", "transform.safetensors"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    make_dataset(tmp_path / "x", num_rows=10)
    (tmp_path / "x" / name).unlink()
    with pytest.raises(DatasetError, match=f"{name} is missing"):
        PreparedDataset.open(tmp_path / "x")


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "{}",
        json.dumps({"format": "rankhouse.dataset", "format_version": 1, "splits": {"train": {}}, "tables": {}}),
    ],
)
def test_a_damaged_description_is_refused(tmp_path: Path, content: str) -> None:
    make_dataset(tmp_path / "x", num_rows=10)
    (tmp_path / "x" / DATASET_NAME).write_text(content)
    with pytest.raises(DatasetError, match=DATASET_NAME):
        PreparedDataset.open(tmp_path / "x")


def test_a_damaged_transform_is_refused(tmp_path: Path) -> None:
    make_dataset(tmp_path / "x", num_rows=10)
    (tmp_path / "x" / "transform.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"transform\.json: expected the format"):
        PreparedDataset.open(tmp_path / "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"more", r"transform\.safetensors: was altered: expected 0 bytes, found 4"),
        (None, "notes 1 layers.* 2; restore"),
    ],
)
def test_layers_that_are_not_those_that_were_noted(tmp_path: Path, content: bytes | None, message: str) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=10)
    if content is None:
        layers = ["transform.safetensors", "transform.1.safetensors"]
        document = {"format": "rankhouse.transform", "format_version": 1, "layers": layers}
        (dataset.path / "transform.json").write_text(json.dumps(document))
        (dataset.path / layers[1]).touch()
    else:
        dataset.layers[0].write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        PreparedDataset.open(tmp_path / "x")


def test_a_dataset_of_an_older_release_notes_no_layers(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=10)
    document = json.loads((dataset.path / DATASET_NAME).read_text())
    del document["layers"]
    (dataset.path / DATASET_NAME).write_text(json.dumps({**document, "parent_layer": None}))
    old = PreparedDataset.open(dataset.path)
    assert old.noted_layers == ()
    assert old.layer_records == dataset.noted_layers == (file_record(dataset.layers[0]),)
    assert not old.is_extension


def test_a_split_without_raw_rows(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="holds no raw rows"):
        load_raw_sample(tmp_path)
