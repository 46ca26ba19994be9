import io
import json
from pathlib import Path

import pytest
import tensorflow as tf
from rich.console import Console

from rankhouse.training.config import Config
from rankhouse.training.runs import observers
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.observers import EvaluationMetrics, MetricsFile, ProgressBar, StepMetrics, TensorBoard


def steps(step: int, *, loss: float = 0.5) -> StepMetrics:
    return StepMetrics(
        step=step,
        epoch=0.5,
        loss=loss,
        samples_per_second=12345.6,
        seconds=1.0,
        bytes_sent=8192.0,
        bytes_received=4096.0,
    )


EVALUATION = EvaluationMetrics(step=2, auc=0.75, valid_loss=0.6, evaluation_seconds=0.1)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", Config())


def test_metrics_are_written_through_at_once(run: RunFolder) -> None:
    metrics = MetricsFile(run, first_step=0)
    metrics.record_steps(steps(1))
    metrics.record_evaluation(EVALUATION)
    assert [line["step"] for line in run.metrics()] == [1, 2]
    metrics.close()


def test_metrics_of_steps_that_come_again_are_dropped(run: RunFolder) -> None:
    run.metrics_file.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"cut')
    metrics = MetricsFile(run, first_step=2)
    metrics.record_steps(steps(3))
    metrics.close()
    assert [line["step"] for line in run.metrics()] == [1, 2, 3]
    assert "loss" in run.metrics()[-1]


def test_a_number_that_json_does_not_have_is_refused(run: RunFolder) -> None:
    metrics = MetricsFile(run, first_step=0)
    with pytest.raises(ValueError, match="Out of range float values"):
        metrics.record_steps(steps(1, loss=float("nan")))
    metrics.close()


def test_tensorboard_reads_the_events(run: RunFolder) -> None:
    board = TensorBoard(run)
    board.record_steps(steps(1))
    board.record_evaluation(EVALUATION)
    board.close()
    (file,) = run.tensorboard.iterdir()
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))]
    values = {(event.step, value.tag) for event in events for value in event.summary.value}
    assert values == {
        (1, "train/loss"),
        (1, "train/samples_per_second"),
        (1, "wire/bytes_sent"),
        (1, "wire/bytes_received"),
        (2, "valid/loss"),
        (2, "valid/auc"),
    }


def test_without_a_terminal_a_line_comes_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    bar = ProgressBar(Console(file=output), first_step=0, num_steps=9)
    bar.record_evaluation(EVALUATION)
    bar.record_steps(steps(2))
    assert output.getvalue() == ""
    monkeypatch.setattr(observers.time, "monotonic", lambda: float("inf"))
    bar.record_steps(steps(3))
    bar.close()
    assert output.getvalue() == "step 3 of 9  12,346 samples/s  loss 0.5000  AUC 0.7500\n"


def test_in_a_terminal_a_bar_shows_speed_loss_and_auc() -> None:
    output = io.StringIO()
    bar = ProgressBar(Console(file=output, force_terminal=True, width=120), first_step=0, num_steps=4)
    bar.record_steps(steps(2))
    bar.record_evaluation(EVALUATION)
    bar.close()
    for text in ("50%", "12,346 samples/s", "loss 0.5000", "AUC 0.7500", "eta"):
        assert text in output.getvalue()
