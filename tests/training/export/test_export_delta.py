"""Deltas of real runs: each day goes on from the one before, on vocabularies that grew, and in which ids were freed."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.errors import ContentError, VersionNotFoundError
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent
from rankhouse.embedding_cache.format.row_types import decode
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import EVENT_TIME
from rankhouse.embedding_cache.maintenance.inventory import additions
from rankhouse.kernels.rows import quantize_rows
from rankhouse.training.checkpoint.checkpoint import load_checkpoint
from rankhouse.training.checkpoint.files import Checkpoint, complete_checkpoints
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import CheckpointError, DatasetError, ExportError
from rankhouse.training.export.export import check_golden, export_delta, export_version
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.setup import new_run
from tests.training.small_logs import REMOVED, compiled_transform, days, extended, write_dataset
from tests.training.test_trainer import train

SETTINGS = (
    "training.batch_size=16",
    "training.epochs=2",
    "training.checkpoint_every_steps=3",
    "optimizer.learning_rate=0.1",
    "model.bottom_mlp=[8]",
    "model.top_mlp=[8]",
)
ROW_TYPES = ("float32", "float16", "bfloat16", "int8")
TABLES = ("city", "items")
# The third day's logs are late ones of the second.
NEWEST_EVENTS = (1_700_000_000.0, 1_700_172_800.5, 1_700_086_400.0)
# City 3 has no value on the second day, and none on the third; city 6 none on the second.
FREE = [{"city": [], "items": []}, {"city": [3, 6], "items": []}, {"city": [3], "items": []}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Three days: five optimizer steps each, from the second on with few of the items."""
    folder = tmp_path_factory.mktemp("days")
    made: list[RunFolder] = []
    for day, transform in enumerate(days()):
        data = write_dataset(
            folder / f"data-{day}",
            transform,
            extends=folder / f"data-{day - 1}" if day else None,
            seed=10 * day,
            newest_event=NEWEST_EVENTS[day],
            **({"items": [7, 99]} if day else {}),
        )
        source = made[-1].path if made else None
        run = new_run(folder / f"day-{day}", recipe="dlrm", data=data, settings=SETTINGS, source=source)
        train(run)
        made.append(run)
    return made


def copied(run: RunFolder, folder: Path) -> RunFolder:
    """Returns a run whose files may be damaged, on a dataset that may."""
    shutil.copytree(run.dataset, folder / "data")
    shutil.copytree(run.path, folder / "run")
    copy = RunFolder(folder / "run")
    copy.write_config(replace(run.config, data=replace(run.config.data, path=str(folder / "data"))))
    return copy


def checkpoint_of(run: RunFolder) -> Checkpoint:
    return Checkpoint.open(run.latest_checkpoint)


def expected_rows(day: int, run: RunFolder, table: str, row_type: str) -> np.ndarray:
    """What serving must read: the checkpoint's rows in the row type, and zeros where an id has no value."""
    checkpoint = checkpoint_of(run)
    rows = np.concatenate([block.rows for block in checkpoint.rows(table)])
    rows[FREE[day][table]] = 0
    return decode(quantize_rows(np.ascontiguousarray(rows), row_type))


def assert_holds(version: Version, day: int, run: RunFolder, row_type: str = "float32") -> None:
    for table in version.tables:
        assert table.dtype == row_type
        expected = expected_rows(day, run, table.name, row_type)
        assert table.num_rows == len(expected)
        found = version.rows(table.name, np.arange(table.num_rows))
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), err_msg=table.name)


def delta_of(version: Version, table: str) -> tuple[list[int], list[int]]:
    """Returns the ids that the newest delta holds, and those that it removes."""
    newest = version.table_rows(table).deltas[-1]
    return newest.ids.tolist(), newest.removed.tolist()


