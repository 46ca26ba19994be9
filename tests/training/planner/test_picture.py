from pathlib import Path

import pytest

from rankhouse.training.errors import PlanError
from rankhouse.training.planner.picture import draw
from rankhouse.training.planner.placing import plan_tables
from tests.training.planner.small_workload import cluster, small_workload


def test_draws_svg_and_png(tmp_path: Path) -> None:
    made = plan_tables(small_workload(), cluster(2))
    draw(made, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text()
    for word in ("weights", "row exchange", "update", "5 tables on 2 ranks of a100"):
        assert word in text
    draw(made, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "plan.svg").read_bytes()
    draw(made, tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"plan\.pdf; expected a file that ends in \.svg or \.png"):
        draw(plan_tables(small_workload(), cluster(2)), tmp_path / "plan.pdf")
