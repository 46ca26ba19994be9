"""Chooses how each table is cut, and which rank gets which part.

    1  each table   the cheapest way to leave it uncut: on every rank, or whole on one, pooled there or not
    2  some         spread, where one rank would be longer busy with it than with a fair share of all, or has no room
    3  all parts    the largest first, to the rank that is then the least busy (`balancing`)
    4  again        1 to 3 by other ideas of what is too long; the shortest predicted step is kept
    5  again        spread what keeps the slowest rank busy longest, as long as the predicted step gets shorter

What has no room is planned again with tables in the host's memory.
Costs are those of `work.CostModel`. The same input gives the same plan.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rankhouse.training.errors import NoRoomError
from rankhouse.training.plan import Placement, Plan, check_plan
from rankhouse.training.planner.balancing import balance, fair_seconds
from rankhouse.training.planner.choices import Choice, Choices
from rankhouse.training.planner.constraints import Constraint, Thresholds, read_constraints, row_dtypes
from rankhouse.training.planner.forecast import Forecast, forecast
from rankhouse.training.planner.reasons import reason
from rankhouse.training.planner.remedies import least_used, what_would_fit
from rankhouse.training.planner.units import gibibytes
from rankhouse.training.planner.work import CostModel
from rankhouse.training.planner.workload import Cluster, Workload

# How many fair shares a table on one rank may be busy for, and whether all rows are pooled where they lie.
_STARTS = tuple((shares, pooled_only) for pooled_only in (True, False) for shares in (1.0, 2.0, math.inf))

# How often the slowest rank's largest part is spread further.
_MAX_REFINEMENTS = 8


def plan_tables(
    workload: Workload,
    cluster: Cluster,
    *,
    constraints: Mapping[str, Constraint | Mapping[str, Any]] | None = None,
    thresholds: Thresholds | None = None,
) -> Forecast:
    """Places every table so that a step is short and every rank has room, and says what that costs.

    Args:
        workload: The step.
        cluster: The ranks.
        constraints: What is decided already, by table or pattern; see `read_constraints`.
        thresholds: What is decided by size; a table's own constraint goes before it.

    Raises:
        NoRoomError: It does not fit the ranks' memory; the message says what would.
        PlanError: Constraints contradict the tables or each other.
    """
    names = [load.table.name for load in workload.tables]
    decided = read_constraints(constraints or {}, names, num_ranks=cluster.num_ranks)
    workload = workload.held_as(row_dtypes(decided, names))

    def plan(workload: Workload, cluster: Cluster) -> Forecast:
        return _Planning(workload, cluster, decided, thresholds or Thresholds()).run()

    try:
        return plan(workload, cluster)
    except NoRoomError as error:
        on_host = _with_tables_on_host(workload, cluster, decided, thresholds or Thresholds())
        if on_host is not None:
            return on_host
        raise NoRoomError(what_would_fit(str(error), workload, cluster, plan)) from error


def _with_tables_on_host(
    workload: Workload, cluster: Cluster, decided: dict[str, Constraint], thresholds: Thresholds
) -> Forecast | None:
    """Puts as few tables as do into the host's memory, the least used of their bytes first; None where none do."""
    movable = [name for name in least_used(workload) if _may_lie_on_host(decided.get(name, Constraint()))]
    if cluster.hardware.shares_host_memory or not workload.may_lie_on_host or not movable:
        return None

    def plan(num_moved: int) -> Forecast | None:
        moved = {name: replace(decided.get(name, Constraint()), device="host") for name in movable[:num_moved]}
        try:
            return _Planning(workload, cluster, {**decided, **moved}, thresholds).run()
        except NoRoomError:
            return None

    too_few, num_moved = 0, len(movable)
    best = plan(num_moved)
    while best is not None and num_moved - too_few > 1:
        fewer = (too_few + num_moved) // 2
        if (found := plan(fewer)) is None:
            too_few = fewer
        else:
            best, num_moved = found, fewer
    return best


def _may_lie_on_host(constraint: Constraint) -> bool:
    return constraint.device is None and constraint.mode != "data_parallel"


