import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tensorflow as tf
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.files import file_record
from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, score_bins
from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.training.checkpoint.checkpoint import save_checkpoint
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.config import Config, DataConfig, ModelConfig, ParallelConfig, TableConfig
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.raw_sample import load_raw_sample, save_raw_sample
from rankhouse.training.errors import CheckpointError, DatasetError, ExportError, RunFolderError
from rankhouse.training.export.export import export_version
from rankhouse.training.export.onnx_export import write_onnx
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import Result, RunFolder
from tests.training.small_logs import write_dataset


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of no steps: its checkpoint holds initial values."""
    return make_run(tmp_path)


def make_run(tmp_path: Path, **tables: TableConfig) -> RunFolder:
    data = write_dataset(tmp_path / "data")
    dataset = PreparedDataset.open(data)
    config = Config(
        data=DataConfig(path=str(data)),
        model=ModelConfig(bottom_mlp=(8,), top_mlp=(8,)),
        parallel=ParallelConfig(tables=tables),
    )
    run = RunFolder.create(tmp_path / "runs/small", config)
    ranks = Ranks.init()
    save_checkpoint(
        run.checkpoints, RankingModel.build(config, dataset, ranks=ranks).state, ranks=ranks, step=0, document={}
    )
    return run


def checkpoint_of(run: RunFolder) -> Checkpoint:
    assert run.latest_checkpoint is not None
    return Checkpoint.open(run.latest_checkpoint)


def test_a_version_holds_what_the_checkpoint_holds(run: RunFolder, tmp_path: Path) -> None:
    exported = export_version(run.path, store=tmp_path / "store", model="small")
    version = VersionStore(tmp_path / "store").open(model="small")
    assert version == exported
    for table in version.tables:
        rows = np.concatenate([block.rows for block in checkpoint_of(run).rows(table.name)])
        np.testing.assert_array_equal(np.concatenate(list(version.blocks(table.name))), rows)
    assert [(f.name, f.table, f.combiner, f.column_begin) for f in version.features] == [
        ("city", "city", "mean", 0),
        ("home", "city", "sum", 4),
        ("items", "items", "mean", 8),
    ]
    assert {name: version.metrics[name] for name in ("run", "step")} == {"run": "small", "step": 0}
    assert (version.path / "transform.json").read_bytes() == (run.dataset / "transform.json").read_bytes()
    (layer,) = version.record.vocabularies
    assert layer == file_record(run.dataset / "transform.safetensors")


def test_rows_of_16_bits_are_exported_as_they_are(tmp_path: Path) -> None:
    run = make_run(tmp_path, city=TableConfig(dtype="bfloat16"), items=TableConfig(dtype="bfloat16"))
    assert checkpoint_of(run).array_type("city", "weights").dtype == "bfloat16"
    for row_type in ("float32", "bfloat16"):
        version = export_version(run.path, store=tmp_path / "store", model="small", row_type=row_type)
        for table in version.tables:
            rows = np.concatenate([block.rows for block in checkpoint_of(run).rows(table.name)])
            np.testing.assert_array_equal(version.rows(table.name, np.arange(len(rows))), rows)
    assert (version.metrics["row_error_max"], version.metrics["auc_loss"]) == (0, 0)


def test_golden_requests_are_raw_rows_with_the_scores_of_the_trainer(run: RunFolder, tmp_path: Path) -> None:
    version = export_version(run.path, store=tmp_path / "store", model="small")
    assert [row for golden in version.golden() for row in golden.rows()] == load_raw_sample(run.dataset / "valid")
    dataset = PreparedDataset.open(run.dataset)
    model = RankingModel.build(run.config, dataset, ranks=Ranks.init())
    batch = next(BatchLoader(dataset, "valid", batch_size=40, shuffle=False, num_lanes=1).batches())
    logits = model.logits(tf.constant(batch.dense), tf.constant(batch.ids), tf.constant(batch.lengths))
    scores = [score for golden in version.golden() for score in golden.scores]
    np.testing.assert_allclose(scores, tf.sigmoid(logits).numpy(), atol=1e-6)
    assert np.std(scores) > 1e-3


def test_statistics_are_of_the_scores_labels_and_values_of_held_out_rows(run: RunFolder, tmp_path: Path) -> None:
    version = export_version(run.path, store=tmp_path / "store", model="small")
    statistics = TrainingStatistics.of(version.metrics, version=version.name)
    assert statistics is not None
    dataset = PreparedDataset.open(run.dataset)
    model = RankingModel.build(run.config, dataset, ranks=Ranks.init())
    batch = next(BatchLoader(dataset, "valid", batch_size=40, shuffle=False, num_lanes=1).batches())
    logits = model.logits(tf.constant(batch.dense), tf.constant(batch.ids), tf.constant(batch.lengths))
    scores = tf.sigmoid(logits).numpy()
    assert statistics.num_rows == len(scores)
    np.testing.assert_allclose(statistics.score_sum, scores.sum(), rtol=1e-5)
    for counts, label in ((statistics.positives, 1), (statistics.negatives, 0)):
        expected = np.bincount(score_bins(scores[batch.labels == label]), minlength=NUM_SCORE_BINS)
        assert np.abs(np.cumsum(counts) - np.cumsum(expected)).max() <= 1  # Rounding may move a score to the next bin.
    split = dataset.split("valid")
    assert statistics.missing_rates == {name: rate for name, rate in split.missing_rates.items() if rate}
    assert statistics.missing_rate == pytest.approx(
        sum(split.missing_rates.values()) / max(len(split.missing_rates), 1)
    )
    assert statistics.unknown_rate == pytest.approx((batch.ids == 2).mean())
    ends = np.cumsum(batch.lengths.sum(axis=1))
    for feature, ids in zip(dataset.spec.categorical, np.split(batch.ids, ends[:-1]), strict=True):
        assert statistics.unknown_rates.get(feature.name, 0.0) == pytest.approx((ids == 2).mean())


def test_the_dense_part_takes_any_batch_and_says_where_it_is_from(run: RunFolder, tmp_path: Path) -> None:
    path = export_version(run.path, store=tmp_path / "store", model="small").dense_path
    proto = onnx.load(path)
    assert proto.producer_name == "rankhouse"
    shapes = {value.name: str(value.type) for value in (*proto.graph.input, *proto.graph.output)}
    assert list(shapes) == ["dense", "embeddings", "scores"]
    assert all('dim_param: "B"' in shape for shape in shapes.values())
    session = onnxruntime.InferenceSession(path)
    for num_samples in (0, 1, 33):
        inputs = {"dense": np.ones((num_samples, 2), np.float32), "embeddings": np.ones((num_samples, 12), np.float32)}
        assert session.run(["scores"], inputs)[0].shape == (num_samples,)


def test_the_same_checkpoint_again_shares_its_segments(run: RunFolder, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = export_version(run.path, store=tmp_path / "store", model="small")
    second = export_version(
        run.path, store=tmp_path / "store", model="small", on_bytes=lambda written, total: seen.append((written, total))
    )
    assert VersionStore(tmp_path / "store").names() == [first.name, second.name]
    assert len(list((tmp_path / "store/segments").iterdir())) == 3  # Two tables and a vocabulary.
    assert seen[-1] == (16 * (7 + 8), 16 * (7 + 8))


def test_a_finished_run_brings_its_auc(run: RunFolder, tmp_path: Path) -> None:
    run.write_result(Result(num_steps=0, num_samples=0, num_ranks=1, seconds=0.0, auc=0.75, valid_loss=0.5))
    version = export_version(run.path, store=tmp_path / "store", model="small")
    assert (version.metrics["auc"], version.metrics["valid_loss"]) == (0.75, 0.5)


def test_the_command_prints_name_bytes_and_rows(run: RunFolder, tmp_path: Path) -> None:
    arguments = ["export", str(run.path), "--store", str(tmp_path / "store"), "--model", "small"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, catch_exceptions=False)
    (name,) = VersionStore(tmp_path / "store").names()
    assert re.search(rf"{name} of small in .*store: [\d,]+ bytes, 15 rows in 2 tables, \d+\.\d s", result.output)
    assert "golden requests: 40 rows reproduced" in result.output


def test_a_bucket_takes_versions(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKHOUSE_CACHE", str(tmp_path / "mirrors"))
    arguments = ["export", str(run.path), "--store", "memory://exported/store", "--model", "small"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, catch_exceptions=False)
    version = VersionStore("memory://exported/store", cache=tmp_path / "reader").open(model="small")
    assert f"{version.name} of small in memory://exported/store: " in result.output


def swap_raw_rows(run: RunFolder) -> None:
    rows = load_raw_sample(run.dataset / "valid")
    save_raw_sample(run.dataset / "valid", rows[::-1])


def lose_raw_rows(run: RunFolder) -> None:
    (run.dataset / "valid/raw_sample.json").unlink()


def refit_transform(run: RunFolder) -> None:
    path = run.dataset / "transform.json"
    document = json.loads(path.read_text())
    document["features"][2]["steps"]["fill"] = 3.0
    path.write_text(json.dumps(document))


def other_combiner(run: RunFolder) -> None:
    path = run.dataset / "transform.json"
    document = json.loads(path.read_text())
    feature = next(feature for feature in document["features"] if feature["kind"] == "categorical")
    feature["combiner"] = "mean" if feature["combiner"] == "sum" else "sum"
    path.write_text(json.dumps(document))


def damage_table(run: RunFolder) -> None:
    # The last row, which no golden request needs, so that only the copying can find it.
    path = max((checkpoint_of(run).path / "tables").glob("items.weights.*"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def spoil_row(run: RunFolder) -> None:
    dataset, ranks = PreparedDataset.open(run.dataset), Ranks.init()
    model = RankingModel.build(run.config, dataset, ranks=ranks)
    shard = next(shard for shard in model.embedding.shards if shard.table == "items")
    rows = shard.variable.numpy()
    rows[5] = np.inf
    shard.variable.assign(rows)
    save_checkpoint(run.checkpoints, model.state, ranks=ranks, step=1, document={})


def lose_checkpoint(run: RunFolder) -> None:
    (checkpoint_of(run).path / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (swap_raw_rows, ExportError, r"candidate \d+ of golden request \d scores 0\.\d+, the trainer gives it 0\.\d+"),
        (refit_transform, ExportError, r"candidate \d+ of golden request \d scores .*The row: \{'age'"),
        (other_combiner, ExportError, "the compiled transform's features are .*, the model's .* trained on"),
        (lose_raw_rows, DatasetError, r"raw_sample\.json: holds no raw rows .*preprocess again"),
        (damage_table, CheckpointError, r"items\.weights\..*its content was altered"),
        (spoil_row, ExportError, "row 5 of table 'items' holds what is no finite number; export an older checkpoint"),
        (lose_checkpoint, RunFolderError, "has no checkpoint yet"),
    ],
)
def test_refuses_what_does_not_score_as_it_was_trained(
    run: RunFolder, tmp_path: Path, damage: Callable[[RunFolder], None], error: type[Exception], message: str
) -> None:
    damage(run)
    with pytest.raises(error, match=message):
        export_version(run.path, store=tmp_path / "store", model="small")
    assert not list((tmp_path / "store").glob("versions/*"))


def test_refuses_a_model_name_that_cannot_stand_in_a_path(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ContentError, match="'a/b' cannot be a model's name"):
        export_version(run.path, store=tmp_path / "store", model="a/b")


def test_refuses_a_dense_part_that_is_not_finite(tmp_path: Path) -> None:
    def model(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return tf.reduce_sum(inputs[0], axis=1) * float("nan")

    with pytest.raises(ExportError, match=r"differ by nan on random input.*are the model's weights finite"):
        write_onnx(model, tmp_path / "dense.onnx", num_dense=2, embeddings_dim=4)


def test_refuses_a_dense_part_that_onnx_cannot_say(tmp_path: Path) -> None:
    def model(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return tf.numpy_function(lambda dense: dense.sum(axis=1), [inputs[0]], tf.float32)

    with pytest.raises(ExportError, match="cannot be written as ONNX"):
        write_onnx(model, tmp_path / "dense.onnx", num_dense=2, embeddings_dim=4)


def test_refuses_a_dense_part_that_gives_a_column(tmp_path: Path) -> None:
    def model(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return inputs[0][:, :1]

    with pytest.raises(ExportError, match=r"gives \[0, 1\] scores for 0 samples; expected \[B\]"):
        write_onnx(model, tmp_path / "dense.onnx", num_dense=2, embeddings_dim=4)
