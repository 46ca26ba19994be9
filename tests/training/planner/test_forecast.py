from dataclasses import replace

import pytest

from rankhouse.kernels.optimizer_settings import Adam, RowwiseAdagrad, Sgd
from rankhouse.training.errors import PlanError
from rankhouse.training.exchange.wire_format import WireDtypes
from rankhouse.training.plan import Mode, Plan, make_plan, place
from rankhouse.training.planner.forecast import forecast
from rankhouse.training.planner.workload import Cluster, Workload
from tests.training.planner.small_workload import cluster, load, small_workload


def one_table(mode: Mode, *, num_ranks: int, exchange: str | None = None, **others: object) -> tuple[Plan, Workload]:
    item = load("t", 10_000, 16, **others)
    placement = place(item.table, mode, num_ranks=num_ranks, exchange=exchange)  # type: ignore[arg-type]
    return Plan((item.table,), (placement,), num_ranks), Workload((item,), 4096)


def with_placement(plan: Plan, **changes: object) -> Plan:
    return replace(plan, placements=(replace(plan.placements[0], **changes),))  # type: ignore[arg-type]


def test_bytes_on_the_wire_are_those_of_the_exchange() -> None:
    plan, workload = one_table("table_wise", num_ranks=4)
    seen = forecast(plan, workload, cluster(4))
    # Each rank sends the ids of its 1,024 samples; the owner sends 3 of 4 pooled rows away, and gets 3 of 4 gradients.
    assert [rank.sent_bytes["ids"] for rank in seen.ranks] == [8 * 1024 * 3 / 4] * 4
    assert [rank.sent_bytes["rows"] for rank in seen.ranks] == [4 * 16 * 4096 * 3 / 4, 0, 0, 0]
    assert seen.wire_bytes == pytest.approx((8 + 2 * 4 * 16) * 4096 * 3 / 4 / 4)


def test_narrow_wires_and_unique_ids_send_less() -> None:
    plan, workload = one_table("table_wise", num_ranks=4, lookups=10.0, num_inputs=10, id_exponent=1.05)
    plain = forecast(plan, workload, cluster(4)).wire_bytes
    narrow = replace(workload, forward_wire="bfloat16", backward_wire="bfloat16")
    assert forecast(plan, narrow, cluster(4)).wire_bytes == pytest.approx(plain * (8 + 2 * 32) / (8 + 2 * 64))
    unique, _ = one_table("table_wise", num_ranks=4, exchange="rows", lookups=10.0, num_inputs=10, id_exponent=1.05)
    assert forecast(unique, narrow, cluster(4)).wire_bytes < plain / 3
    wired = with_placement(plan, wire=WireDtypes("int8", "int8"))
    assert forecast(wired, workload, cluster(4)).wire_bytes == pytest.approx(plain * 56 / 136)
    assert (
        forecast(wired, workload, cluster(4)).phase_seconds["lookup"]
        > forecast(plan, workload, cluster(4)).phase_seconds["lookup"]
    )


@pytest.mark.parametrize(
    ("optimizer", "slot_bytes"), [(Sgd(), 4), (RowwiseAdagrad(), 8), (Adam(), 4 + 8 * 16), (Adam(kind="exact"), 136)]
)
def test_memory_counts_slots_and_the_notes_of_each_row(optimizer: object, slot_bytes: int) -> None:
    plan, workload = one_table("table_wise", num_ranks=2)
    seen = forecast(plan, replace(workload, optimizer=optimizer), cluster(2))  # type: ignore[arg-type]
    assert (seen.ranks[0].weight_bytes, seen.ranks[0].slot_bytes) == (4 * 16 * 10_000, slot_bytes * 10_000)
    assert (seen.ranks[1].weight_bytes, seen.ranks[1].slot_bytes) == (0, 0)


def test_rows_of_16_bits_take_half_the_memory_and_less_time() -> None:
    for host in ({}, {"device": "host", "cache_rows": 500}):
        plan, workload = one_table("table_wise", num_ranks=2, id_exponent=1.05)
        plan = with_placement(plan, **host)
        narrow = workload.held_as({"t": "bfloat16", "other": "float16"})
        one = forecast(plan, workload, cluster(2))
        other = forecast(replace(plan, tables=(narrow.tables[0].table,)), narrow, cluster(2))
        whole, half = one.ranks[0], other.ranks[0]
        assert (2 * half.weight_bytes, half.slot_bytes) == (whole.weight_bytes, whole.slot_bytes)
        assert whole.host_bytes - half.host_bytes == (2 * 16 * 10_000 if host else 0)
        for phase in ("lookup", "update"):
            assert other.phase_seconds[phase] < one.phase_seconds[phase]
    with pytest.raises(PlanError, match="of other tables than the workload; first differ"):
        forecast(plan, narrow, cluster(2))


def test_cuts_share_weights_and_copies_do_not() -> None:
    modes: tuple[Mode, ...] = ("column_wise", "row_wise", "data_parallel")
    for mode, held in zip(modes, (1 / 4, 1 / 4, 1), strict=True):
        plan, workload = one_table(mode, num_ranks=4, id_exponent=1.05)
        seen = forecast(plan, workload, cluster(4))
        assert [rank.weight_bytes for rank in seen.ranks] == [4 * 16 * 10_000 * held] * 4
    assert seen.phase_seconds["gradient_sum"] > 0
    assert seen.phase_seconds["rows"] == 0


def test_tables_on_the_host_leave_the_device_free_but_slow() -> None:
    plan, workload = one_table("table_wise", num_ranks=2)
    device = forecast(plan, workload, cluster(2))
    host = forecast(with_placement(plan, device="host", cache_rows=500), workload, cluster(2))
    assert host.ranks[0].weight_bytes == 4 * 16 * 500
    assert host.ranks[0].host_bytes == device.ranks[0].weight_bytes + device.ranks[0].slot_bytes
    assert host.phase_seconds["lookup"] > device.phase_seconds["lookup"]
    whole = forecast(with_placement(plan, device="host", cache_rows=10_000), workload, cluster(2))
    assert whole.phase_seconds == device.phase_seconds


def test_one_rank_exchanges_nothing() -> None:
    workload = small_workload()
    plan = make_plan([item.table for item in workload.tables], num_ranks=1)
    seen = forecast(plan, workload, cluster(1))
    assert seen.wire_bytes == 0
    assert {phase for phase, seconds in seen.phase_seconds.items() if seconds} == {"lookup", "dense", "update"}


def test_between_machines_exchanges_take_longer() -> None:
    within, between = (Cluster(num_ranks, cluster(1).hardware) for num_ranks in (8, 16))
    assert between.exchange_byte_seconds > 3 * within.exchange_byte_seconds
    assert between.sum_byte_seconds > within.sum_byte_seconds


def test_a_plan_for_others_is_refused() -> None:
    workload = small_workload()
    plan = make_plan([item.table for item in workload.tables], num_ranks=2)
    with pytest.raises(PlanError, match="the plan is for 2 ranks, but the cluster has 3"):
        forecast(plan, workload, cluster(3))
    with pytest.raises(PlanError, match="the plan is of other tables than the workload"):
        forecast(plan, replace(workload, tables=workload.tables[1:]), cluster(2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": ()}, "no embedding tables"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"forward_wire": "int4"}, "forward_wire = 'int4'; expected one of float32"),
        ({"tables": (load("a", 1), load("a", 2))}, "2 tables are named 'a'"),
    ],
)
def test_impossible_workloads_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        small_workload(**changes)
