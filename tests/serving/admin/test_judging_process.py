import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping

import pytest

from rankhouse.serving.admin import judging_process
from rankhouse.serving.admin.judging_process import Case, JudgingProcess
from rankhouse.serving.analysis.judgement import judge
from rankhouse.serving.analysis.spec import AnalysisSpec, MetricSpec, Verdict
from rankhouse.serving.analysis.summary import Summary

SPEC = AnalysisSpec(metrics=(MetricSpec("error_rate", max_increase=0.1),), min_requests=10)


def summary(num_answers: int, num_failures: int = 0) -> Summary:
    made = Summary()
    for number in range(num_answers):
        made.observe_answer(500 if number < num_failures else 200, 0.001)
    return made


def case(candidate: bytes) -> Case:
    return Case(SPEC, summary(500).to_bytes(), candidate, None, elapsed_seconds=1.0, num_analyses=2)


@pytest.fixture
def process() -> Iterator[JudgingProcess]:
    judging = JudgingProcess()
    yield judging
    judging.close()


def results(process: JudgingProcess) -> Mapping[str, Verdict | str]:
    end = time.monotonic() + 300.0
    while not (found := process.results()):
        assert time.monotonic() < end
    return found


def test_verdicts_are_those_of_the_function(process: JudgingProcess) -> None:
    good, bad = summary(300), summary(300, 150)
    process.start({"good": case(good.to_bytes()), "bad": case(bad.to_bytes())})
    found = results(process)
    for name, arm in (("good", good), ("bad", bad)):
        assert found[name] == judge(SPEC, summary(500), arm, elapsed_seconds=1.0, num_analyses=2)


def test_one_case_that_cannot_be_judged_leaves_the_others(process: JudgingProcess) -> None:
    process.start({"good": case(summary(300).to_bytes()), "bad": case(b"nonsense")})
    found = results(process)
    assert isinstance(found["good"], Verdict)
    assert isinstance(found["bad"], str)


def test_a_process_that_dies_is_stood_in_for_and_started_again(
    process: JudgingProcess, caplog: pytest.LogCaptureFixture
) -> None:
    others = {child.pid for child in multiprocessing.active_children()}
    process.start({"first": case(summary(300).to_bytes())})
    results(process)
    (worker,) = [child for child in multiprocessing.active_children() if child.pid not in others]
    worker.kill()
    worker.join(60.0)
    for name in ("second", "third"):
        process.start({name: case(summary(300).to_bytes())})
        assert isinstance(results(process)[name], Verdict)
    assert caplog.text.count("it is started again") == 1


def test_one_that_hangs_is_stood_in_for_and_ended(
    process: JudgingProcess, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {child.pid for child in multiprocessing.active_children()}
    process.start({"first": case(summary(300).to_bytes())})
    results(process)
    (worker,) = [child for child in multiprocessing.active_children() if child.pid not in others]
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    monkeypatch.setattr(judging_process, "_LONGEST_SECONDS", 0.0)
    process.start({"second": case(summary(300).to_bytes())})
    assert isinstance(results(process)["second"], Verdict)
    assert "died or hangs" in caplog.text
    worker.join(60.0)
    assert not worker.is_alive()


def test_nothing_is_there_before_something_was_asked(process: JudgingProcess) -> None:
    assert process.results() == {}
    assert not process.is_busy
    process.close()
