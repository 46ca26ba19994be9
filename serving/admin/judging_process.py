"""Judgements in a process of their own: each takes some 10 ms of Python, for which no request should wait."""

import logging
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import get_context

import msgspec

from rankhouse.serving.analysis.errors import AnalysisError
from rankhouse.serving.analysis.judgement import judge
from rankhouse.serving.analysis.spec import AnalysisSpec, Verdict
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.processes import die_with_parent

# A judgement that is there soon is used in the round that asked for it; another one in a later round.
_PATIENCE_SECONDS = 0.2
# Judging takes milliseconds, on a machine that does much else many times that. Starting the process takes a second or
# two more, and many times that.
_LONGEST_SECONDS, _LONGEST_START_SECONDS = 20.0, 120.0
_NICENESS = 5
_log = logging.getLogger(__name__)


class Case(msgspec.Struct, frozen=True):
    """One candidate that is to be judged: what `judge` takes, with summaries as bytes."""

    spec: AnalysisSpec
    stable: bytes
    candidate: bytes
    shadow: bytes | None
    elapsed_seconds: float
    num_analyses: int


class JudgingProcess:
    """Judges cases, some at a time. Used from one thread at a time; the process starts with the first ones.

    Where the process dies or hangs, the cases are judged here: a rollout that fails must go back all the same.
    """

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._work: Future[dict[str, Verdict | str]] | None = None
        self._cases: dict[str, Case] = {}
        self._since = 0.0
        self._pid: Future[int] | None = None
        self._has_judged = False

    @property
    def is_busy(self) -> bool:
        """Whether there are cases whose results were not taken."""
        return bool(self._cases)

    def start(self, cases: Mapping[str, Case]) -> None:
        """Begins with cases, which have names; those before must be done."""
        assert not self._cases
        self._cases, self._since = dict(cases), time.monotonic()
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_step_back)
            self._pid, self._has_judged = self._pool.submit(os.getpid), False
        try:
            self._work = self._pool.submit(_judge_all, self._cases)
        except BrokenProcessPool:  # It died since its last cases.
            self._work = None

    def results(self) -> Mapping[str, Verdict | str]:
        """What came out by the cases' names, a text where one cannot be judged; empty as long as it is not there."""
        if not self._cases:
            return {}
        try:
            found = None if self._work is None else self._work.result(timeout=_PATIENCE_SECONDS)
        except NotYetError:
            longest = _LONGEST_SECONDS if self._has_judged else _LONGEST_START_SECONDS
            if time.monotonic() - self._since < longest:
                return {}
            found = None
        except BrokenProcessPool:
            found = None
        if found is None:
            _log.error("the process that judges died or hangs; its cases are judged here, and it is started again")
            found = _judge_all(self._cases)
            self.close()
        self._cases, self._work, self._has_judged = {}, None, True
        return found

    def close(self) -> None:
        """Ends the process, whatever it is doing; harmless when repeated."""
        pool, pid = self._pool, self._pid
        self._pool = self._pid = self._work = None
        self._cases = {}
        if pool is None or pid is None:
            return
        if pid.done() and not pid.cancelled() and pid.exception() is None:
            with suppress(ProcessLookupError):
                os.kill(pid.result(), signal.SIGKILL)  # One that hangs would never end, and hold up this one's end.
        pool.shutdown(wait=False, cancel_futures=True)


def _step_back() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)


def _judge_all(cases: Mapping[str, Case]) -> dict[str, Verdict | str]:
    return {name: _judge_one(case) for name, case in cases.items()}


def _judge_one(case: Case) -> Verdict | str:
    try:
        return judge(
            case.spec,
            Summary.from_bytes(case.stable),
            Summary.from_bytes(case.candidate),
            None if case.shadow is None else Summary.from_bytes(case.shadow),
            elapsed_seconds=case.elapsed_seconds,
            num_analyses=case.num_analyses,
        )
    except AnalysisError as error:
        return str(error)
