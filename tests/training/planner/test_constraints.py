from pathlib import Path

import pytest

from rankhouse.training.errors import PlanError
from rankhouse.training.planner.constraints import (
    Constraint,
    Thresholds,
    load_constraints,
    read_constraints,
    row_dtypes,
)

TABLES = ["user_a", "user_b", "item"]


def test_names_go_before_patterns_and_earlier_patterns_before_later() -> None:
    constraints = {"user_*": {"device": "host"}, "*": {"wire_forward": "int8"}, "user_b": {"ranks": [0]}}
    found = read_constraints(constraints, TABLES, num_ranks=2)
    assert found == {
        "user_a": Constraint(device="host"),
        "user_b": Constraint(ranks=(0,)),
        "item": Constraint(wire_forward="int8"),
    }


def test_say_what_rows_are_held_in() -> None:
    constraints = {"user_*": Constraint(dtype="bfloat16"), "user_b": Constraint(mode="row_wise")}
    assert row_dtypes(constraints, TABLES) == {"user_a": "bfloat16"}


def test_are_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text("item: {mode: row_wise, ranks: [0, 1]}\n")
    assert load_constraints(path) == {"item": {"mode": "row_wise", "ranks": [0, 1]}}
    path.write_text("- item\n")
    with pytest.raises(PlanError, match=r"tables\.yaml has no constraints; expected lines such as"):
        load_constraints(path)
    with pytest.raises(PlanError, match="cannot read constraints"):
        load_constraints(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"itm": {}}, "'itm' fits no table; did you mean 'item'"),
        ({"item": {"rank": 1}}, "unknown key 'rank'; did you mean 'ranks'"),
        ({"item": {"mode": "grid"}}, "mode = 'grid'; expected one of data_parallel"),
        ({"item": {"ranks": [2]}}, "names rank 2; expected one of the 2 ranks"),
        ({"item": {"ranks": [1, 1]}}, "expected at least one, each once"),
        ({"item": {"num_slices": 0}}, "num_slices = 0"),
        ({"item": {"device": "disk"}}, "device = 'disk'"),
        ({"item": {"dtype": "int8"}}, "dtype = 'int8'; expected one of float32, bfloat16, float16"),
        ({"item": {"wire_forward": "int4"}}, "wire_forward = 'int4'"),
        ({"item": {"host_folder": "/scratch"}}, "has a host_folder, /scratch; expected device = 'host' with it"),
        ({"item": {"cache_rows": 5}}, "cache_rows = 5; expected at least 1, and device = 'host'"),
        ({"item": {"mode": "data_parallel", "device": "host"}}, "none of its rows travel or lie on the host"),
        ({"item": {"mode": "row_wise", "exchange": "pooled"}}, "row_wise, where unique ids travel"),
        ({"item": {"exchange": "ids"}}, "exchange = 'ids'"),
        ({"item": {"mode": "data_parallel", "ranks": [0]}}, "data_parallel, which is whole on all ranks"),
        ({"item": {"mode": "table_wise", "num_slices": 2}}, "table_wise in 2 slices"),
    ],
)
def test_impossible_constraints_are_refused(constraints: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        read_constraints(constraints, TABLES, num_ranks=2)


def test_thresholds_below_zero_are_refused() -> None:
    with pytest.raises(PlanError, match="the threshold row_slice is -1"):
        Thresholds(row_slice=-1)