class _Planning:
    """One search for a plan."""

    def __init__(
        self, workload: Workload, cluster: Cluster, constraints: dict[str, Constraint], thresholds: Thresholds
    ) -> None:
        self._workload = workload
        self._cluster = cluster
        self._choices = Choices(CostModel(workload, cluster), constraints, thresholds)
        self._chosen: list[Choice] = []

    def run(self) -> Forecast:
        """Returns the best plan that was found."""
        best, failures = None, []
        for shares, pooled_only in _STARTS[: 1 if self._cluster.num_ranks == 1 else None]:
            try:
                found = self._start(shares, pooled_only=pooled_only)
            except NoRoomError as error:
                failures.append(error)
                continue
            if best is None or found.step_seconds < best.step_seconds:
                best, chosen = found, list(self._chosen)
        if best is None:
            raise failures[-1]
        self._chosen = chosen
        return self._explained(self._refined(best))

    def _start(self, shares: float, *, pooled_only: bool) -> Forecast:
        self._chosen = []
        for load in self._workload.tables:
            whole = self._choices.whole(load)
            pooled = [choice for choice in whole if choice.placement.exchange == "pooled"]
            possible = pooled if pooled_only and pooled else whole
            self._chosen.append(min(possible, key=lambda choice: choice.rank_seconds))
        self._spread_what_is_too_much(shares)
        return self._forecast(self._place_or_cut())

    def _refined(self, best: Forecast) -> Forecast:
        chosen = list(self._chosen)
        for _ in range(_MAX_REFINEMENTS):
            if not self._spread_slowest(best):
                break
            try:
                found = self._forecast(self._place())
            except NoRoomError:
                break
            if found.step_seconds >= best.step_seconds:
                break
            best, chosen = found, list(self._chosen)
        self._chosen = chosen
        return best

    @property
    def _budget_bytes(self) -> float:
        """Bytes that a rank has for parts of tables."""
        workload, samples = self._workload, self._workload.batch_size / self._cluster.num_ranks
        dense = 4 * workload.dense.num_parameters * (2 + len(workload.optimizer.slot_names))
        activations = 2 * 4 * samples * workload.dense.activations
        return self._cluster.usable_bytes - dense - activations - sum(choice.asker_bytes for choice in self._chosen)

    def _spread_what_is_too_much(self, shares: float) -> None:
        fair, budget = fair_seconds(self._chosen), self._budget_bytes
        for number, choice in enumerate(self._chosen):
            too_much = choice.peak_seconds > shares * fair or choice.peak_bytes > budget / 2
            if too_much and choice.placement.mode == "table_wise":
                cuts = (choice, *self._choices.cuts(self._workload.tables[number]))
                self._chosen[number] = _best_cut(cuts, shares * fair, budget)

    def _spread_slowest(self, best: Forecast) -> bool:
        """Cuts a part that keeps the slowest rank busy long; False where none is left to cut."""
        slowest = max(best.ranks, key=lambda rank: (rank.seconds["lookup"] + rank.seconds["update"], -rank.rank)).rank
        held = {
            number: choice.peak_seconds
            for number, (choice, placement) in enumerate(zip(self._chosen, best.plan.placements, strict=True))
            if placement.mode in ("table_wise", "column_wise") and slowest in placement.ranks
        }
        for number in sorted(held, key=lambda number: (-held[number], number))[:3]:
            cuts = self._choices.cuts(self._workload.tables[number])
            finer = [cut for cut in cuts if cut.peak_seconds < 0.8 * held[number]]
            if finer:
                self._chosen[number] = min(finer, key=lambda cut: cut.rank_seconds)
                return True
        return False

    def _place_or_cut(self) -> list[Placement]:
        """Places all parts; as long as one has no room, the largest parts that can be cut are."""
        while True:
            try:
                return self._place()
            except NoRoomError:
                if not self._cut_largest():
                    raise

    def _cut_largest(self) -> bool:
        """Cuts the tables of the largest parts, and those nearly as large; False where none can be cut."""
        smaller = {}
        for number, (load, choice) in enumerate(zip(self._workload.tables, self._chosen, strict=True)):
            cuts = [cut for cut in self._choices.cuts(load) if cut.peak_bytes < choice.peak_bytes]
            if cuts and not choice.is_everywhere:
                smaller[number] = min(cuts, key=lambda cut: cut.rank_seconds)
        limit = max((self._chosen[number].peak_bytes for number in smaller), default=0.0) / 2
        for number, cut in smaller.items():
            if self._chosen[number].peak_bytes > limit:
                self._chosen[number] = cut
        return bool(smaller)

    def _place(self) -> list[Placement]:
        names = [load.table.name for load in self._workload.tables]
        return balance(self._chosen, names, num_ranks=self._cluster.num_ranks, budget_bytes=self._budget_bytes)

    def _forecast(self, placements: list[Placement]) -> Forecast:
        tables = tuple(load.table for load in self._workload.tables)
        plan = Plan(tables, tuple(placements), self._cluster.num_ranks)
        return forecast(plan, self._workload, self._cluster)

    def _explained(self, best: Forecast) -> Forecast:
        fair, budget = fair_seconds(self._chosen), self._budget_bytes
        placements = [
            replace(placement, reason=reason(choice, placement, self._choices.whole(load), fair, budget))
            for load, choice, placement in zip(self._workload.tables, self._chosen, best.plan.placements, strict=True)
        ]
        plan = replace(best.plan, placements=tuple(placements))
        check_plan(plan)
        explained = replace(best, plan=plan)
        if overfull := explained.overfull():
            rank = max(overfull, key=lambda rank: rank.host_bytes)
            room = gibibytes(self._cluster.hardware.host_memory_bytes)
            raise NoRoomError(f"rank {rank.rank} has {gibibytes(rank.host_bytes)} in the hosts' memory of {room}")
        return explained


def _best_cut(cuts: Sequence[Choice], fair: float, budget: float) -> Choice:
    """Returns the cheapest cut whose parts are small enough; or where none are, the one of the smallest parts."""

    def excess(cut: Choice) -> float:
        return max(1.0, cut.peak_seconds / fair, 2 * cut.peak_bytes / budget if budget > 0 else 1.0)

    return min(cuts, key=lambda cut: (excess(cut), cut.rank_seconds))
