"""Checkpoints that are written while training goes on: on one rank, on pretended ones, and on three real ones."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.kernels.optimizer_settings import Adagrad
from rankhouse.training.checkpoint import part as checkpoint_part
from rankhouse.training.checkpoint import saver as checkpoint_saver
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from rankhouse.training.checkpoint.files import (
    Checkpoint,
    complete_checkpoints,
    find_damage,
    incomplete_checkpoints,
    latest_checkpoint,
    step_folder,
)
from rankhouse.training.checkpoint.saver import CheckpointSaver, _Running
from rankhouse.training.errors import CheckpointError
from rankhouse.training.ranks import Ranks
from tests.training.launching import ENVIRONMENT, ROOT, run_on_ranks
from tests.training.pretend_ranks import load_all, make_plan_by_hand, prepare, save_all
from tests.training.small_model import ROWS, arrays, build, train

ALONE = Ranks(0, 1)
MANY_BYTES = 1 << 40
TWO_RANKS = make_plan_by_hand(2, {"user": "column_wise", "shop": "data_parallel", "item": "row_wise"})
THREE_RANKS = make_plan_by_hand(3, {"user": "row_wise", "shop": "data_parallel", "item": "column_wise"})
FOUR_RANKS = make_plan_by_hand(4, {"user": "row_wise", "shop": "table_wise", "item": "column_wise"})


class Gate:
    """Lets the threads of savers write nothing before it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._write = checkpoint_part._write_content
        patch.setattr(checkpoint_part, "_write_content", self._wait_and_write)

    def open(self) -> None:
        self._open.set()

    def _wait_and_write(self, *arguments: Any) -> Any:
        if threading.current_thread().name == "checkpoint":
            assert self._open.wait(60)
        return self._write(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def state() -> TrainingState:
    state = build(ALONE)
    train(state, ALONE, 0, 2)
    return state


def make_saver(root: Path, state: TrainingState, **options: Any) -> CheckpointSaver:
    return CheckpointSaver(root, state, ranks=ALONE, **options)


def assert_same_bits(first: Path, second: Path) -> None:
    expected, found = arrays(first), arrays(second)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def fail(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_what_is_saved_is_the_state_when_save_was_called(tmp_path: Path, state: TrainingState, gate: Gate) -> None:
    before = save_checkpoint(tmp_path / "before", state, ranks=ALONE, step=2, document={"epoch": 1})
    lineage = list(state.lineage)
    saver = make_saver(tmp_path / "after", state)
    path = saver.save(step=2, document={"epoch": 1})
    train(state, ALONE, 2, 4)
    assert not complete_checkpoints(tmp_path / "after")
    assert state.lineage == lineage
    gate.open()
    saver.wait()
    assert_same_bits(before, path)
    opened = Checkpoint.open(path)
    assert (opened.document, opened.iterations) == ({"epoch": 1}, 2)
    assert state.lineage == list(opened.lineage)
    assert {each.name for each in path.iterdir()} == {"dense.safetensors", "manifest.json", "tables"}
    saver.wait()


def test_a_save_waits_for_the_one_before(tmp_path: Path, state: TrainingState, gate: Gate) -> None:
    saver = make_saver(tmp_path, state, keep=1)
    saver.save(step=1, document={})
    threading.Timer(0.2, gate.open).start()
    saver.save(step=2, document={})
    assert complete_checkpoints(tmp_path)[0] == step_folder(tmp_path, 1)
    saver.save(step=3, document={}, in_background=False)
    assert complete_checkpoints(tmp_path) == [step_folder(tmp_path, 3)]
    assert saver.save(step=3, document={}) == step_folder(tmp_path, 3)
    assert [iterations for _, iterations in Checkpoint.open(step_folder(tmp_path, 3)).lineage] == [2, 2, 2]


def test_what_does_not_fit_into_memory_is_written_at_once(
    tmp_path: Path, state: TrainingState, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(checkpoint_saver, "free_bytes", lambda: 4 * 600)
    saver = make_saver(tmp_path, state, memory_share=0.25)
    path = saver.save(step=2, document={})
    # Only what is smaller than 600 bytes and came before they were used up is copied.
    assert sorted(each.name for each in (path / "tables").iterdir()) == [
        f"{table}.{array}.0-{ROWS[table]}.safetensors"
        for table, array in product(("item", "user"), ("accumulator", "weights"))
    ]
    assert "so training waits until 0.0 GiB are written" in caplog.text
    gate.open()
    saver.wait()
    assert_same_bits(save_checkpoint(tmp_path / "again", state, ranks=ALONE, step=2, document={}), path)
    make_saver(tmp_path / "at once", state, memory_share=0).save(step=2, document={})
    assert complete_checkpoints(tmp_path / "at once")


def test_a_failure_is_told_and_the_older_checkpoint_stays(
    tmp_path: Path, state: TrainingState, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saver = make_saver(tmp_path, state, keep=1)
    saver.save(step=1, document={}, in_background=False)
    lineage = list(state.lineage)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_part, "_write_content", fail)
        saver.save(step=2, document={})
        deadline = time.monotonic() + 60
        while not saver.has_failed and time.monotonic() < deadline:
            time.sleep(0.01)
        assert saver.has_failed
        with pytest.raises(CheckpointError, match=r"step-00000002: could not be saved: .*No space left on device"):
            saver.wait()
        assert not saver.has_failed
        saver.save(step=2, document={})
        with pytest.raises(CheckpointError, match="No space left"):
            saver.save(step=3, document={})
        saver.save(step=3, document={})
        saver.close()
        assert "step-00000003: could not be saved" in caplog.text
    assert complete_checkpoints(tmp_path) == [step_folder(tmp_path, 1)]
    assert state.lineage == lineage
    saver.save(step=4, document={})
    saver.close()
    assert complete_checkpoints(tmp_path) == [step_folder(tmp_path, 4)]
    assert not incomplete_checkpoints(tmp_path)


def test_a_save_in_which_nothing_happens_is_given_up(tmp_path: Path, state: TrainingState, gate: Gate) -> None:
    saver = make_saver(tmp_path, state, stall_seconds=0.05)
    saver.save(step=1, document={})
    with pytest.raises(CheckpointError, match=r"its part is not written, and nothing has happened for 0\.05 s"):
        saver.wait()


@pytest.mark.parametrize(("option", "value"), [("memory_share", 1.5), ("memory_share", -1), ("keep", 0)])
def test_impossible_settings_are_refused(tmp_path: Path, state: TrainingState, option: str, value: float) -> None:
    with pytest.raises(CheckpointError, match=f"{option} is {value}"):
        make_saver(tmp_path, state, **{option: value})


def run_pretended(root: Path, states: list[TrainingState], step: int) -> list[_Running]:
    """Starts a save on pretended ranks."""
    saving, size = prepare(root, states, step), len(states)
    return [
        _Running(saving, state.part(rank), Ranks(rank, size), keep=1, limit_bytes=MANY_BYTES)
        for rank, state in enumerate(states)
    ]


def test_a_rank_that_never_writes_is_named(
    tmp_path: Path, state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = save_checkpoint(tmp_path / "whole", state, ranks=ALONE, step=2, document={})
    monkeypatch.setattr(checkpoint_saver, "leave_record", fail)
    first, second = run_pretended(tmp_path / "two", load_all(whole, TWO_RANKS, Adagrad()), 2)
    first.finish_part(60)
    with pytest.raises(CheckpointError, match="No space left"):
        second.finish_part(60)
    with pytest.raises(CheckpointError, match="not all ranks have left the record of their parts"):
        first.finish(0.1)
    first.cancel()
    with pytest.raises(CheckpointError, match="given up before rank 1 had written its part"):
        first.finish(60)
    assert not complete_checkpoints(tmp_path / "two")


def test_every_point_of_a_save_leaves_a_checkpoint_that_loads(
    tmp_path: Path, state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies the folder before each call that changes names in it: what a process killed there would leave."""
    root, lock, copies = tmp_path / "checkpoints", threading.RLock(), tmp_path / "killed"
    old = save_checkpoint(tmp_path / "expected", state, ranks=ALONE, step=1, document={})
    train(state, ALONE, 2, 4)
    new = save_checkpoint(tmp_path / "expected", state, ranks=ALONE, step=2, document={})
    save_all(root, load_all(old, TWO_RANKS, Adagrad()), 1)
    states = load_all(new, TWO_RANKS, Adagrad())

    is_copying = False

    def copying(call: Callable[..., Any]) -> Callable[..., Any]:
        def copy_and_call(*arguments: Any, **options: Any) -> Any:
            nonlocal is_copying
            with lock:
                if not is_copying:
                    is_copying = True
                    shutil.copytree(root, copies / str(len(list(copies.iterdir()))))
                    is_copying = False
                return call(*arguments, **options)

        return copy_and_call

    copies.mkdir()
    with monkeypatch.context() as patch:
        for name in ("mkdir", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, copying(getattr(os, name)))
        for running in reversed(run_pretended(root, states, 2)):
            running.finish_part(60)
            running.finish(60)
    outcomes = Counter(outcome(copy, {1: old, 2: new}) for copy in copies.iterdir())
    assert outcomes[1] > 20
    assert outcomes[2] > 10
    assert complete_checkpoints(root) == [step_folder(root, 2)]
    assert not incomplete_checkpoints(root)


def outcome(root: Path, expected: dict[int, Path]) -> int:
    path = latest_checkpoint(root)
    assert path is not None
    assert find_damage(path) == []
    step = Checkpoint.open(path).step
    assert_same_bits(expected[step], path)
    return step


def test_a_process_killed_while_it_writes_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from rankhouse.training.checkpoint import part as checkpoint_part
from rankhouse.training.checkpoint.saver import CheckpointSaver
from rankhouse.training.ranks import Ranks
from tests.training.small_model import build, train

state, ranks = build(Ranks(0, 1)), Ranks(0, 1)
saver = CheckpointSaver(Path({str(tmp_path)!r}), state, ranks=ranks, keep=1)
saver.save(step=1, document={{}})
saver.wait()
write, written = checkpoint_part._write_content, []
def dying(*arguments):
    if len(written) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(1)
    return write(*arguments)
checkpoint_part._write_content = dying
saver.save(step=2, document={{}})
saver.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    half = step_folder(tmp_path, 2)
    assert incomplete_checkpoints(tmp_path) == [half]
    assert len(list((half / "tables").iterdir())) == 3
    assert latest_checkpoint(tmp_path) == step_folder(tmp_path, 1)
    assert find_damage(step_folder(tmp_path, 1)) == []


def save_on_ranks(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains while checkpoints are written, one of which fails on one rank; runs on each rank."""
    state = build(ranks, plan=THREE_RANKS)
    saver = CheckpointSaver(directory / "background", state, ranks=ranks, keep=3)
    train(state, ranks, 0, 3)
    save_checkpoint(directory / "foreground", state, ranks=ranks, step=3, document={})
    saver.save(step=3, document={})
    train(state, ranks, 3, 6)
    saver.save(step=6, document={})
    losses = train(state, ranks, 6, 9)
    saver.wait()
    write = checkpoint_part._write_content
    if ranks.rank == 1:
        checkpoint_part._write_content = fail
    saver.save(step=9, document={})
    for _ in range(6000):
        if any(ranks.exchange_json(saver.has_failed, name="has_failed")):
            break
        time.sleep(0.01)
    message = ""
    try:
        saver.wait()
    except CheckpointError as error:
        message = str(error)
    checkpoint_part._write_content = write
    saver.save(step=9, document={}, in_background=False)
    resumed = build(ranks, seed=9, plan=THREE_RANKS)
    load_checkpoint(directory / "four" / "step-00000003", resumed, ranks=ranks)
    return {"losses": losses, "message": message, "resumed": train(resumed, ranks, 3, 6)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def alone(directory: Path) -> list[float]:
    """The losses of one rank, whose checkpoint is cut up for four."""
    state = build(ALONE)
    train(state, ALONE, 0, 3)
    whole = save_checkpoint(directory / "one", state, ranks=ALONE, step=3, document={})
    save_all(directory / "four", load_all(whole, FOUR_RANKS, Adagrad()), 3)
    return train(state, ALONE, 3, 9)


@pytest.fixture(scope="module")
def together(directory: Path, alone: list[float]) -> list[dict[str, Any]]:
    return run_on_ranks(save_on_ranks, directory, num_ranks=3)


@pytest.mark.horovod
def test_ranks_write_while_they_train(together: list[dict[str, Any]], directory: Path) -> None:
    steps = [step_folder(directory / "background", step) for step in (3, 6, 9)]
    assert complete_checkpoints(directory / "background") == steps
    assert [find_damage(path) for path in steps] == [[], [], []]
    assert_same_bits(step_folder(directory / "foreground", 3), steps[0])


@pytest.mark.horovod
def test_what_one_rank_could_not_write_is_raised_on_all(together: list[dict[str, Any]]) -> None:
    for answer in together:
        assert answer["message"].startswith("rank 1: ")
        assert "step-00000009: could not be saved: [Errno 28] No space left on device" in answer["message"]


@pytest.mark.horovod
def test_three_ranks_go_on_from_what_four_saved(together: list[dict[str, Any]], alone: list[float]) -> None:
    for answer in together:
        np.testing.assert_allclose(answer["losses"], alone[3:], rtol=1e-5)
        np.testing.assert_allclose(answer["resumed"], alone[:3], rtol=1e-5)


@pytest.mark.horovod
def test_one_rank_goes_on_from_what_three_saved(
    together: list[dict[str, Any]], alone: list[float], directory: Path
) -> None:
    state = build(ALONE, seed=9)
    load_checkpoint(step_folder(directory / "background", 6), state, ranks=ALONE)
    np.testing.assert_allclose(train(state, ALONE, 6, 9), alone[3:], rtol=1e-5)
