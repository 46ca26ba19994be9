import numpy as np
import pytest

from rankhouse.serving.errors import DeadlineError, InvalidFieldError, OverloadedError
from rankhouse.serving.gateway.admission import Admission
from rankhouse.serving.gateway.call import Deadline, request_id_of
from rankhouse.serving.gateway.scorer import best_first, ranking


def test_equal_scores_rank_in_their_order() -> None:
    scores = np.array([0.5, 0.75, 0.5, 0.25, 0.75], dtype=np.float32)
    order = best_first(scores)
    assert order.tolist() == [1, 4, 0, 2, 3]
    assert [place.score for place in ranking(scores, order[:3])] == [0.75, 0.75, 0.5]


def test_a_request_id_is_kept_or_made() -> None:
    assert request_id_of("abc-1") == "abc-1"
    assert request_id_of(None) != request_id_of(None)


@pytest.mark.parametrize("given", ["", "a b", "é", "x" * 129, "line\nbreak"])
def test_a_strange_request_id_is_refused(given: str) -> None:
    with pytest.raises(InvalidFieldError, match=r"X-Request-Id: .* expected 1 to 128 visible ASCII characters"):
        request_id_of(given)


def test_a_deadline_passes() -> None:
    assert 0 < Deadline(60.0).remaining() <= 60.0
    with pytest.raises(DeadlineError, match="no answer within 1e-09 s"):
        Deadline(1e-9).remaining()


def test_admission_refuses_what_is_too_much_and_takes_again() -> None:
    admission = Admission(1)
    with admission.enter(), pytest.raises(OverloadedError, match="1 requests are being answered"), admission.enter():
        pass
    with admission.enter():
        assert admission.num_in_flight == 1
    assert admission.num_in_flight == 0
