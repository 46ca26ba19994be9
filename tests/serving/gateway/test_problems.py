import logging

import pytest

from rankhouse.serving import errors
from rankhouse.serving.gateway.problems import INTERNAL, KINDS, TRITON, Kind, kind_of, problem_of


def test_every_error_of_a_request_has_a_kind() -> None:
    assert set(errors.RequestError.__subclasses__()) <= set(KINDS)


@pytest.mark.parametrize("error", [cls for cls in KINDS if issubclass(cls, errors.RequestError)])
def test_the_problem_names_the_field(error: type[errors.RequestError]) -> None:
    problem = problem_of(error("is wrong", "candidates[3].C1"), "id-1")
    assert problem.path == "candidates[3].C1"
    assert problem.detail == "candidates[3].C1: is wrong"
    assert (problem.type, problem.status) == (KINDS[error].type, KINDS[error].status)


def test_an_error_of_triton_without_a_kind_of_its_own_has_that_of_its_base() -> None:
    assert kind_of(errors.InvalidTensorsError("")).slug == "triton"


@pytest.mark.parametrize(
    ("error", "kind"), [(ZeroDivisionError("a secret"), INTERNAL), (errors.TritonError("a secret"), TRITON)]
)
def test_the_system_s_inside_goes_to_the_log_and_not_to_the_caller(
    error: Exception, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        problem = problem_of(error, "id-2")
    assert (problem.type, problem.status) == (kind.type, kind.status)
    assert "a secret" not in problem.detail
    assert "id-2" in problem.detail
    assert "a secret" in caplog.text
