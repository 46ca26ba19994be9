from dataclasses import replace
from pathlib import Path

import pytest

from rankhouse.training.planner.hardware import SoftwareCosts
from rankhouse.training.planner.published import FITTED, PUBLISHED_STEPS, comparison, fit_costs, predict, relative_error

DOCUMENT = Path(__file__).parents[3] / "docs" / "planning.md"

HELD_OUT = [step for step in PUBLISHED_STEPS if not step.is_fitted]


def test_the_document_holds_what_the_command_prints() -> None:
    assert comparison() in DOCUMENT.read_text()


def test_the_fitted_costs_are_those_that_the_fit_finds() -> None:
    found, kept = fit_costs(), SoftwareCosts()
    fitted = [step for step in PUBLISHED_STEPS if step.is_fitted]
    assert relative_error(fitted, kept) < 1.01 * relative_error(fitted, found)
    assert replace(found, **{name: getattr(kept, name) for name in FITTED}) == kept


def test_held_out_steps_are_predicted_within_a_third() -> None:
    assert relative_error(HELD_OUT) < 0.15
    for step in HELD_OUT:
        assert 1e3 * predict(step).step_seconds == pytest.approx(step.milliseconds, rel=0.34), step