def test_deltas_over_a_bucket_fetch_no_table(
    runs: Sequence[RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each comes from a machine that has nothing of the store, and is checked with rows that lie in the bucket."""
    url = f"memory://{tmp_path.name}/store"
    for day, run in enumerate(runs):
        monkeypatch.setenv("RANKHOUSE_CACHE", str(tmp_path / f"machine-{day}"))
        version = (export_delta if day else export_version)(run.path, store=url, model="m")
        own = {file.sha256 for table in version.tables for file in (table.deltas[-1:] if day else table.segments)}
        own |= {file.sha256 for file in version.record.vocabularies}
        assert {path.stem for path in (version.store / "segments").iterdir()} == own
    assert_holds(VersionStore(url, cache=tmp_path / "reader").open(), 2, runs[2])


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_a_chain_of_deltas_reads_as_full_exports_do(runs: Sequence[RunFolder], tmp_path: Path, row_type: str) -> None:
    deltas, full = tmp_path / "deltas", tmp_path / "full"
    chain = [export_version(runs[0].path, store=deltas, model="small", row_type=row_type, max_auc_loss=1)]
    assert_holds(chain[0], 0, runs[0], row_type)
    for day, run in enumerate(runs[1:], start=1):
        chain.append(export_delta(run.path, store=deltas, model="small", max_auc_loss=1))
        assert_holds(chain[day], day, run, row_type)
        whole = export_version(run.path, store=full, model="small", row_type=row_type, max_auc_loss=1)
        assert_holds(whole, day, run, row_type)
        assert chain[day].golden() == whole.golden()
        assert chain[day].record.vocabularies == whole.record.vocabularies
        assert chain[day].metrics[EVENT_TIME] == whole.metrics[EVENT_TIME] == NEWEST_EVENTS[1]
    assert chain[0].metrics[EVENT_TIME] == NEWEST_EVENTS[0]
    for parent, version, run in zip(chain[:-1], chain[1:], runs[1:], strict=True):
        assert version.parent is not None
        assert version.parent.name == parent.name
        assert (version.origin.action, version.origin.version) == ("delta", parent.name)
        checkpoint = checkpoint_of(run)
        assert version.source is not None
        assert (version.source.checkpoint, version.source.step) == (checkpoint.id, checkpoint.iterations)
        for table in TABLES:
            assert version.table_rows(table).table.segments == chain[0].table_rows(table).table.segments
    assert [len(table.deltas) for table in chain[2].tables] == [2, 2]


def test_a_delta_holds_the_touched_rows_alone(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    first = export_version(runs[0].path, store=tmp_path, model="small")
    before = checkpoint_of(runs[0])
    second = export_delta(runs[1].path, store=tmp_path, model="small")
    ids, removed = delta_of(second, "items")
    # Rows 4, 5 and 7 stand for items that did not occur; 6 has another item, 8 is new.
    assert not {4, 5, 7} & set(ids)
    assert {3, 6, 8} <= set(ids)
    assert removed == []
    assert delta_of(second, "city")[1] == [3, 6]
    for table in TABLES:
        ids, removed = delta_of(second, table)
        touched = checkpoint_of(runs[1]).touched_since(table, before.iterations)
        assert sorted([*ids, *removed]) == touched.tolist()
    assert additions([first, second])[1].num_bytes < second.num_bytes
    third = export_delta(runs[2].path, store=tmp_path, model="small")
    assert 6 in delta_of(third, "city")[0]


def test_a_delta_holds_the_row_of_an_id_that_was_given_out_and_did_not_occur(
    runs: Sequence[RunFolder], tmp_path: Path
) -> None:
    export_version(runs[1].path, store=tmp_path / "store", model="small")  # City 3 has no value: zeros.
    transform = extended(days()[1], cities={"ulm": 3}, items={}, freed={})
    data = write_dataset(tmp_path / "data", transform, extends=runs[1].dataset, seed=20)
    run = new_run(tmp_path / "run", recipe="dlrm", data=data, settings=SETTINGS, source=runs[1].path)
    train(run)
    assert 3 not in checkpoint_of(run).touched_since("city", checkpoint_of(runs[1]).iterations)
    version, three = export_delta(run.path, store=tmp_path / "store", model="small"), np.array([3])
    assert 3 in delta_of(version, "city")[0]
    np.testing.assert_array_equal(version.rows("city", three), checkpoint_of(run).gather("city", three))


def test_a_delta_may_go_over_an_older_version(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    first = export_version(runs[0].path, store=tmp_path, model="small")
    export_delta(runs[1].path, store=tmp_path, model="small")
    third = export_delta(runs[2].path, store=tmp_path, model="small", parent=first.name)
    assert third.parent is not None
    assert third.parent.name == first.name
    assert_holds(third, 2, runs[2])


def test_a_delta_within_a_run_goes_from_checkpoint_to_checkpoint(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    run = runs[1]
    older, newest = complete_checkpoints(run.checkpoints)
    parent = export_version(run.path, store=tmp_path, model="small", checkpoint=older)
    assert parent.metrics["step"] == Checkpoint.open(older).step
    assert_holds(export_delta(run.path, store=tmp_path, model="small", checkpoint=newest), 1, run)


def test_the_same_checkpoint_again_is_a_delta_of_no_rows(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    first = export_version(runs[0].path, store=tmp_path, model="small", row_type="int8", max_auc_loss=1)
    again = export_delta(runs[0].path, store=tmp_path, model="small", max_auc_loss=1)
    assert again.tables == first.tables
    assert "row_error_max" not in again.metrics


def test_a_deltas_scores_are_the_trained_models(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    export_version(runs[0].path, store=tmp_path, model="small")
    version = export_delta(runs[1].path, store=tmp_path, model="small")
    dataset, ranks = PreparedDataset.open(runs[1].dataset), Ranks(0, 1)
    model = RankingModel.build(runs[1].config, dataset, ranks=ranks)
    load_checkpoint(runs[1].latest_checkpoint, model.state, ranks=ranks)
    batch = next(BatchLoader(dataset, "valid", batch_size=40, shuffle=False, num_lanes=1).batches())
    logits = model.logits(tf.constant(batch.dense), tf.constant(batch.ids), tf.constant(batch.lengths))
    scores = [score for golden in version.golden() for score in golden.scores]
    np.testing.assert_allclose(scores, tf.sigmoid(logits).numpy(), atol=1e-6)
    check_golden(VersionStore(tmp_path).open())


@pytest.mark.parametrize("row_type", ROW_TYPES[1:])
def test_metrics_tell_what_a_row_type_costs(runs: Sequence[RunFolder], tmp_path: Path, row_type: str) -> None:
    version = export_version(runs[0].path, store=tmp_path, model="small", row_type=row_type, max_auc_loss=0.5)
    errors = []
    for table in TABLES:
        exact = np.concatenate([block.rows for block in checkpoint_of(runs[0]).rows(table)])
        errors.append(np.abs(expected_rows(0, runs[0], table, row_type) - exact).ravel())
    errors = np.concatenate(errors)
    assert version.metrics["row_error_max"] == errors.max() > 0
    np.testing.assert_allclose(version.metrics["row_error_mean"], errors.mean(), rtol=1e-6)
    assert version.metrics["auc_loss_rows"] == 40
    assert abs(version.metrics["auc_loss"]) < 0.5
    delta = export_delta(runs[1].path, store=tmp_path, model="small", max_auc_loss=0.5)
    assert delta.metrics["row_error_max"] > 0
    assert delta.metrics["auc_loss_rows"] == 40


def test_float32_costs_nothing_and_says_nothing(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    version = export_version(runs[0].path, store=tmp_path, model="small", max_auc_loss=-1)
    assert not {"row_error_max", "auc_loss"} & version.metrics.keys()


def test_progress_counts_the_bytes_of_the_row_type(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    arguments = {"store": tmp_path, "model": "small", "max_auc_loss": 1, "on_bytes": lambda *args: seen.append(args)}
    export_version(runs[0].path, row_type="int8", **arguments)
    assert seen[-1] == ((7 + 8) * 12, (7 + 8) * 12)
    seen.clear()
    delta = export_delta(runs[1].path, **arguments)
    num_bytes = 12 * sum(table.deltas[-1].num_rows for table in delta.tables)
    assert seen[-1] == (num_bytes, num_bytes)


def export_first(runs: Sequence[RunFolder], store: Path) -> Version:
    return export_version(runs[0].path, store=store, model="small")


def stranger(runs: Sequence[RunFolder], folder: Path) -> RunFolder:
    """A run of the same data that went its own way."""
    run = new_run(folder / "stranger", recipe="dlrm", data=runs[0].dataset, settings=SETTINGS)
    train(run)
    return run


def test_refuses_a_checkpoint_that_did_not_go_on_from_the_parent(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    export_first(runs, tmp_path / "store")
    message = r"did not go on from the checkpoint that version 000001-\w+ holds .*of the run 'day-0'.*without --delta"
    with pytest.raises(ExportError, match=message):
        export_delta(stranger(runs, tmp_path).path, store=tmp_path / "store", model="small")


def test_refuses_a_parent_that_is_ahead(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    export_version(runs[1].path, store=tmp_path, model="small")
    with pytest.raises(ExportError, match="did not go on from the checkpoint that version"):
        export_delta(runs[0].path, store=tmp_path, model="small")


def test_refuses_a_parent_of_unknown_source(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    first, store = export_first(runs, tmp_path), VersionStore(tmp_path)
    content = DeltaContent(
        first.dense_path, runs[0].dataset, first.num_dense, tables=[], golden=first.golden(), source=None
    )
    store.write_delta(content, first)
    with pytest.raises(
        ExportError, match=r"does not say which checkpoint it holds.*'delta'.*--parent, or export in full"
    ):
        export_delta(runs[1].path, store=tmp_path, model="small")
    assert_holds(export_delta(runs[1].path, store=tmp_path, model="small", parent=first.name), 1, runs[1])


def test_refuses_a_parent_of_other_features(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    first, store = export_first(runs, tmp_path / "first"), VersionStore(tmp_path / "other")
    tables = [TableContent(t.name, t.num_rows, t.dim, first.blocks(t.name)) for t in first.tables]
    features = [FeatureContent(f.name, f.table, "sum") for f in first.features]
    store.write(
        VersionContent(
            "small", first.dense_path, runs[0].dataset, first.num_dense, tables, features, source=first.source
        )
    )
    with pytest.raises(ExportError, match=r"the features of .*'mean'.* those of version 000001-.*export in full"):
        export_delta(runs[1].path, store=store.path, model="small")


@pytest.mark.parametrize(("cities", "state"), [({}, "is missing"), ({"bonn": 7}, r"is \w{8}")])
def test_refuses_a_dataset_that_does_not_extend_the_parents(
    runs: Sequence[RunFolder], tmp_path: Path, cities: dict[str, int], state: str
) -> None:
    export_version(runs[1].path, store=tmp_path / "store", model="small")
    run = copied(runs[2], tmp_path)
    shutil.rmtree(run.dataset)
    if cities:
        other = extended(compiled_transform(), cities=cities, items={}, freed={})
        write_dataset(run.dataset, other, extends=runs[0].dataset)
    else:
        write_dataset(run.dataset)
    message = rf"does not extend the fit of version .*: layer 1 of the vocabularies {state}, was .*for other values"
    with pytest.raises(ExportError, match=message):
        export_delta(run.path, store=tmp_path / "store", model="small")
    with pytest.raises(CheckpointError, match="was trained on another fit"):
        export_version(run.path, store=tmp_path / "store", model="small")


def test_refuses_a_dataset_that_was_extended_otherwise_than_the_one_trained_on(
    runs: Sequence[RunFolder], tmp_path: Path
) -> None:
    """It extends the parent's, too, and has as many rows: only the checkpoint knows whose rows they are."""
    first, run = export_first(runs, tmp_path / "store"), copied(runs[1], tmp_path)
    shutil.rmtree(run.dataset)
    cities = {"oslo": 7, "rome": REMOVED, "lima": REMOVED}
    items = {99: 6, 11: REMOVED, 5: 8}
    other = extended(compiled_transform(), cities=cities, items=items, freed={"city": [3, 6], "items": [6]})
    write_dataset(run.dataset, other, extends=runs[0].dataset, seed=10, items=[7, 99])
    with pytest.raises(CheckpointError, match=r"was trained on another fit than .*: layer 1 of the vocabularies is"):
        export_delta(run.path, store=tmp_path / "store", model="small")
    assert VersionStore(tmp_path / "store").names() == [first.name]


def test_refuses_a_dataset_with_other_statistics(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    export_first(runs, tmp_path / "store")
    run = copied(runs[1], tmp_path)
    path = run.dataset / "transform.json"
    document = json.loads(path.read_text())
    document["features"][2]["steps"]["fill"] = 2.5
    path.write_text(json.dumps(document))
    difference = "feature 'price' has fill 2.5, had 0.0"
    with pytest.raises(ExportError, match=f"does not extend the fit of version 000001-.*: {difference}.*without --del"):
        export_delta(run.path, store=tmp_path / "store", model="small")
    with pytest.raises(CheckpointError, match=f"was trained on another fit than .*: {difference}"):
        export_version(run.path, store=tmp_path / "store", model="small")


def alter(layer: Path) -> None:
    layer.write_bytes(layer.read_bytes()[:-1] + b"?")


def test_a_delta_reads_all_vocabularies_but_the_base(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    """The base that serving reads is the store's own; the layers over it say which rows the delta must have."""
    first = export_first(runs, tmp_path / "store")
    run = copied(runs[1], tmp_path)
    base, changes = PreparedDataset.open(run.dataset).layers
    alter(base)
    version = export_delta(run.path, store=tmp_path / "store", model="small")
    assert version.record.vocabularies == PreparedDataset.open(runs[1].dataset).noted_layers
    with pytest.raises(ExportError, match=r"transform\.safetensors was altered since the dataset was made"):
        export_version(run.path, store=tmp_path / "store", model="small")
    base.write_bytes((runs[1].dataset / base.name).read_bytes())
    alter(changes)
    with pytest.raises(ExportError, match=r"transform\.1\.safetensors was altered since the dataset was made"):
        export_delta(run.path, store=tmp_path / "store", model="small", parent=first.name)
    with pytest.raises(ContentError, match=f"do not continue those of {version.name}"):
        export_delta(run.path, store=tmp_path / "store", model="small")
    assert VersionStore(tmp_path / "store").names()[-1] == version.name


@pytest.mark.parametrize(("parent", "model"), [("000009-12345678", "small"), ("latest", "other")])
def test_refuses_a_parent_that_is_not_there(runs: Sequence[RunFolder], tmp_path: Path, parent: str, model: str) -> None:
    export_first(runs, tmp_path)
    with pytest.raises(VersionNotFoundError, match="has no version"):
        export_delta(runs[1].path, store=tmp_path, model=model, parent=parent)


def cost_too_much(run: RunFolder) -> dict[str, float]:
    return {"max_auc_loss": -1.0}


def lose_a_class(run: RunFolder) -> dict[str, float]:
    for file in (run.dataset / "valid").glob("*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.set_column(0, "label", pa.array(np.zeros(len(table), np.float32))), file)
    return {}


def file_of(run: RunFolder, table: str, array: str) -> Path:
    (path,) = (checkpoint_of(run).path / "tables").glob(f"{table}.{array}.*")
    return path


def poke(run: RunFolder, row: int, value: float) -> None:
    """Changes a value of a row of the table "items" in the checkpoint's file."""
    path = file_of(run, "items", "weights")
    content = bytearray(path.read_bytes())
    place = len(content) - 16 * (checkpoint_of(run).tables["items"].num_rows - row)
    content[place : place + 4] = np.float32(value).tobytes()
    path.write_bytes(content)


def damage_notes(run: RunFolder) -> dict[str, float]:
    path = file_of(run, "items", "touched")
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    return {}


def damage_raw_rows(run: RunFolder) -> dict[str, float]:
    (run.dataset / "valid/raw_sample.json").write_text(
        '{"format": "rankhouse.raw_sample", "format_version": 1, "rows": []}'
    )
    return {}


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (cost_too_much, ExportError, r"int8 costs .* of AUC on the first 40 held-out rows .*, more than -1; choose"),
        (lose_a_class, ExportError, r"on the first 40 rows of the split 'valid'.*0 positives.*--max-auc-loss 1"),
        (damage_notes, CheckpointError, r"items\.touched\..*its content was altered"),
        (damage_raw_rows, DatasetError, r"valid has no raw rows to make golden requests of"),
    ],
)
def test_refuses_a_delta_and_leaves_the_store_as_it_was(
    runs: Sequence[RunFolder],
    tmp_path: Path,
    fault: Callable[[RunFolder], dict[str, float]],
    error: type[Exception],
    message: str,
) -> None:
    store = tmp_path / "store"
    export_version(runs[0].path, store=store, model="small", row_type="int8", max_auc_loss=1)
    before = sorted(store.rglob("*"))
    run = copied(runs[1], tmp_path)
    with pytest.raises(error, match=message):
        export_delta(run.path, store=store, model="small", **({"max_auc_loss": 0.5} | fault(run)))
    assert sorted(store.rglob("*")) == before


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.nan, ExportError, "row 8 of table 'items' holds what is no finite number"),
        (1e6, ContentError, "row 8 of table 'items' holds a value that float16 cannot"),
    ],
)
def test_refuses_a_changed_row_that_cannot_be_served(
    runs: Sequence[RunFolder], tmp_path: Path, value: float, error: type[Exception], message: str
) -> None:
    first = export_version(runs[0].path, store=tmp_path / "store", model="small", row_type="float16", max_auc_loss=1)
    run = copied(runs[1], tmp_path)
    poke(run, 8, value)  # Of an item that did not occur, so that no golden request needs it.
    with pytest.raises(error, match=message):
        export_delta(run.path, store=tmp_path / "store", model="small", max_auc_loss=1)
    assert VersionStore(tmp_path / "store").names() == [first.name]


