"""A step of five tables that differ in rows, width and ids, for tests of the planner."""

from dataclasses import replace

from rankhouse.training.plan import TableSpec
from rankhouse.training.planner.hardware import PROFILES
from rankhouse.training.planner.workload import Cluster, TableLoad, Workload, dense_load


def load(name: str, num_rows: int, dim: int = 16, lookups: float = 1.0, **others: object) -> TableLoad:
    return TableLoad(TableSpec(name, num_rows, dim, lookups), **others)  # type: ignore[arg-type]


def small_workload(**changes: object) -> Workload:
    tables = (
        load("tiny", 10, 8),
        load("user", 2_000_000, 64, id_exponent=1.05),
        load("item", 500_000, 32, 30.0, num_inputs=2, id_exponent=1.05),
        load("shop", 50_000, 16),
        load("wide", 100_000, 256, id_exponent=1.05),
    )
    workload = Workload(tables, 8192, dense_load([424, 256, 1]))
    return replace(workload, **changes)  # type: ignore[arg-type]


def cluster(num_ranks: int, **changes: object) -> Cluster:
    return Cluster(num_ranks, PROFILES["a100"], **changes)  # type: ignore[arg-type]
