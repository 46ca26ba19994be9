"""The training loop on one rank, in this process; tests/training/runs/test_launch.py runs it on several."""

import json
from pathlib import Path

import numpy as np
import pytest

from rankhouse.training.checkpoint import part as checkpoint_part
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.config import load_recipe, override
from rankhouse.training.errors import (
    CheckpointError,
    ConfigError,
    DatasetError,
    DivergedError,
    ModelError,
    RunFolderError,
)
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.models.trained_model import load_trained_model
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import Result, RunFolder
from rankhouse.training.runs.observers import EvaluationMetrics, MetricsFile, StepMetrics
from rankhouse.training.train_step import TrainStep
from rankhouse.training.trainer import Trainer
from tests.training.tiny_dataset import write_tiny_dataset

SETTINGS = (
    "training.batch_size=64",
    "training.epochs=4",
    "optimizer.learning_rate=0.1",
    "training.log_every_steps=1",
    "training.eval_every_steps=5",
    "training.auc_by=user",
    "training.checkpoint_every_steps=7",
    "model.bottom_mlp=[8]",
    "model.top_mlp=[8]",
    "parallel.data_parallel_threshold_rows=10",
)
DIVERGING = ("optimizer.learning_rate=1e30", "optimizer.rule=sgd", "model.bottom_mlp=[]", "model.top_mlp=[]")


class Never:
    """A stop request that never comes."""

    def __bool__(self) -> bool:
        return False


class AfterCalls:
    """A stop request that comes after so many steps."""

    def __init__(self, num_calls: int) -> None:
        self._left = num_calls

    def __bool__(self) -> bool:
        self._left -= 1
        return self._left < 0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dataset(tmp_path_factory.mktemp("data") / "tiny")


def make_run(path: Path, dataset: Path, *settings: str) -> RunFolder:
    return RunFolder.create(path, load_recipe("dlrm", overrides=[f"data.path={dataset}", *SETTINGS, *settings]))


def train(run: RunFolder, stop: object = None) -> Result | None:
    trainer = Trainer(run, ranks=Ranks(0, 1))
    metrics = MetricsFile(run, first_step=trainer.position.step)
    try:
        return trainer.train([metrics], stop=Never() if stop is None else stop)
    finally:
        metrics.close()


def weights(run: RunFolder) -> dict[str, np.ndarray]:
    checkpoint = Checkpoint.open(run.latest_checkpoint)
    arrays = {}
    for table, info in checkpoint.tables.items():
        for array in info.arrays:
            arrays[f"{table}/{array}"] = np.concatenate([block.rows for block in checkpoint.rows(table, array)])
    for array in ("weights", "accumulator"):
        arrays |= {f"dense/{array}/{name}": value for name, value in checkpoint.dense(array).items()}
    return arrays


def assert_same_bits(first: RunFolder, second: RunFolder) -> None:
    expected, found = weights(first), weights(second)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> RunFolder:
    run = make_run(tmp_path_factory.mktemp("runs") / "finished", dataset)
    result = train(run)
    run.write_result(result)
    return run


def test_it_learns(finished: RunFolder) -> None:
    losses = [line["loss"] for line in finished.metrics() if "loss" in line]
    assert len(losses) == 20
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    assert finished.result.auc > 0.55


def test_a_result_counts_every_sample_once_per_epoch(finished: RunFolder) -> None:
    assert (finished.result.num_steps, finished.result.num_samples) == (20, 4 * 300)


def test_metrics_have_every_step_and_every_evaluation(finished: RunFolder) -> None:
    metrics = finished.metrics()
    assert [line["step"] for line in metrics if "loss" in line] == list(range(1, 21))
    assert [line["step"] for line in metrics if "auc" in line] == [5, 10, 15, 20]
    assert metrics[-1]["auc"] == finished.result.auc
    assert 0.3 < metrics[-1]["grouped_auc"] < 0.9


def test_only_the_newest_checkpoints_stay(finished: RunFolder) -> None:
    assert sorted(path.name for path in finished.checkpoints.iterdir()) == ["step-00000014", "step-00000020"]


