"""A run's folder: what a training run reads and leaves behind.

    runs/<name>/
      config.yaml       the resolved configuration
      plan.json, .txt   which rank holds which table, for programs and for people
      metrics.jsonl     one JSON object per logged step and per evaluation
      traffic.json      what each rank sends and receives in a step, and by how much narrower formats round
      train.log         what happened, with times
      tensorboard/      events
      checkpoints/      step-<8 digits>/
      result.json       written last, when all steps are done
      report.html       plots and tables to look at

The folder knows no TensorFlow, so that the launcher and the command line may use it.
"""

import dataclasses
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankhouse.training.checkpoint.files import Checkpoint, latest_checkpoint
from rankhouse.training.config import Config, parse_config
from rankhouse.training.errors import RunFolderError
from rankhouse.training.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a finished run ended.

    Attributes:
        num_steps: Optimizer steps done.
        num_samples: Samples learnt from, over all ranks.
        num_ranks: Ranks of the last (perhaps resumed) part of the run.
        seconds: Wall-clock time of the steps, over all parts of the run, without start-up, evaluation and checkpoints.
        auc: AUC on the held-out split after the last step; None where the split has only one class.
        valid_loss: Mean binary cross-entropy on the held-out split after the last step, in nats.
    """

    num_steps: int
    num_samples: int
    num_ranks: int
    seconds: float
    auc: float | None
    valid_loss: float


class RunFolder:
    """The files of one run. `create` makes a new folder, `open` finds one."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.yaml"
        self.plan_json_file = self.path / "plan.json"
        self.plan_text_file = self.path / "plan.txt"
        self.metrics_file = self.path / "metrics.jsonl"
        self.traffic_file = self.path / "traffic.json"
        self.log_file = self.path / "train.log"
        self.tensorboard = self.path / "tensorboard"
        self.checkpoints = self.path / "checkpoints"
        self.result_file = self.path / "result.json"
        self.report_file = self.path / "report.html"
        self.stop_file = self.path / "stop"

    @classmethod
    def create(cls, path: str | Path, config: Config) -> "RunFolder":
        """Makes the folder and writes its configuration.

        Raises:
            RunFolderError: Something is there already.
        """
        run = cls(path)
        if run.path.exists():
            raise RunFolderError(
                f"{run.path} already exists: continue that run with --resume, replace it with --overwrite, "
                "or choose another name with --run"
            )
        run.path.mkdir(parents=True)
        run.write_config(config)
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Finds the folder of a run.

        Raises:
            RunFolderError: There is no run.
        """
        run = cls(path)
        if not run.config_file.is_file():
            beside = sorted(file.parent.name for file in run.path.parent.glob(f"*/{run.config_file.name}"))
            runs = f"; runs beside it are {', '.join(beside)}" if beside else ""
            raise RunFolderError(f"{run.path} is not the folder of a run: it has no {run.config_file.name}{runs}")
        return run

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.resolve().name

    @property
    def config(self) -> Config:
        """The resolved configuration, read anew each time."""
        return parse_config(self.config_file.read_text(encoding="utf-8"), source=str(self.config_file))

    @property
    def dataset(self) -> Path:
        """The folder of the prepared dataset that the run learns from."""
        return Path(self.config.data.path)

    @property
    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint (one that has a manifest), or None."""
        return latest_checkpoint(self.checkpoints)

    @property
    def plan(self) -> Plan | None:
        """Who holds which table, as the ranks wrote it when they started; None before they did.

        Raises:
            PlanError: The document is damaged.
        """
        if not self.plan_json_file.is_file():
            return None
        return Plan.read(self.plan_json_file)

    @property
    def num_ranks(self) -> int:
        """On how many ranks it was started last; where it ended before they had a plan, saved last; 1 before that.

        Raises:
            CheckpointError: The checkpoint's manifest is damaged.
            PlanError: The plan's document is damaged.
        """
        plan, checkpoint = self.plan, self.latest_checkpoint
        if plan is not None:
            return plan.num_ranks
        return int(Checkpoint.open(checkpoint).manifest.get("num_ranks", 1)) if checkpoint is not None else 1

    @property
    def result(self) -> Result | None:
        """How the run ended, or None while it is not finished."""
        if not self.result_file.is_file():
            return None
        return Result(**json.loads(self.result_file.read_text(encoding="utf-8")))

    def write_config(self, config: Config) -> None:
        """Writes the resolved configuration."""
        write_text(self.config_file, f"# The resolved configuration of the run {self.name}.\n{config.to_yaml()}")

    def write_result(self, result: Result) -> None:
        """Marks the run as finished."""
        write_text(self.result_file, json.dumps(dataclasses.asdict(result), indent=2) + "\n")

    def clear_plan(self) -> None:
        """Lets the ranks decide anew who holds which table."""
        self.plan_json_file.unlink(missing_ok=True)

    def clear_result(self) -> None:
        """Marks the run as unfinished: more steps are to come."""
        self.result_file.unlink(missing_ok=True)

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics so far; a last line that a dying process left incomplete is skipped."""
        if not self.metrics_file.is_file():
            return []
        lines = self.metrics_file.read_text(encoding="utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def remove(self) -> None:
        """Deletes the whole folder.

        Raises:
            RunFolderError: The folder is no run's, so it is not ours to delete.
        """
        shutil.rmtree(RunFolder.open(self.path).path)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all: readers see the old text or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
