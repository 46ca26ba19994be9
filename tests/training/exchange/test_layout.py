from typing import Any

import pytest

from rankhouse.training.exchange.layout import Layout, Layouts
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.tables.specs import Input

NARROW = WireFormat(forward="bfloat16")


def layout(mode: Any, combiners: list[str | None], *, num_ranks: int = 3, rank: int = 0, **options: Any) -> Layout:
    table = TableSpec("a", 10, 4)
    plan = Plan((table,), (place(table, mode, num_ranks=num_ranks, **options),), num_ranks)
    inputs = [Input(f"x{number}", "a", combiner) for number, combiner in enumerate(combiners)]
    return Layouts(inputs, plan, {"a": NARROW}, rank=rank).of(combiners)


def test_copies_are_looked_up_where_they_are() -> None:
    made = layout("data_parallel", ["sum", "mean"], rank=1)
    assert [(feature.number, feature.shard.rank) for feature in made.local] == [(0, 1), (1, 1)]
    assert not made.travels


def test_a_table_on_one_rank_of_one_does_not_travel_but_slices_do() -> None:
    assert not layout("row_wise", ["sum"], num_ranks=1).travels
    assert layout("column_wise", ["sum"], num_ranks=1, num_slices=2).travels


def test_slices_of_one_width_lie_side_by_side_and_ids_travel_once() -> None:
    made = layout("column_wise", ["sum", "mean"], ranks=[2], num_slices=3)
    assert [group.numbers for group in made.pooled] == [(), (), (0, 1)]
    assert made.pooled[2].blocks == [(4, 1, NARROW), (2, 2, NARROW)]
    assert [made.serves(rank) for rank in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("mode", "combiners", "options"),
    [("row_wise", ["sum"], {}), ("table_wise", ["sum"], {"exchange": "rows"}), ("column_wise", ["sum", None], {})],
)
def test_tables_travel_by_rows_where_they_must(mode: Any, combiners: list[str | None], options: dict[str, Any]) -> None:
    made = layout(mode, combiners, **options)
    assert [table.numbers for table in made.rows] == [tuple(range(len(combiners)))]
    assert not any(group.numbers for group in made.pooled)


def test_ranks_without_rows_are_asked_for_nothing() -> None:
    made = layout("row_wise", ["sum"], num_ranks=12)
    assert [made.serves(rank) for rank in range(12)] == [True] * 10 + [False] * 2
    with pytest.raises(IndexError):
        made.serves(12)
