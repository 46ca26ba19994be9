"""Runs whose tables learn their keys, from raw logs to a version: what it serves is what training gives."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, MISSING_ID, UNKNOWN_ID
from rankhouse.embedding_cache.native_transform import NativeTransform, RawTensors
from rankhouse.training.data.extend import extend
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.preprocess import add_split, preprocess
from rankhouse.training.errors import ConfigError, ExportError, FeatureSpecError
from rankhouse.training.export.export import export_delta, export_version
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.launch import launch
from rankhouse.training.runs.setup import new_run, resumed_run
from rankhouse.training.tables.keyed_tables import KeyedRows
from rankhouse.training.trainer import Trainer
from tests.training.test_trainer import Never

KEY = {"kind": "categorical", "dtype": "int64", "vocabulary": "learnt", "dim": 4}
FEATURES = [
    {"name": "price", "kind": "continuous"},
    {"name": "recent", "kind": "categorical", "dtype": "int64", "list": True, "table": "item"},
    {"name": "city", "kind": "categorical", "dim": 4},
    {"name": "item", **KEY},
    {"name": "user", **KEY},
]
SPEC = FeatureSpec.from_document({"name": "keys", "label": "clicked", "features": FEATURES})
SETTINGS = [
    "model.bottom_mlp=[8]",
    "model.top_mlp=[8]",
    "model.vocabularies={item: {capacity: 60, when_full: oldest}, user: {capacity: 300, min_steps: 2}}",
    "parallel.tables={item: {mode: row_wise, device: host, cache_rows: 50}, user: {mode: column_wise, num_slices: 2}}",
    "optimizer.learning_rate=0.3",
    "training.batch_size=40",
    "training.max_steps=6",
]
# Neighbours that no float64 tells apart, negative numbers, and those that are ids of versions; then some for later.
ITEMS = np.concatenate([[1, 2, 3, 4, 0], 2**60 + np.arange(100), -np.arange(1, 60), 2**40 + np.arange(20)])
NUM_KNOWN = len(ITEMS) - 20
USERS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 200)


def write_logs(path: Path, seed: int, num_items: int = len(ITEMS)) -> Path:
    random, size = np.random.default_rng(seed), 300

    def items(count: int) -> np.ndarray:
        often, rarely = random.integers(0, 12, count), random.integers(0, num_items, count)
        return ITEMS[np.where(random.random(count) < 0.6, often, rarely)]

    item, lengths = items(size), random.integers(0, 4, size)
    columns = {
        "clicked": pa.array((item % 2 + random.random(size) > 1).astype(np.int8)),
        "price": pa.array(random.normal(size=size)),
        "recent": pa.array([items(length).tolist() for length in lengths], pa.list_(pa.int64())),
        "city": pa.array([f"city {number}" for number in random.integers(0, 9, size)]),
        "item": pa.array(item, mask=random.random(size) < 0.1),
        "user": pa.array(USERS[random.integers(0, 200, size)]),
    }
    pq.write_table(pa.table(columns), path)
    return path


class Trained(NamedTuple):
    """A run that began on two ranks and went on here on one, the model in its end, and the version of it.

    `learnt_by_two` says how many keys of each table the two ranks left.
    """

    folder: Path
    run: RunFolder
    learnt_by_two: dict[str, int]
    trainer: Trainer
    version: Version

    def table(self, name: str) -> KeyedRows:
        return table_of(self.trainer, name)


def table_of(trainer: Trainer, name: str) -> KeyedRows:
    embedding = trainer.model.embedding
    place = [spec.name for spec in embedding.specs].index(name)
    table: KeyedRows = embedding.get_weights()[place]
    return table


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("data")
    logs = {
        "train": write_logs(folder / "train.parquet", 1, NUM_KNOWN),
        "valid": write_logs(folder / "valid.parquet", 2),
    }
    return preprocess(folder / "monday", SPEC, logs)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, dataset: PreparedDataset) -> Trained:
    folder = tmp_path_factory.mktemp("keys")
    run = new_run(folder / "runs/monday", data=dataset.path, settings=SETTINGS)
    assert launch(run, num_ranks=2) == 0
    trainer = Trainer(resumed_run(run.path, settings=["training.max_steps=9"]), ranks=Ranks(0, 1))
    assert trainer.position.step == 6
    learnt_by_two = {name: len(table_of(trainer, name).keys) for name in ("item", "user")}
    trainer.train([], stop=Never())
    return Trained(folder, run, learnt_by_two, trainer, export_version(run.path, store=folder / "store", model="keys"))


def raw_column(dataset: PreparedDataset, split: str, name: str) -> list[Any]:
    values: list[Any] = pq.read_table(dataset.path.parent / f"{split}.parquet")[name].to_pylist()
    return values


def test_keys_are_handed_through_as_they_are(dataset: PreparedDataset) -> None:
    """By NVTabular's way and by that of extended datasets, in which nothing grows."""
    later = {split: dataset.path.parent / f"{split}.parquet" for split in ("train", "valid")}
    extended = extend(dataset.path, dataset.path.parent / "again", later)
    assert {name: table.num_rows for name, table in extended.tables.items()} == {"item": 3, "city": 12, "user": 3}
    for prepared in (dataset, extended):
        for split, name in (("train", "item"), ("valid", "recent"), ("valid", "user")):
            (file,) = prepared.split(split).files
            assert pq.read_table(prepared.path / file.name)[name].to_pylist() == raw_column(dataset, split, name)
    assert add_split(dataset.path, "later", later["valid"]).split("later").num_rows == 300


