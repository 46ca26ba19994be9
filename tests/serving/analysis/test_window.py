import numpy as np

from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.analysis.window import SummaryWindow


def answered(summary: Summary, num: int) -> Summary:
    for _ in range(num):
        summary.observe_answer(200, 0.01, np.array([0.1]))
    return summary


def test_a_window_forgets_what_is_older() -> None:
    window, total = SummaryWindow(240.0), answered(Summary(), 5)
    assert window.advance(0.0, total).num_requests == 0  # What came before is of unknown age.
    found = [window.advance(10.0 * step, answered(total, 1)).num_requests for step in range(1, 60)]
    assert found[:20] == list(range(1, 21))
    assert set(found[30:]) == {24}


def test_looks_may_be_many() -> None:
    window, total = SummaryWindow(24.0), Summary()
    found = [window.advance(step / 10, answered(total, 1)).num_requests for step in range(1000)]
    assert len(window._states) <= 26
    assert all(240 <= count <= 251 for count in found[300:])


def test_a_summary_that_lost_something_begins_anew() -> None:
    window = SummaryWindow(100.0)
    window.advance(0.0, answered(Summary(), 10))
    assert window.advance(5.0, answered(Summary(), 13)).num_requests == 3
    assert window.advance(10.0, answered(Summary(), 4)).num_requests == 0  # A replica's part is gone.
    assert window.advance(15.0, answered(Summary(), 6)).num_requests == 2


def test_a_model_with_other_features_begins_anew() -> None:
    window = SummaryWindow(100.0)
    window.advance(0.0, Summary(["user"]))
    assert window.advance(1.0, answered(Summary(["item"]), 2)).num_requests == 0