def test_refuses_a_row_type_that_costs_too_much(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"float16 costs .* of AUC .*in float32.*more than -1"):
        export_version(runs[0].path, store=tmp_path, model="small", row_type="float16", max_auc_loss=-1)
    with pytest.raises(ContentError, match="'float64' is no row type; expected one of float32"):
        export_version(runs[0].path, store=tmp_path, model="small", row_type="float64")
    assert not list(tmp_path.glob("versions/*"))


def test_a_delta_does_not_read_what_did_not_change(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    export_first(runs, tmp_path / "store")
    run = copied(runs[1], tmp_path)
    poke(run, 4, 1.5)
    assert_holds(export_delta(run.path, store=tmp_path / "store", model="small"), 1, runs[1])
    with pytest.raises(CheckpointError, match=r"items\.weights\..*its content was altered"):
        export_version(run.path, store=tmp_path / "other", model="small")


def test_the_command_prints_what_a_delta_holds(runs: Sequence[RunFolder], tmp_path: Path) -> None:
    def invoke(*arguments: str) -> str:
        words = ["export", *arguments, "--store", str(tmp_path), "--model", "small"]
        result = CliRunner(env={"COLUMNS": "300"}).invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    output = invoke(str(runs[0].path), "--row-type", "int8", "--max-auc-loss", "0.5")
    assert re.search(r"rows in int8: error \S+ at most, \S+ on average", output)
    assert re.search(r"AUC on the first 40 held-out rows: [+-]0\.\d{6} lost against float32", output)
    output = invoke(str(runs[1].path), "--delta", "--max-auc-loss", "0.5")
    first, second = VersionStore(tmp_path).names()
    rows = sum(table.deltas[-1].num_rows for table in VersionStore(tmp_path).open(second).tables)
    assert re.search(
        rf"{second} of small in .*: {rows} rows and 2 tombstones beyond {first}, [\d,]+ bytes; "
        r"17 rows in 2 tables in all, \d+\.\d s",
        output,
    )
    assert "golden requests: 40 rows reproduced" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delta", "--row-type", "int8"], "a delta has its parent's row type"),
        (["--parent", "000001-12345678"], "give --delta with it"),
    ],
)
def test_the_command_refuses_what_contradicts_itself(arguments: list[str], message: str) -> None:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["export", "run", *arguments])
    assert result.exit_code == 2
    assert message in result.output
