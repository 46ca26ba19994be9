"""The README holds: its files exist, and its commands run, on fewer rows than a person would take."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankhouse.training.data.feature_spec import FeatureSpec

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()]


def test_six_files_are_named_and_exist() -> None:
    chapter = README.split("## Read these six files first")[1].split("##")[0]
    paths = re.findall(r"\]\(([^)]+)\)", chapter)
    assert len(paths) == 6
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_every_link_exists() -> None:
    assert [path for path in re.findall(r"\]\(([^)#:]+)\)", README) if not (ROOT / path).exists()] == []


def test_make_verbs_exist() -> None:
    verbs = set(re.findall(r"^make (\w+)", README, re.M)) | set(re.findall(r"`make (\w+)", README))
    known = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {"demo", "test", "train"} <= verbs
    assert {verb for verb in verbs if f"make {verb}" not in known} == set()


@pytest.mark.horovod
@pytest.mark.triton
@pytest.mark.timeout(1800)
def test_commands_run_as_written(tmp_path: Path) -> None:
    serving = None
    try:
        for command in COMMANDS:
            words = shlex.split(command.replace("--rows 1000000", "--rows 20000"))
            assert words[0] == "rankhouse"
            process = _start(words[1:], tmp_path)
            if words[1] == "serve":
                serving = process
                _wait_for(tmp_path / "serve.log", "REST", process)
            else:
                assert process.wait(600) == 0, _log(tmp_path, words[1])
        assert serving is not None
        serving.send_signal(signal.SIGTERM)
        assert serving.wait(300) == 0, _log(tmp_path, "serve")
    finally:
        if serving is not None and serving.poll() is None:
            serving.kill()
    assert (tmp_path / "runs" / "first" / "report.html").is_file()
    assert "rank" in _log(tmp_path, "score")


def test_the_example_spec_is_right(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(re.search(r"```yaml\n(.*?)```", README, re.S)[1])  # type: ignore[index]
    spec = FeatureSpec.load(tmp_path / "shop.yaml")
    assert [feature.name for feature in spec.continuous] == ["price", "age"]
    assert list(spec.tables) == ["city", "item"]


def _start(arguments: list[str], folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "rankhouse.cli.main", *arguments],
            cwd=folder,
            stdout=log,
            stderr=log,
            env={**os.environ, "COLUMNS": "120"},
        )


def _log(folder: Path, verb: str) -> str:
    return (folder / f"{verb}.log").read_text()


def _wait_for(log: Path, text: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 600
    while text not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
