"""How the refresh benchmark judges."""

import pytest

from benchmarks.support.refresh.figures import Refresh, refresh_sheets


def refresh(*, during: list[float], back_seconds: float = 0.001, num_failed: int = 0) -> Refresh:
    return Refresh("engine", 0.01, [0.002] * 100, during, 0.02, 0.001, back_seconds, 0.03, num_failed)


@pytest.mark.parametrize(
    ("change", "verdicts"),
    [
        ({"during": [0.0024] * 100}, ["met", "met", "met"]),
        ({"during": [0.0026] * 100}, ["missed", "met", "met"]),
        ({"during": [0.002] * 100, "back_seconds": 0.1}, ["met", "missed", "met"]),
        ({"during": [0.002] * 100, "num_failed": 1}, ["met", "met", "missed"]),
    ],
)
def test_each_aim_is_judged(change: dict[str, object], verdicts: list[str]) -> None:
    figures, aims = refresh_sheets([refresh(**change)])  # type: ignore[arg-type]
    assert aims.lines == [["engine", "1%", *verdicts]]
    assert figures.lines[0][:5] == ["engine", "1%", "100", "2.00", "2.00"]


def test_requests_of_all_rounds_count_together() -> None:
    figures, _ = refresh_sheets([refresh(during=[0.001] * 50), refresh(during=[0.003] * 50)])
    assert figures.lines[0][2:8] == ["100", "2.00", "2.00", "2.00", "3.00", "1.50x"]
