"""The training loop.

All ranks run this same code. What one rank alone knows (its loss, that it was told to stop, that it could not write a
checkpoint) travels with the gradients, so all ranks do the same after the same step.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from rankhouse.embedding_cache.format.version_record import EVENT_TIME
from rankhouse.training.auc_groups import feature_number
from rankhouse.training.checkpoint.checkpoint import continue_checkpoint, load_checkpoint
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.checkpoint.saver import CheckpointSaver
from rankhouse.training.config import AUTO_PLAN
from rankhouse.training.continuation import check_continues, check_same_fit, newest_event_learnt
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.rows import Batch
from rankhouse.training.errors import CheckpointError, DatasetError, DivergedError
from rankhouse.training.evaluation import Evaluator
from rankhouse.training.exchange.traffic import Traffic
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.planner.at_start import plan_at_start
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import Result, RunFolder
from rankhouse.training.runs.observers import EvaluationMetrics, Observer, StepMetrics
from rankhouse.training.runs.stop import StopRequest
from rankhouse.training.runs.traffic import RunTraffic
from rankhouse.training.tables.host_rows import HostRowsStats
from rankhouse.training.tables.table_shards import rows_taken
from rankhouse.training.train_step import TrainStep

log = logging.getLogger(__name__)


@dataclass
class Position:
    """How far a run is; the model holds all else that training changes.

    Attributes:
        step: Optimizer steps done in this run.
        num_samples: Samples learnt from, over all ranks.
        seconds: Time of these steps, without start-up, evaluation and checkpoints.
    """

    step: int = 0
    num_samples: int = 0
    seconds: float = 0.0


class Trainer:
    """A run on this rank. One thread per process makes it and calls `train`; both are collective."""

    def __init__(self, run: RunFolder, *, ranks: Ranks) -> None:
        """Opens the data, makes the model, and goes on from the newest checkpoint if there is one.

        A run that has none of its own yet may go on from another run's (`training.continue_from`).

        Raises:
            TrainingError: The configuration, the dataset or the checkpoint is wrong.
        """
        self.run = run
        self.ranks = ranks
        self.config = run.config
        self.dataset = PreparedDataset.open(run.dataset)
        self.loader = self._open_split(self.config.data.train_split, shuffle=self.config.data.shuffle)
        self.fit = self.dataset.fit
        start = run.latest_checkpoint or self.config.training.continue_from
        learnt = Checkpoint.open(start) if start else None
        initial_rows = {name: table.initial_rows for name, table in learnt.tables.items()} if learnt else {}
        newest = self.dataset.split(self.config.data.train_split).newest_event
        self.event_time = newest_event_learnt(newest, before=learnt.event_time if learnt else None)
        # Only a plan by cost is kept: measured anew, it could become another one.
        earlier = run.plan if self.config.parallel.plan == AUTO_PLAN else None
        plan = plan_at_start(self.config, self.dataset, ranks=ranks, earlier=earlier)
        self.model = RankingModel.build(self.config, self.dataset, ranks=ranks, plan=plan, initial_rows=initial_rows)
        valid_loader = self._open_split(self.config.data.valid_split, shuffle=False)
        group = feature_number(self.dataset.spec, self.config.training.auc_by)
        self.evaluator = Evaluator(self.model, valid_loader, ranks=ranks, group=group)
        self.num_steps = self.config.training.num_steps(self.loader.num_rows)
        self.position = self._restore()
        self._first_step = self.position.step
        self._saver = CheckpointSaver(
            run.checkpoints,
            self.model.state,
            ranks=ranks,
            keep=self.config.training.keep_checkpoints,
            memory_share=self.config.training.checkpoint_memory_share,
        )

    def train(self, observers: Sequence[Observer], *, stop: StopRequest) -> Result | None:
        """Does the steps that are left.

        Args:
            observers: Told about steps and evaluations.
            stop: Whether this rank was told to stop. If any was, all stop after the same step.

        Returns:
            How the run ended, or None if it was stopped before its end. Either way its state is saved.

        Raises:
            DivergedError: The loss is no longer a number.
            CheckpointError: A checkpoint could not be saved; also of one that was written meanwhile, after the next
                step.
        """
        settings, position = self.config.training, self.position
        train_step = TrainStep(self.model, overlap=self.config.parallel.overlap and self.ranks.size > 1)
        self.ranks.traffic.restart()
        window = StepWindow(position, self.ranks.traffic)
        with closing(self._saver), closing(self._batches()) as batches:
            for batch, num_samples, next_batch in batches:
                news = train_step(batch, num_samples, bool(stop), self._saver.has_failed, next_batch=next_batch)
                window.add(news.loss, num_samples)
                if news.num_failed:
                    self._saver.wait()
                leaving = news.num_stopping > 0 or position.step == self.num_steps
                if leaving or position.step % settings.log_every_steps == 0:
                    self._report(window.metrics(self.loader.num_rows), observers)
                if not leaving and _due(position.step, settings.eval_every_steps):
                    self._evaluate(observers)
                if leaving or _due(position.step, settings.checkpoint_every_steps):
                    self._save(in_background=not leaving)
                if leaving:
                    break
                window.continue_clock()
        if position.step < self.num_steps:
            return None
        evaluation = self._evaluate(observers)
        return Result(
            num_steps=position.step,
            num_samples=position.num_samples,
            num_ranks=self.ranks.size,
            seconds=position.seconds,
            auc=evaluation.auc,
            valid_loss=evaluation.valid_loss,
        )

    def collect_traffic(self) -> RunTraffic:
        """Returns what has travelled between all ranks for the steps that were done here; collective."""
        documents = self.ranks.exchange_json(self.ranks.traffic.document(), name="traffic")
        return RunTraffic.of_ranks(documents, num_steps=self.position.step - self._first_step)

    def collect_host_stats(self) -> dict[str, HostRowsStats]:
        """Returns what was moved for each table on the host since the start, over all ranks; collective."""
        embedding, total = self.model.embedding, dict[str, HostRowsStats]()
        if any(placement.device == "host" for placement in embedding.plan.placements):
            own = {table: stats.document() for table, stats in embedding.host_stats().items()}
            for document in self.ranks.exchange_json(own, name="host_stats"):
                for table, counts in document.items():
                    total[table] = total.get(table, HostRowsStats()) + HostRowsStats(**counts)
        return total

    def collect_rows_taken(self) -> Counter[str]:
        """Returns how many rows have a key, of each table that learns its keys, over all ranks; collective."""
        embedding, total = self.model.embedding, Counter[str]()
        if any(spec.vocabulary for spec in embedding.specs):
            own = rows_taken(embedding.shards, rank=self.ranks.rank)
            for document in self.ranks.exchange_json(own, name="rows_taken"):
                total.update(document)
        return total

    def _batches(self) -> Generator[tuple[Batch, int, Batch | None], None, None]:
        """Yields this rank's part of each batch that is left, its samples over all ranks, and the part that follows."""
        with closing(self._parts()) as parts:
            current = next(parts, None)
            while current is not None:
                following = next(parts, None)
                yield *current, None if following is None else following[0]
                current = following

    def _parts(self) -> Generator[tuple[Batch, int], None, None]:
        loader, batch_size, at = self.loader, self.config.training.batch_size, self.position.step
        while at < self.num_steps:
            epoch, first_step = divmod(at, loader.num_steps)
            last_step = min(loader.num_steps, first_step + self.num_steps - at)
            steps = range(first_step, last_step)
            for step, batch in zip(steps, loader.batches(first_step, epoch), strict=False):
                yield batch, min(batch_size, loader.num_rows - step * batch_size)
            at += len(steps)

    def _report(self, metrics: StepMetrics, observers: Sequence[Observer]) -> None:
        for observer in observers:
            observer.record_steps(metrics)

    def _evaluate(self, observers: Sequence[Observer]) -> EvaluationMetrics:
        with self.ranks.traffic.left_out():
            metrics = self.evaluator.evaluate(self.position.step)
        auc = "undefined, as all labels are the same" if metrics.auc is None else f"{metrics.auc:.5f}"
        if metrics.grouped_auc is not None:
            auc += f", {metrics.grouped_auc:.5f} within {self.config.training.auc_by}"
        log.info("step %d: AUC %s, held-out loss %.5f", metrics.step, auc, metrics.valid_loss)
        for observer in observers:
            observer.record_evaluation(metrics)
        return metrics

    def _open_split(self, split: str, *, shuffle: bool) -> BatchLoader:
        loader = BatchLoader(
            self.dataset,
            split,
            batch_size=self.config.training.batch_size,
            rank=self.ranks.rank,
            num_ranks=self.ranks.size,
            seed=self.config.training.seed,
            shuffle=shuffle,
            num_lanes=self.config.data.num_lanes,
        )
        if not loader.num_rows:
            raise DatasetError(f"the split {split!r} of {self.dataset.path} has no rows; expected at least one")
        return loader

    def _save(self, *, in_background: bool) -> None:
        start = time.perf_counter()
        with self.ranks.traffic.left_out():
            folder = self._saver.save(
                step=self.position.step,
                document={"position": asdict(self.position), "order": self._order(), EVENT_TIME: self.event_time},
                fit=self.fit,
                in_background=in_background,
            )
        seconds = time.perf_counter() - start
        log.info("step %d: saving %s took training %.2f s", self.position.step, folder, seconds)

    def _restore(self) -> Position:
        latest = self.run.latest_checkpoint
        if latest is None:
            self._continue()
            return Position()
        check_same_fit(Checkpoint.open(latest), self.dataset)
        document = load_checkpoint(latest, self.model.state, ranks=self.ranks).document
        for key, value in self._order().items():
            if document["order"][key] != value:
                raise CheckpointError(
                    f"{latest} was saved with {key} = {document['order'][key]!r}, but now it is {value!r}: the samples "
                    "would come in another order, so the run cannot go on where it was; set it back"
                )
        return Position(**document["position"])

    def _continue(self) -> None:
        """Takes over what another run has learnt, if this one is to go on from there."""
        source = self.config.training.continue_from
        if not source:
            return
        checkpoint = Checkpoint.open(source)
        freed = self.dataset.freed_since(check_continues(checkpoint, self.config, self.dataset))
        continue_checkpoint(source, self.model.state, ranks=self.ranks, freed=freed)

    def _order(self) -> dict[str, Any]:
        """What the order of the samples depends on."""
        training, data = self.config.training, self.config.data
        return {
            "training.batch_size": training.batch_size,
            "training.seed": training.seed,
            "data.train_split": data.train_split,
            "data.shuffle": data.shuffle,
            "data.num_lanes": data.num_lanes,
            "rows to learn from": self.loader.num_rows,
        }


