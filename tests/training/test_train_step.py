"""Steps that send the ids of the next batch ahead, in the loop of training on two real ranks."""

from pathlib import Path
from typing import Any

import pytest

from rankhouse.training.errors import DivergedError
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.observers import MetricsFile
from rankhouse.training.trainer import Trainer
from tests.training.launching import run_on_ranks
from tests.training.test_trainer import DIVERGING, AfterCalls, Never, assert_same_bits, make_run
from tests.training.tiny_dataset import write_tiny_dataset

# Five batches of an epoch, the last one smaller; an evaluation, checkpoints and a change of epochs are in between.
RUNS = {
    "plain": ("parallel.overlap=false", "training.epochs=2"),
    "ahead": ("parallel.overlap=true", "training.epochs=2"),
    "diverged": ("parallel.overlap=true", *DIVERGING),
}


def train_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Does all runs; of the one that sends ahead, the second rank is told to stop before the end. Runs on each rank."""
    stops = {"ahead": [AfterCalls(6) if ranks.rank == 1 else Never(), Never()]}
    return {name: [train(directory / name, ranks, stop) for stop in stops.get(name, [Never()])] for name in RUNS}


def train(path: Path, ranks: Ranks, stop: AfterCalls | Never) -> int | str:
    """Goes on with a run; returns the step that it came to, or how it failed."""
    run = RunFolder.open(path)
    trainer = Trainer(run, ranks=ranks)
    observers = [MetricsFile(run, first_step=trainer.position.step)] if ranks.rank == 0 else []
    try:
        trainer.train(observers, stop=stop)
    except DivergedError as error:
        return str(error)
    finally:
        for observer in observers:
            observer.close()
    return trainer.position.step


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ahead")
    dataset = write_tiny_dataset(directory / "tiny")
    for name, settings in RUNS.items():
        make_run(directory / name, dataset, *settings)
    return directory


@pytest.fixture(scope="module")
def answers(directory: Path) -> list[dict[str, Any]]:
    return run_on_ranks(train_all, directory, num_ranks=2)


@pytest.mark.horovod
def test_ids_that_are_sent_ahead_change_no_bit(answers: list[dict[str, Any]], directory: Path) -> None:
    """Not even where a run was stopped, and its ids that were on their way were lost."""
    assert [answer["plain"] for answer in answers] == [[10]] * 2
    assert [answer["ahead"] for answer in answers] == [[7, 10]] * 2
    plain, ahead = (RunFolder.open(directory / name) for name in ("plain", "ahead"))
    assert_same_bits(plain, ahead)
    assert [line["loss"] for line in plain.metrics() if "loss" in line] == [
        line["loss"] for line in ahead.metrics() if "loss" in line
    ]
    assert [line["auc"] for line in plain.metrics() if "auc" in line] == [
        line["auc"] for line in ahead.metrics() if "auc" in line
    ]


@pytest.mark.horovod
def test_a_loss_that_is_no_number_ends_all_ranks_after_the_same_step(answers: list[dict[str, Any]]) -> None:
    messages = {message for answer in answers for message in answer["diverged"]}
    assert len(messages) == 1
    assert "lower the learning rate" in messages.pop()
