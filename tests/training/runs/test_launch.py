"""Whole runs as a user starts them: real processes, real Horovod ranks, real signals."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from rankhouse.training.config import Config, DataConfig, load_recipe
from rankhouse.training.errors import LaunchError
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.launch import check_hosts, launch
from rankhouse.training.runs.stop import STOPPED
from rankhouse.training.runs.traffic import RunTraffic
from tests.training.test_trainer import assert_same_bits, weights
from tests.training.tiny_dataset import write_tiny_dataset

NUM_STEPS = 300
SETTINGS = (
    "training.batch_size=96",
    f"training.max_steps={NUM_STEPS}",
    "training.epochs=100",
    "optimizer.learning_rate=0.05",
    "training.log_every_steps=1",
    "training.checkpoint_every_steps=0",
    "model.bottom_mlp=[8]",
    "model.top_mlp=[8]",
    "parallel.data_parallel_threshold_rows=10",
)

pytestmark = pytest.mark.horovod


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # 13 samples in the last batch of an epoch are fewer than there are lanes: a rank's part is uneven.
    return write_tiny_dataset(tmp_path_factory.mktemp("data") / "tiny", num_rows=3 * 96 + 13)


def make_run(path: Path, dataset: Path, *settings: str) -> RunFolder:
    return RunFolder.create(path, load_recipe("dlrm", overrides=[f"data.path={dataset}", *SETTINGS, *settings]))


@pytest.fixture(scope="module")
def on_one_rank(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> RunFolder:
    run = make_run(tmp_path_factory.mktemp("runs") / "one", dataset)
    assert launch(run, num_ranks=1) == 0
    return run


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> RunFolder:
    run = make_run(tmp_path_factory.mktemp("runs") / "two", dataset)
    assert launch(run, num_ranks=2) == 0
    return run


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> RunFolder:
    """A run on two ranks that got SIGTERM in the middle."""
    folder = tmp_path_factory.mktemp("runs")
    for number in range(5):
        run = make_run(folder / f"stopped-{number}", dataset)
        if during(run, lambda: os.kill(os.getpid(), signal.SIGTERM), num_ranks=2) == STOPPED:
            return run
    raise AssertionError("each of five runs was over before it could be stopped")


def during(
    run: RunFolder,
    act: Callable[[], None],
    *,
    num_ranks: int,
    hosts: str | None = None,
    is_due: Callable[[], bool] | None = None,
) -> int:
    """Launches a run and does something to it once it has done ten steps, or once it is due."""
    is_over = threading.Event()

    def wait_and_act() -> None:
        while not (is_due() if is_due else len(run.metrics()) >= 10):
            if is_over.wait(0.01):
                return
        act()

    thread = threading.Thread(target=wait_and_act)
    with harmless_signals():
        thread.start()
        try:
            return launch(run, num_ranks=num_ranks, hosts=hosts)
        finally:
            is_over.set()
            thread.join()


@contextlib.contextmanager
def harmless_signals() -> Iterator[None]:
    """Keeps signals that come after the end of a launch, which takes them until then, from ending the tests."""
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def ranks() -> dict[str | None, psutil.Process]:
    """This process's ranks by number, None where there is one alone. It may have other children."""
    found = {}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "rankhouse.training.runs.worker" in child.cmdline():
                found[child.environ().get("HOROVOD_RANK")] = child
    return found


def losses(run: RunFolder) -> list[float]:
    return [line["loss"] for line in run.metrics() if "loss" in line]


def copy_of(run: RunFolder, path: Path) -> RunFolder:
    shutil.copytree(run.path, path)
    return RunFolder.open(path)


def assert_close(first: RunFolder, second: RunFolder) -> None:
    expected, found = weights(first), weights(second)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-4, err_msg=name)


def test_every_byte_between_two_ranks_is_reported(on_one_rank: RunFolder, on_two_ranks: RunFolder) -> None:
    """What one sends the other receives; evaluations and checkpoints, which travel under other names too, are none."""
    traffic = RunTraffic.parse(on_two_ranks.traffic_file.read_text())
    names = {each.name for each in traffic.exchanges}
    assert names == {"embedding_next_ids", "embedding_rows", "embedding_rows_gradient", "embedding_gradients"}
    for each in traffic.exchanges:
        assert each.bytes_sent == pytest.approx(each.bytes_received[::-1]), each.name
    assert traffic.explain() in on_two_ranks.log_file.read_text()
    steps = [line for line in on_two_ranks.metrics() if "loss" in line]
    assert all(line["bytes_sent"] > 0 and line["bytes_received"] > 0 for line in steps)
    assert RunTraffic.parse(on_one_rank.traffic_file.read_text()).exchanges == ()
    assert {line["bytes_sent"] for line in on_one_rank.metrics() if "loss" in line} == {0.0}


def test_two_ranks_equal_one(on_one_rank: RunFolder, on_two_ranks: RunFolder) -> None:
    np.testing.assert_allclose(losses(on_two_ranks)[:50], losses(on_one_rank)[:50], rtol=1e-5)
    assert_close(on_one_rank, on_two_ranks)
    assert on_two_ranks.result.auc == pytest.approx(on_one_rank.result.auc, abs=1e-3)
    assert on_two_ranks.result.num_samples == on_one_rank.result.num_samples


