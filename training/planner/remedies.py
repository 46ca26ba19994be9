"""What would fit, where a workload does not: more ranks, smaller slots, fewer samples, tables in the host's memory."""

import math
from collections.abc import Callable
from dataclasses import replace

from rankhouse.kernels.optimizer_settings import RowwiseAdagrad
from rankhouse.training.errors import NoRoomError
from rankhouse.training.planner.forecast import Forecast
from rankhouse.training.planner.units import gibibytes
from rankhouse.training.planner.workload import Cluster, Workload

# Plans are tried for so much more memory than tables alone need, until one fits.
_MARGINS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
_MOST_RANKS = 4096


def what_would_fit(
    problem: str, workload: Workload, cluster: Cluster, plan: Callable[[Workload, Cluster], Forecast]
) -> str:
    """Returns the message for a workload that does not fit: the problem, the numbers, and what would do.

    Args:
        problem: What has no room.
        workload: The step.
        cluster: The ranks on which it does not fit.
        plan: Plans a workload for a cluster, or raises NoRoomError.
    """
    tables = table_bytes(workload)
    lines = [
        f"{gibibytes(tables)} of tables and slots do not fit {_ranks(cluster.num_ranks)} of "
        f"{gibibytes(cluster.usable_bytes)} usable memory ({gibibytes(tables / cluster.num_ranks)} a rank): {problem}. "
        "What would:"
    ]
    return "\n".join([*lines, *remedies(workload, cluster, plan)])


def remedies(workload: Workload, cluster: Cluster, plan: Callable[[Workload, Cluster], Forecast]) -> list[str]:
    """Returns what would fit, a line for each way; the arguments are those of `what_would_fit`."""
    tables = table_bytes(workload)
    lines = [_more_ranks(tables, workload, cluster, plan)]
    for what, smaller in _smaller(tables, workload, cluster):
        if _fits(smaller, cluster, plan):
            lines.append(f"{what}: {gibibytes(table_bytes(smaller) / cluster.num_ranks)} of tables and slots a rank")
    if workload.may_lie_on_host:
        lines += _on_host(tables, workload, cluster, plan)
    tried = "nothing that was tried: more ranks, fewer slots, fewer samples"
    return [f"- {line}" for line in (list(filter(None, lines)) or [tried])]


def table_bytes(workload: Workload) -> float:
    """Returns the bytes of all tables and of what the optimizer keeps for them, each once."""
    return sum(workload.table_bytes(load.table) for load in workload.tables)


def least_used(workload: Workload) -> list[str]:
    """Returns the tables, first those of the most bytes for each number that a step looks up in them."""
    tables = [load.table for load in workload.tables]
    by_use = {
        table.name: workload.table_bytes(table) / max(table.lookups_per_sample * table.dim, 1e-9) for table in tables
    }
    return sorted(by_use, key=lambda name: -by_use[name])


def _more_ranks(
    tables: float, workload: Workload, cluster: Cluster, plan: Callable[[Workload, Cluster], Forecast]
) -> str:
    least = max(cluster.num_ranks + 1, math.ceil(tables / cluster.usable_bytes))
    for margin in _MARGINS:
        num_ranks = math.ceil(least * margin)
        if num_ranks > _MOST_RANKS:
            break
        if _fits(workload, replace(cluster, num_ranks=num_ranks), plan):
            return f"more ranks with as much memory each: it fits {num_ranks}"
    return ""


def _smaller(tables: float, workload: Workload, cluster: Cluster) -> list[tuple[str, Workload]]:
    smaller = []
    if any(len(workload.optimizer.slot_shape(2, 2)) == 2 for _ in workload.optimizer.slot_names):
        smaller.append(("row-wise Adagrad, one number for a row", replace(workload, optimizer=RowwiseAdagrad())))
    if any(load.table.dtype == "float32" for load in workload.tables):
        narrow = workload.held_as(dict.fromkeys((load.table.name for load in workload.tables), "bfloat16"))
        smaller.append(("rows held as bfloat16 (dtype in parallel.tables)", narrow))
    if workload.batch_size > 1 and tables < cluster.num_ranks * cluster.usable_bytes:
        half = workload.batch_size // 2
        smaller.append((f"half the samples in a step, {half}", replace(workload, batch_size=half)))
    return smaller


def _on_host(
    tables: float, workload: Workload, cluster: Cluster, plan: Callable[[Workload, Cluster], Forecast]
) -> list[str]:
    """Says which tables to put into the host's memory; nothing where that is too small, or the others do not fit."""
    excess, hardware = tables - cluster.num_ranks * cluster.usable_bytes, cluster.hardware
    sizes = {load.table.name: workload.table_bytes(load.table) for load in workload.tables}
    moved: list[str] = []
    for name in least_used(workload):
        if sum(sizes[item] for item in moved) >= max(excess, 0.0) + 0.1 * tables:
            break
        moved.append(name)
    left = tuple(load for load in workload.tables if load.table.name not in moved)
    if left and not _fits(replace(workload, tables=left), cluster, plan):
        return []
    total = sum(sizes[name] for name in moved)
    some = ", ".join(moved[:3]) + (f" and {len(moved) - 3} more" if len(moved) > 3 else "")
    if hardware.shares_host_memory:
        return [f'device "host" with a host_folder for {some}: {gibibytes(total)} in files, with some rows cached']
    if total > hardware.host_memory_bytes * cluster.num_ranks:
        return []
    return [f'device "host" for {some}: {gibibytes(total)} that the hosts have room for']


def _fits(workload: Workload, cluster: Cluster, plan: Callable[[Workload, Cluster], Forecast]) -> bool:
    try:
        plan(workload, cluster)
    except NoRoomError:
        return False
    return True


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