@pytest.mark.horovod
def test_a_version_scores_as_training_does_also_unknown_and_evicted_keys(trained: Trained) -> None:
    loader = BatchLoader(trained.trainer.dataset, "valid", batch_size=64, shuffle=False, num_lanes=1)
    batch = next(loader.batches())
    logits = trained.trainer.model.logits(*map(tf.constant, (batch.dense, batch.ids, batch.lengths)))
    scores = [score for golden in trained.version.golden() for score in golden.scores]
    np.testing.assert_allclose(scores, tf.sigmoid(logits).numpy(), atol=1e-6)
    table, seen = trained.table("item"), set(raw_column(trained.trainer.dataset, "train", "item"))
    asked = {row.get("item") for golden in trained.version.golden() for row in golden.rows()}
    known = set(table.keys.tolist())
    assert len(known) == 60
    assert None in asked
    assert asked & known
    assert (asked & seen) - known - {None}, "no key that was seen has gone"
    assert asked - seen, "no key is new"


@pytest.mark.horovod
def test_a_run_says_how_many_rows_are_taken(trained: Trained) -> None:
    lines = trained.run.log_file.read_text(encoding="utf-8")
    for name, capacity in (("item", 60), ("user", 300)):
        taken = trained.learnt_by_two[name]
        assert f"table {name} has learnt its keys: {taken} of {capacity} rows are taken\n" in lines
        assert 0 < taken <= capacity
    taken = {name: len(trained.table(name).keys) for name in ("item", "user")}
    assert trained.trainer.collect_rows_taken() == taken


@pytest.mark.horovod
def test_a_server_finds_the_row_of_each_key(trained: Trained) -> None:
    """Through the transform in C++ and the engine."""
    version, features = trained.version, trained.version.transform().features
    engine = Engine().open(trained.folder / "store", version.name)
    columns = {feature.name: slice(4 * place, 4 * place + 4) for place, feature in enumerate(version.features)}
    for name in ("item", "user"):
        table = trained.table(name)
        rows = [{name: key} for key in [*table.keys.tolist(), 2**62, None]]
        with NativeTransform(version.path, version.vocabulary_files) as transform:
            batch = transform.apply(RawTensors.of(RawBatch.from_rows(features, rows)))
        ids = np.split(batch.ids, np.cumsum(batch.lengths.sum(axis=1)))[list(columns).index(name)]
        assert sorted(ids[:-2]) == list(range(FIRST_KNOWN_ID, FIRST_KNOWN_ID + len(table.keys)))
        assert ids[-2:].tolist() == [UNKNOWN_ID, MISSING_ID]
        found = engine.lookup(batch.ids, batch.lengths)[:, columns[name]]
        assert np.array_equal(found, np.concatenate([table.rows, np.zeros((2, 4), np.float32)]))
    assert version.metrics["statistics"]["unknown_rates"]["item"] > 0.1


