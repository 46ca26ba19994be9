from rankhouse.serving.refresh.attempts import Attempts

NAME = "000001-aaaaaaaa"


def test_each_failure_waits_twice_as_long_up_to_a_minute() -> None:
    attempts = Attempts()
    waits = [attempts.failed(NAME, "away", now=100.0).next_at - 100.0 for _ in range(8)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert attempts.reasons() == {NAME: "away"}
    assert attempts.numbers() == {NAME: 8}


def test_it_is_due_when_its_time_comes() -> None:
    attempts = Attempts()
    assert attempts.is_due(NAME, now=0.0)
    attempts.failed(NAME, "away", now=0.0)
    assert not attempts.is_due(NAME, now=0.9)
    assert attempts.is_due(NAME, now=1.0)
    attempts.forget(NAME)
    assert attempts.is_due(NAME, now=0.0)


def test_others_are_tried_after_the_third_failure() -> None:
    attempts = Attempts()
    for number in range(3):
        assert attempts.passed_over(now=0.0) == frozenset(), number
        attempts.failed(NAME, "away", now=0.0)
    assert attempts.passed_over(now=3.9) == {NAME}
    assert attempts.passed_over(now=4.0) == frozenset()


def test_what_triton_did_not_answer_is_due_when_it_does() -> None:
    attempts = Attempts()
    attempts.failed(NAME, "no answer", now=0.0, is_tritons=True)
    attempts.failed("000002-bbbbbbbb", "disk full", now=0.0)
    attempts.triton_is_back()
    assert attempts.reasons().keys() == {"000002-bbbbbbbb"}
    attempts.keep_only(frozenset())
    assert attempts.reasons() == {}
