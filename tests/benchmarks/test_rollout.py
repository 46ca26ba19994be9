"""How the rollout benchmark judges: what an answer may be of, by the history, and the aims."""

import pytest

from benchmarks.support.refresh.marked_versions import golden_request
from benchmarks.support.rollout.answers import Answer, mark_of
from benchmarks.support.rollout.callers import Marks
from benchmarks.support.rollout.figures import timing_sheets
from benchmarks.support.rollout.oracle import Findings, Window, check, eras_of
from benchmarks.support.rollout.timings import Refreshed, Timings, WentBack
from rankhouse.serving.control.assignment import bucket_of
from rankhouse.serving.control.model_state import Event

FIRST, SECOND = "000001-aaaaaaaa", "000002-bbbbbbbb"
SALT = "m/r000001"
KEYS = [f"user-{number}" for number in range(100)]
EARLY = next(key for key in KEYS if bucket_of(SALT, key) < 2000)
LATE = next(key for key in KEYS if bucket_of(SALT, key) >= 2000)


def event(number: int, at: float, kind: str, version: str, *, after: str = "") -> Event:
    rollout = None if kind in ("admitted", "reverted") else "r000001"
    return Event(number, at, "test", "m", kind, rollout, version, "", after, "")


HISTORY = [
    event(1, 10.0, "admitted", FIRST),
    event(2, 20.0, "started", SECOND),
    event(3, 30.0, "stepped", SECOND, after="progressing: step 1 of 1, 20 %"),
    event(4, 40.0, "promoted", SECOND),
    event(5, 50.0, "reverted", FIRST),
]


def answer(sent: float, version: str, *, key: str = LATE, got: float | None = None, wrong: str = "") -> Answer:
    return Answer(sent, sent, got or sent + 0.01, "one", "rest", key, version, 1, wrong)


def found(*answers: Answer, windows: tuple[Window, ...] = ()) -> Findings:
    return check(answers, HISTORY, windows=windows, most_lag_seconds=1.0)


def test_the_history_tells_who_answers_whom() -> None:
    eras = eras_of(HISTORY)
    assert [(era.stable, era.candidate, era.weight) for era in eras[1:]] == [
        (FIRST, "", 0.0),
        (FIRST, SECOND, 20.0),
        (SECOND, "", 0.0),
        (FIRST, "", 0.0),
    ]
    assert [eras[2].version_of(key) for key in (EARLY, LATE)] == [SECOND, FIRST]
    assert (eras[3].earlier, eras[4].earlier) == ((FIRST,), (SECOND,))


@pytest.mark.parametrize(
    "answers",
    [
        [answer(15.0, FIRST, key=EARLY), answer(35.0, SECOND, key=EARLY), answer(35.0, FIRST)],
        # A replica may be a moment behind, and an answer may have begun before an event.
        [answer(40.5, FIRST), answer(41.0, SECOND)],
        [answer(39.9, SECOND, got=40.1)],
        [answer(45.0, SECOND), answer(55.0, FIRST)],
    ],
)
def test_what_was_allowed_is_fine(answers: list[Answer]) -> None:
    assert found(*answers).wrong == []


@pytest.mark.parametrize(
    ("answers", "what"),
    [
        ([answer(15.0, SECOND)], f"answered by {SECOND}, allowed was {FIRST}"),
        ([answer(35.0, SECOND)], f"{LATE} over rest at one was answered by {SECOND}, allowed was {FIRST}"),
        ([answer(35.0, FIRST, key=EARLY)], f"{EARLY} over rest at one was answered by {FIRST}, allowed was {SECOND}"),
        ([answer(42.0, FIRST)], f"answered by {FIRST}, allowed was {SECOND}"),
        # Nobody goes back to an earlier era.
        ([answer(40.2, SECOND), answer(40.3, FIRST)], f"answered by {FIRST}, allowed was {SECOND}"),
        ([answer(15.0, "", wrong="503: gone")], "failed: 503: gone"),
    ],
)
def test_what_was_not_allowed_is_found(answers: list[Answer], what: str) -> None:
    (line,) = found(*answers).wrong
    assert line.endswith(what)


def test_what_was_broken_excuses_only_its_own() -> None:
    broken = Window(41.5, 44.0, may_fail=True, may_fall_back=True)
    cut_off = Window(35.0, 60.0, replica="one", may_lag=True)
    assert found(answer(42.0, "", wrong="x"), answer(43.0, FIRST), windows=(broken,)).num_fallbacks == 1
    assert len(found(answer(45.0, "", wrong="x"), windows=(broken,)).wrong) == 1
    assert found(answer(55.0, SECOND, key=EARLY), answer(56.0, FIRST), windows=(cut_off,)).wrong == []
    assert len(found(answer(62.0, SECOND), windows=(cut_off,)).wrong) == 1


def test_a_score_of_two_versions_is_found() -> None:
    whole = list(golden_request(7).scores)
    assert mark_of(whole) == (7, "")
    assert mark_of([*whole, 8 * 65793.0]) == (0, "candidate 3 has user 8, item 8, dense 8, candidate 0 has 7")
    assert mark_of([7 * 65793.0 + 1]) == (0, "candidate 0 has user 7, item 7, dense 8, candidate 0 has 7")
    marks = Marks({FIRST: 1, SECOND: 2})
    assert marks.mixed([answer(1.0, FIRST)]) == []
    assert marks.mixed([answer(1.0, SECOND)]) == [f"{SECOND} has mark 2, its answer to {LATE} over rest has 1"]


@pytest.mark.parametrize(
    ("during", "full", "failed", "verdicts"),
    [
        (0.0024, 0.05, "", ["met", "met", "met", "met"]),
        (0.0026, 0.05, "", ["missed", "met", "met", "met"]),
        (0.002, 0.11, "", ["met", "missed", "missed", "met"]),
        (0.002, 0.05, "503", ["met", "met", "met", "missed"]),
    ],
)
def test_each_aim_is_judged(during: float, full: float, failed: str, verdicts: list[str]) -> None:
    rest = [Answer(at, at, at + 0.002, "one", "rest", "k", FIRST) for at in range(100)]
    later = [Answer(at, at, at + during, "one", "rest", "k", FIRST) for at in range(200, 300)]
    lost = [Answer(150, 150, 151, "one", "rest", "k", "", wrong=failed)] if failed else []
    back = WentBack(0.01, 0.02, full)
    timings = Timings(
        {"at rest": [(0, 100)], "refresh": [(200, 300)]},
        [Refreshed(0.3, 0.04, 0.31, 0.32, 0.33)],
        [back],
        [back],
        [*rest, *lost, *later],
    )
    *_, aims = timing_sheets(timings)
    assert [line[2] for line in aims.lines] == verdicts
