from rankhouse.training.planner.explanation import explain
from rankhouse.training.planner.placing import plan_tables
from rankhouse.training.planner.units import gibibytes, milliseconds
from tests.training.planner.small_workload import cluster, small_workload


def test_says_memory_time_wire_and_why() -> None:
    made = plan_tables(small_workload(), cluster(2))
    text = explain(made)
    assert text.startswith("5 tables on 2 ranks of a100: ")
    assert f"predicted: {milliseconds(made.step_seconds)} a step of 8,192 samples" in text
    for line in ("memory of", "rank 1", "id exchange", "gradient row exchange", "update"):
        assert any(found.startswith(line) for found in text.splitlines()), line
    assert all(f"\n{placement.table} {placement.reason}" in text for placement in made.plan.placements)


def test_many_ranks_are_summed_up() -> None:
    text = explain(plan_tables(small_workload(), cluster(32)), with_tables=False)
    assert ", the fullest" in text
    assert ", the emptiest" in text
    assert "rank 17  " not in text


def test_sizes_and_times_have_units_that_fit() -> None:
    assert [gibibytes(size) for size in (1.5 * 2**30, 12 * 2**20, 2048, 7)] == [
        "1.50 GiB",
        "12.0 MiB",
        "2.0 KiB",
        "7 B",
    ]
    assert [milliseconds(time) for time in (2.5, 0.0123, 45e-6)] == ["2.50 s", "12.30 ms", "45.00 µs"]