def test_the_trained_model_loads_without_ranks(finished: RunFolder) -> None:
    trained = load_trained_model(finished.path)
    assert trained.checkpoint.step == 20
    saved = trained.checkpoint.dense()
    for name, variable in trained.dense.named_variables().items():
        np.testing.assert_array_equal(variable, saved[name])


@pytest.mark.parametrize("num_steps", [1, 5, 7, 13])
def test_a_stopped_run_goes_on_as_if_never_stopped(
    tmp_path: Path, dataset: Path, finished: RunFolder, num_steps: int
) -> None:
    run = make_run(tmp_path / "stopped", dataset)
    assert train(run, AfterCalls(num_steps - 1)) is None
    assert Checkpoint.open(run.latest_checkpoint).step == num_steps
    result = train(run)
    assert (result.num_samples, result.auc) == (finished.result.num_samples, finished.result.auc)
    assert_same_bits(finished, run)
    losses = [(line["step"], line["loss"]) for line in run.metrics() if "loss" in line]
    assert losses == [(line["step"], line["loss"]) for line in finished.metrics() if "loss" in line]


def test_a_run_that_died_goes_on_from_its_last_checkpoint(tmp_path: Path, dataset: Path, finished: RunFolder) -> None:
    run = make_run(tmp_path / "died", dataset)

    class PowerCutError(Exception):
        pass

    class PowerCut:
        def record_steps(self, metrics: StepMetrics) -> None:
            if metrics.step == 10:
                raise PowerCutError

        def record_evaluation(self, metrics: EvaluationMetrics) -> None:
            pass

        def close(self) -> None:
            pass

    with pytest.raises(PowerCutError):
        Trainer(run, ranks=Ranks(0, 1)).train([PowerCut()], stop=Never())
    assert Trainer(run, ranks=Ranks(0, 1)).position.step == 7
    train(run)
    assert_same_bits(finished, run)


def test_a_checkpoint_that_cannot_be_written_ends_the_run(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", dataset)
    write = checkpoint_part._write_content

    def write_or_fail(path: Path, *arguments: object) -> object:
        if "step-00000014" in str(path):
            raise OSError(28, "No space left on device")
        return write(path, *arguments)

    monkeypatch.setattr(checkpoint_part, "_write_content", write_or_fail)
    with pytest.raises(CheckpointError, match=r"step-00000014: could not be saved: .*No space left on device"):
        train(run)
    assert Checkpoint.open(run.latest_checkpoint).step == 7


def test_a_finished_run_can_train_on(tmp_path: Path, dataset: Path, finished: RunFolder) -> None:
    run = make_run(tmp_path / "short", dataset, "training.epochs=2")
    assert train(run).num_steps == 10
    run.write_config(override(run.config, ["training.epochs=4"]))
    assert train(run).num_steps == 20
    assert_same_bits(finished, run)


def test_max_steps_ends_a_run_early(tmp_path: Path, dataset: Path) -> None:
    assert train(make_run(tmp_path / "short", dataset, "training.max_steps=3")).num_steps == 3


def test_a_split_of_one_class_has_no_auc(tmp_path: Path) -> None:
    dataset = write_tiny_dataset(tmp_path / "one", num_valid=1)
    run = make_run(tmp_path / "run", dataset, "training.max_steps=1")
    assert train(run).auc is None
    assert json.loads(run.metrics_file.read_text().splitlines()[-1])["auc"] is None


def test_a_step_is_traced_once_whatever_the_sizes(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(make_run(tmp_path / "run", dataset), ranks=Ranks(0, 1))
    traces = []
    logits = type(trainer.model).logits
    monkeypatch.setattr(
        type(trainer.model), "logits", lambda *args, **kwargs: (traces.append(1), logits(*args, **kwargs))[1]
    )
    step = TrainStep(trainer.model)
    for batch in trainer.loader.batches():
        news = step(batch, batch.num_samples, False)
    assert (news.num_stopping, news.num_failed) == (0, 0)
    news = step(batch, batch.num_samples, True, save_failed=True)
    assert (news.num_stopping, news.num_failed) == (1, 1)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.batch_size=32", "was saved with training.batch_size = 64, but now it is 32"),
        ("training.seed=2", "was saved with training.seed = 1, but now it is 2"),
        ("data.shuffle=false", "was saved with data.shuffle = True, but now it is False"),
    ],
)
def test_what_changes_the_order_of_samples_cannot_change_in_a_run(
    tmp_path: Path, dataset: Path, setting: str, message: str
) -> None:
    run = make_run(tmp_path / "run", dataset, "training.max_steps=2")
    train(run)
    run.write_config(override(run.config, ["training.max_steps=0", setting]))
    with pytest.raises(CheckpointError, match=message):
        Trainer(run, ranks=Ranks(0, 1))