class StepWindow:
    """Counts the steps: the position moves with each, and the metrics are of those since the last metrics."""

    def __init__(self, position: Position, traffic: Traffic) -> None:
        self._position = position
        self._traffic = traffic
        self._clear()
        self.continue_clock()

    def continue_clock(self) -> None:
        """Starts the time of the next step: what was before does not count."""
        self._start = time.perf_counter()

    def add(self, loss: float, num_samples: int) -> None:
        """Counts a step with its mean loss.

        Raises:
            DivergedError: The loss is not a number. It is the same on all ranks, so all raise.
        """
        seconds = time.perf_counter() - self._start
        self._position.step += 1
        self._position.num_samples += num_samples
        self._position.seconds += seconds
        self._seconds += seconds
        self._num_steps += 1
        self._num_samples += num_samples
        self._loss += loss * num_samples
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss} in step {self._position.step}; lower the learning rate")

    def metrics(self, num_rows: int) -> StepMetrics:
        """Returns the metrics of the steps since the last metrics; an epoch has `num_rows` samples."""
        traffic = self._traffic.total()
        metrics = StepMetrics(
            step=self._position.step,
            epoch=self._position.num_samples / num_rows,
            loss=self._loss / self._num_samples,
            samples_per_second=self._num_samples / self._seconds,
            seconds=self._position.seconds,
            bytes_sent=(traffic.sent - self._bytes.sent) / self._num_steps,
            bytes_received=(traffic.received - self._bytes.received) / self._num_steps,
        )
        self._clear()
        return metrics

    def _clear(self) -> None:
        self._loss, self._num_steps, self._num_samples, self._seconds = 0.0, 0, 0, 0.0
        self._bytes = self._traffic.total()


def _due(step: int, interval: int) -> bool:
    return interval > 0 and step % interval == 0