def test_a_stopped_run_goes_on_with_the_same_bits(stopped: RunFolder, on_two_ranks: RunFolder, tmp_path: Path) -> None:
    assert stopped.result is None
    assert "told to stop" in stopped.log_file.read_text() or "stopped at step" in stopped.log_file.read_text()
    resumed = copy_of(stopped, tmp_path / "resumed")
    assert launch(resumed, num_ranks=2) == 0
    assert losses(resumed) == losses(on_two_ranks)
    assert_same_bits(on_two_ranks, resumed)


def test_a_stopped_run_goes_on_with_another_number_of_ranks(
    stopped: RunFolder, on_two_ranks: RunFolder, tmp_path: Path
) -> None:
    resumed = copy_of(stopped, tmp_path / "resumed")
    assert launch(resumed, num_ranks=1) == 0
    np.testing.assert_allclose(losses(resumed)[:50], losses(on_two_ranks)[:50], rtol=1e-5)
    assert_close(on_two_ranks, resumed)


def test_a_run_leaves_what_a_person_looks_at(on_two_ranks: RunFolder) -> None:
    names = {path.name for path in on_two_ranks.path.iterdir()}
    assert names >= {"config.yaml", "plan.json", "plan.txt", "metrics.jsonl", "train.log", "result.json", "report.html"}
    assert list(on_two_ranks.tensorboard.glob("events.out.tfevents.*"))
    assert "2 ranks" in on_two_ranks.plan_text_file.read_text()
    assert "finished 300 steps" in on_two_ranks.log_file.read_text()


def test_the_death_of_a_rank_ends_all_and_shows_its_last_lines(tmp_path: Path, dataset: Path) -> None:
    run = make_run(tmp_path / "run", dataset, "training.max_steps=1000000", "training.epochs=100000")

    def kill_rank_1() -> None:
        rank_1 = ranks()["1"]
        with (run.path / "rank-1.log").open("a") as log:
            log.write("the last words\n")
        rank_1.kill()

    with pytest.raises(LaunchError, match=r"rank 1 of 2 died by signal SIGKILL(.|\n)*the last words"):
        during(run, kill_rank_1, num_ranks=2)
    assert not ranks()


def test_a_signal_is_not_lost_while_the_ranks_start(
    tmp_path: Path, dataset: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", dataset, "training.max_steps=1000000", "training.epochs=100000")
    stop_us = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    assert during(run, stop_us, num_ranks=1, is_due=lambda: bool(ranks())) == STOPPED
    assert run.latest_checkpoint is not None
    assert "Traceback" not in capfd.readouterr().err


def test_a_rank_that_fails_says_why(tmp_path: Path, dataset: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", dataset, "data.valid_split=tomorrow")
    assert launch(run, num_ranks=1) == 1
    assert "has no split 'tomorrow'" in capfd.readouterr().err


def test_a_check_that_fails_in_a_step_is_told_without_a_traceback(
    tmp_path: Path, dataset: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", dataset, "parallel.tables={item: {mode: table_wise, device: host, cache_rows: 2}}")
    assert launch(run, num_ranks=1) == 1
    error = capfd.readouterr().err
    assert "different rows of table item at once, but its cache_rows are 2; set cache_rows to " in error
    assert "Traceback" not in error


def test_horovodrun_starts_the_ranks_of_several_hosts(tmp_path: Path, dataset: Path) -> None:
    run = make_run(tmp_path / "run", dataset, "training.max_steps=1000000", "training.epochs=100000")
    stop_us = lambda: os.kill(os.getpid(), signal.SIGINT)  # noqa: E731
    assert during(run, stop_us, num_ranks=2, hosts="localhost:2") == STOPPED
    assert run.latest_checkpoint is not None


def test_ranks_end_when_their_launcher_is_killed(tmp_path: Path, dataset: Path) -> None:
    run = make_run(tmp_path / "run", dataset, "training.max_steps=1000000", "training.epochs=100000")
    start = f"launch(RunFolder({str(run.path)!r}), num_ranks=1)"
    script = f"from rankhouse.training.runs.launch import launch, RunFolder; {start}"
    launcher = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(run.metrics()) < 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    (worker,) = psutil.Process(launcher.pid).children()
    launcher.kill()
    launcher.wait()
    worker.wait(timeout=300)
    assert run.latest_checkpoint is not None


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("a:1,b", "--hosts has 'b'; expected name:slots"),
        ("a:many", "--hosts has 'a:many'; expected name:slots"),
        ("a:1,b:2", "has 3 slots for 4 ranks"),
    ],
)
def test_wrong_hosts_are_refused(hosts: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        check_hosts(hosts, num_ranks=4)


def test_more_ranks_than_lanes_are_refused(tmp_path: Path, dataset: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Config(data=DataConfig(path=str(dataset), num_lanes=3)))
    with pytest.raises(LaunchError, match=r"--set data\.num_lanes=4, or train on fewer ranks"):
        launch(run, num_ranks=4)


def test_no_ranks_are_refused(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(LaunchError, match="cannot train on 0 ranks"):
        launch(make_run(tmp_path / "run", dataset), num_ranks=0)