@pytest.mark.horovod
def test_the_next_day_goes_on_with_the_keys_and_is_exported_whole(trained: Trained) -> None:
    logs = {"train": write_logs(trained.folder / "tuesday.parquet", 3), "valid": trained.folder / "tuesday.parquet"}
    tuesday = extend(trained.trainer.dataset.path, trained.folder / "tuesday", logs)
    run = new_run(trained.folder / "runs/tuesday", data=tuesday.path, source=trained.run.path, settings=[])
    trainer = Trainer(run, ranks=Ranks(0, 1))
    for name in ("item", "user"):
        for found, expected in zip(table_of(trainer, name), trained.table(name), strict=True):
            assert np.array_equal(found, expected)
    trainer.train([], stop=Never())
    assert set(table_of(trainer, "item").keys) - set(trained.table("item").keys) & set(ITEMS[NUM_KNOWN:])
    store = {"store": trained.folder / "store", "model": "keys"}
    with pytest.raises(ExportError, match=r"table 'item' of .* learns its keys, .* export in full, without --delta"):
        export_delta(run.path, **store)
    version = export_version(run.path, row_type="bfloat16", max_auc_loss=1, **store)
    assert [len(each.record.vocabularies) for each in (trained.version, version)] == [2, 3]
    assert version.record.vocabularies[0] == trained.version.record.vocabularies[0]


@pytest.mark.parametrize(
    ("vocabularies", "message"),
    [
        ("{item: {capacity: 9}}", "table 'user' of .* learns its keys, and the recipe does not say how many"),
        ("{item: {}}", "model.vocabularies.item.capacity is missing"),
        ("{item: {capacity: 0}}", "model.vocabularies.item.capacity is 0; expected 1 or more"),
        ("{item: {capacity: 9, when_full: random}}", "model.vocabularies.item.when_full is 'random'; expected one of"),
        (
            "{item: {capacity: 9}, user: {capacity: 9}, city: {capacity: 9}}",
            "model.vocabularies names 'city', which is no table of .* that learns its keys",
        ),
    ],
)
def test_a_recipe_that_does_not_go_with_the_tables_is_refused(
    tmp_path: Path, dataset: PreparedDataset, vocabularies: str, message: str
) -> None:
    settings = [*SETTINGS, f"model.vocabularies={vocabularies}"]
    with pytest.raises(ConfigError, match=message):
        Trainer(new_run(tmp_path / "run", data=dataset.path, settings=settings), ranks=Ranks(0, 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "text"}, "feature 'item': vocabulary: learnt takes integers"),
        ({"max_size": 100}, "has no max_size; recipes have min_steps and capacity, in model.vocabularies"),
        ({"vocabulary": "learned"}, "vocabulary is fitted or learnt, not 'learned'"),
    ],
)
def test_a_feature_that_cannot_be_learnt_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FeatureSpecError, match=message):
        FeatureSpec.from_document({"name": "x", "label": "y", "features": [{"name": "item", **KEY, **change}]})


def test_a_spec_says_what_is_learnt_and_of_others_nothing(tmp_path: Path) -> None:
    SPEC.save(tmp_path / "spec.yaml")
    assert FeatureSpec.load(tmp_path / "spec.yaml") == SPEC
    assert [entry["name"] for entry in SPEC.document()["features"] if "vocabulary" in entry] == ["item", "user"]
    assert (SPEC.learnt_tables, list(SPEC.fitted_tables)) == (("item", "user"), ["city"])