def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, dataset: Path) -> None:
    run = make_run(tmp_path / "run", dataset, *DIVERGING)
    with pytest.raises(DivergedError, match="lower the learning rate"):
        train(run)


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    dataset = write_tiny_dataset(tmp_path / "empty", num_rows=0)
    with pytest.raises(DatasetError, match=r"the split 'train' of .* has no rows"):
        Trainer(make_run(tmp_path / "run", dataset), ranks=Ranks(0, 1))


@pytest.mark.parametrize("feature", ["usr", "clicked"])
def test_an_auc_within_no_such_feature_is_refused(tmp_path: Path, dataset: Path, feature: str) -> None:
    with pytest.raises(ConfigError, match=rf"auc_by is '{feature}': expected .* of which there are shop, item, user"):
        Trainer(make_run(tmp_path / "run", dataset, f"training.auc_by={feature}"), ranks=Ranks(0, 1))


def test_a_run_without_checkpoint_has_no_trained_model(tmp_path: Path, dataset: Path) -> None:
    run = make_run(tmp_path / "run", dataset)
    with pytest.raises(RunFolderError, match="has no checkpoint yet"):
        load_trained_model(run.path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path, dataset: Path) -> None:
    run = make_run(tmp_path / "run", dataset, "training.max_steps=1")
    train(run)
    run.write_config(override(run.config, ["model.top_mlp=[9]"]))
    with pytest.raises(ModelError, match=r"top_0/kernel has shape \(14, 8\); expected \(14, 9\)"):
        load_trained_model(run.path)


def test_a_table_on_the_host_trains_stops_and_goes_on_as_one_held_whole(tmp_path: Path) -> None:
    dataset = write_tiny_dataset(tmp_path / "many", table_rows={"shop": 7, "item": 20, "user": 400})
    folder = tmp_path / "scratch"
    folder.mkdir()
    tables = f"parallel.tables={{user: {{device: host, cache_rows: 70, host_folder: {folder}}}}}"
    whole, host = (
        make_run(tmp_path / name, dataset, "training.max_steps=8", *more)
        for name, more in (("whole", ()), ("host", (tables,)))
    )
    train(whole)
    assert train(host, AfterCalls(3)) is None
    trainer = Trainer(host, ranks=Ranks(0, 1))
    trainer.train([], stop=Never())
    assert_same_bits(whole, host)
    stats = trainer.collect_host_stats()
    assert stats["user"].written_back > 70
    assert "of the ids hit the cache" in stats["user"].explain()


def test_rows_travel_as_the_recipe_says(tmp_path: Path, dataset: Path) -> None:
    settings = ("parallel.wire_forward=bfloat16", "parallel.wire_backward=float16", "parallel.wire_max_error=0.5")
    trainer = Trainer(make_run(tmp_path / "run", dataset, *settings, "training.batch_size=100"), ranks=Ranks(0, 1))
    expected = WireFormat(forward="bfloat16", backward="float16", gradient_scale=64.0, max_relative_error=0.5)
    assert trainer.model.embedding.wires == dict.fromkeys(("shop", "item", "user"), expected)
