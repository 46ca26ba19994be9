"""Those who watch a run on rank 0: the metrics file, TensorBoard, and the progress bar.

The training loop tells each the same three things; none can change the training.
"""

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rankhouse.training.runs.folder import RunFolder, write_text

# Without a terminal, a line tells how far the run is at most this often.
LINE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """How the steps since the last such metrics went, over all ranks.

    Attributes:
        step: Steps done since the start of the run.
        epoch: Passes over the training split completed, with fraction.
        loss: Mean binary cross-entropy of these steps, in nats.
        samples_per_second: Samples over all ranks, by the time of the steps alone.
        seconds: Time of all steps since the start of the run, without start-up, evaluation and checkpoints.
        bytes_sent: What rank 0 sent to other ranks, per step.
        bytes_received: What it received from them, per step.
    """

    step: int
    epoch: float
    loss: float
    samples_per_second: float
    seconds: float
    bytes_sent: float
    bytes_received: float


@dataclass(frozen=True, kw_only=True)
class EvaluationMetrics:
    """How the model does on the held-out split.

    Attributes:
        step: Steps done since the start of the run.
        auc: Exact area under the ROC curve; None where the split has only one class.
        valid_loss: Mean binary cross-entropy, in nats.
        evaluation_seconds: Time that the evaluation took.
        grouped_auc: The mean of the areas within the values of `training.auc_by`; None where no such feature is named,
            or none of its values has both classes.
    """

    step: int
    auc: float | None
    valid_loss: float
    evaluation_seconds: float
    grouped_auc: float | None = None


class Observer(Protocol):
    """What the training loop calls, on rank 0 only and from one thread."""

    def record_steps(self, metrics: StepMetrics) -> None:
        """Called every `log_every_steps`, and before the run leaves the loop."""

    def record_evaluation(self, metrics: EvaluationMetrics) -> None:
        """Called after each evaluation."""

    def close(self) -> None:
        """Called once, however the run ends."""


class MetricsFile:
    """Appends to `metrics.jsonl`, one object per call, written through at once."""

    def __init__(self, run: RunFolder, *, first_step: int) -> None:
        """Opens the file and drops lines after the checkpoint that the run goes on from: those steps come again."""
        kept = [line for line in run.metrics() if line["step"] <= first_step]
        write_text(run.metrics_file, "".join(json.dumps(line) + "\n" for line in kept))
        self._file = run.metrics_file.open("a", encoding="utf-8", buffering=1)

    def record_steps(self, metrics: StepMetrics) -> None:
        self._write(metrics)

    def record_evaluation(self, metrics: EvaluationMetrics) -> None:
        self._write(metrics)

    def close(self) -> None:
        self._file.close()

    def _write(self, metrics: StepMetrics | EvaluationMetrics) -> None:
        self._file.write(json.dumps(dataclasses.asdict(metrics), allow_nan=False) + "\n")


class TensorBoard:
    """Writes events that `tensorboard --logdir runs` shows."""

    def __init__(self, run: RunFolder) -> None:
        self._writer = tf.summary.create_file_writer(str(run.tensorboard))

    def record_steps(self, metrics: StepMetrics) -> None:
        values = {"train/loss": metrics.loss, "train/samples_per_second": metrics.samples_per_second}
        wire = {"wire/bytes_sent": metrics.bytes_sent, "wire/bytes_received": metrics.bytes_received}
        self._write(metrics.step, {**values, **wire})

    def record_evaluation(self, metrics: EvaluationMetrics) -> None:
        values = {"valid/loss": metrics.valid_loss, "valid/auc": metrics.auc, "valid/grouped_auc": metrics.grouped_auc}
        self._write(metrics.step, {name: value for name, value in values.items() if value is not None})

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, values: dict[str, float]) -> None:
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._writer.flush()


class ProgressBar:
    """Shows how far the run is: a bar in a terminal, elsewhere a line from time to time."""

    def __init__(self, console: Console, *, first_step: int, num_steps: int) -> None:
        self._console = console
        self._num_steps = num_steps
        self._steps, self._auc = "", ""
        self._next_line = time.monotonic() + LINE_SECONDS
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TextColumn("eta"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=num_steps, completed=first_step, status="starting")
        self._bar.start()

    def record_steps(self, metrics: StepMetrics) -> None:
        self._steps = f"{metrics.samples_per_second:,.0f} samples/s  loss {metrics.loss:.4f}"
        self._bar.update(self._task, completed=metrics.step, status=self._steps + self._auc)
        if not self._console.is_terminal and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            self._console.print(
                f"step {metrics.step} of {self._num_steps}  {self._steps}{self._auc}", highlight=False, soft_wrap=True
            )

    def record_evaluation(self, metrics: EvaluationMetrics) -> None:
        if metrics.auc is not None:
            self._auc = f"  AUC {metrics.auc:.4f}"
            self._bar.update(self._task, status=self._steps + self._auc)

    def close(self) -> None:
        self._bar.stop()
