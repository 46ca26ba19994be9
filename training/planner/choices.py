"""The ways in which one table can be cut, and what each costs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np

from rankhouse.training.errors import PlanError
from rankhouse.training.exchange.wire_format import WireDtypes
from rankhouse.training.plan import Exchange, Mode, Placement, place
from rankhouse.training.planner.constraints import Constraint, Thresholds, decided_wire, on_device
from rankhouse.training.planner.work import CostModel
from rankhouse.training.planner.workload import TableLoad, Vector

# Narrower slices of columns cost an id's lookup for next to no bytes.
_MIN_SLICE_DIM = 4


@dataclass(frozen=True, eq=False)
class Choice:
    """A way to cut a table.

    Attributes:
        placement: How, without the table's name, as equal tables share their choices; on ranks that are decided
            later unless it is data-parallel.
        allowed: Ranks that may hold its parts; None is all.
        why: Why it was chosen, where it is not by cost.
        part_seconds: [2, parts]: what each part costs its rank in a step, by itself and in exchanges.
        part_bytes: What each part takes of its rank's memory.
        asker_seconds: What it costs every rank to ask for rows.
        asker_bytes: What that takes of its memory.
        num_ranks: How many ranks there are.
    """

    placement: Placement
    allowed: tuple[int, ...] | None
    why: str
    part_seconds: Vector
    part_bytes: Vector
    asker_seconds: float
    asker_bytes: float
    num_ranks: int

    @cached_property
    def rank_seconds(self) -> float:
        """What it costs a rank on average."""
        return float(self.part_seconds.sum()) / self.num_ranks + self.asker_seconds

    @property
    def is_everywhere(self) -> bool:
        """Whether every rank has it all."""
        return self.placement.mode == "data_parallel"

    @cached_property
    def peak_seconds(self) -> float:
        """What its most expensive part costs."""
        return float(self.part_seconds.sum(axis=0).max())

    @cached_property
    def peak_bytes(self) -> float:
        """What its largest part takes."""
        return float(self.part_bytes.max())


class Choices:
    """The choices for the tables of a workload on a cluster, with what users decided."""

    def __init__(self, model: CostModel, constraints: dict[str, Constraint], thresholds: Thresholds) -> None:
        self._model = model
        self._constraints = constraints
        self._thresholds = thresholds
        self._num_ranks = model.cluster.num_ranks
        self._cached_whole = lru_cache(maxsize=None)(self._whole)
        self._cached_cuts = lru_cache(maxsize=None)(lambda *key: tuple(self._cuts(*key)))

    def whole(self, load: TableLoad) -> tuple[Choice, ...]:
        """Returns the choices that leave a table uncut; or, where users decided on its mode, the ones that they left.

        Raises:
            PlanError: None is possible.
        """
        try:
            return self._cached_whole(load.nameless, self._constraint(load))
        except PlanError as error:
            raise PlanError(f"table {load.table.name!r}: {error}") from error

    def cuts(self, load: TableLoad) -> tuple[Choice, ...]:
        """Returns the choices that spread a table over ranks, where users left it to the planner."""
        return self._cached_cuts(load.nameless, self._constraint(load))

    def _constraint(self, load: TableLoad) -> Constraint:
        return self._constraints.get(load.table.name, _FREE)

    def _whole(self, load: TableLoad, constraint: Constraint) -> tuple[Choice, ...]:
        decided = constraint.decided_mode
        if decided is not None:
            return (self._decided(load, decided, constraint),)
        by_threshold = self._by_threshold(load, constraint)
        if by_threshold is not None:
            return (by_threshold,)
        exchanges = [constraint.exchange] if constraint.exchange else self._exchanges()
        holders = constraint.ranks[:1] if constraint.ranks else None
        choices = [
            self._choice(load, constraint, "table_wise", ranks=holders, exchange=exchange) for exchange in exchanges
        ]
        if constraint.may_be_everywhere and constraint.exchange is None and self._num_ranks > 1:
            choices.append(self._choice(load, constraint, "data_parallel"))
        return tuple(choices)

    def _cuts(self, load: TableLoad, constraint: Constraint) -> Iterator[Choice]:
        free = (
            constraint.mode is None and constraint.num_slices is None and self._by_threshold(load, constraint) is None
        )
        holders = constraint.ranks
        most = len(holders) if holders else self._num_ranks
        if not free or most == 1:
            return
        if constraint.may_be_everywhere and constraint.exchange is None:
            yield self._choice(load, constraint, "data_parallel")
        if constraint.exchange != "rows":
            num_slices = 2
            while num_slices <= most and load.table.dim // num_slices >= _MIN_SLICE_DIM:
                yield self._choice(load, constraint, "column_wise", ranks=holders, num_slices=num_slices)
                num_slices *= 2
        if constraint.exchange != "pooled" and not self._model.workload.ids_at_owner:
            yield self._choice(load, constraint, "row_wise", ranks=holders)

    def _exchanges(self) -> list[Exchange]:
        return ["pooled"] if self._model.workload.ids_at_owner or self._num_ranks == 1 else ["pooled", "rows"]

    def _by_threshold(self, load: TableLoad, constraint: Constraint) -> Choice | None:
        thresholds, elements = self._thresholds, load.table.num_rows * load.table.dim
        if self._num_ranks == 1:
            return None
        if constraint.may_be_everywhere and elements <= (thresholds.data_parallel or 0):
            why = f"its {elements:,} elements are at most {thresholds.data_parallel:,}"
            return self._choice(load, constraint, "data_parallel", why=why)
        if thresholds.row_slice is not None and elements >= thresholds.row_slice:
            why = f"its {elements:,} elements are at least {thresholds.row_slice:,}"
            return self._choice(load, constraint, "row_wise", ranks=constraint.ranks, why=why)
        if thresholds.column_slice is not None and elements > thresholds.column_slice:
            num_slices = 1
            while elements / num_slices > thresholds.column_slice and 2 * num_slices <= min(
                self._num_ranks, load.table.dim
            ):
                num_slices *= 2
            why = f"its {elements:,} elements are more than {thresholds.column_slice:,}"
            return self._choice(load, constraint, "column_wise", num_slices=num_slices, why=why)
        return None

    def _decided(self, load: TableLoad, mode: Mode, constraint: Constraint) -> Choice:
        ranks = constraint.ranks
        if mode == "row_wise" and constraint.num_slices and not ranks:
            ranks = tuple(range(min(constraint.num_slices, self._num_ranks)))
        if mode == "table_wise" and ranks:
            ranks = ranks[:1]
        return self._choice(
            load,
            constraint,
            mode,
            ranks=ranks,
            num_slices=None if mode == "table_wise" else constraint.num_slices,
            why="as its constraint says",
        )

    def _choice(
        self,
        load: TableLoad,
        constraint: Constraint,
        mode: Mode,
        *,
        ranks: tuple[int, ...] | None = None,
        num_slices: int | None = None,
        exchange: Exchange | None = None,
        why: str = "",
    ) -> Choice:
        placement = place(
            load.table,
            mode,
            num_ranks=self._num_ranks,
            ranks=ranks,
            num_slices=num_slices,
            exchange=exchange or (constraint.exchange if mode != "data_parallel" else None),
        )
        placement = on_device(placement, load, constraint, batch_size=self._model.workload.batch_size)
        choices = [
            self._priced(load, replace(placement, wire=wire), constraint, why)
            for wire in self._wires(placement, constraint)
        ]
        return min(choices, key=lambda choice: choice.rank_seconds)

    def _wires(self, placement: Placement, constraint: Constraint) -> list[WireDtypes | None]:
        """Returns in what the rows of a table may travel, first what the workload says of all; None is just that."""
        workload = self._model.workload
        decided = decided_wire(placement, constraint, WireDtypes(workload.forward_wire, workload.backward_wire))
        if placement.mode == "data_parallel" or self._num_ranks == 1 or workload.auto_wire == "float32":
            return [decided]
        plain = decided or WireDtypes(workload.forward_wire, workload.backward_wire)
        forward = [plain.forward, *([] if constraint.wire_forward else [workload.auto_wire])]
        backward = [plain.backward, *([] if constraint.wire_backward else [workload.auto_wire])]
        found = [WireDtypes(*dtypes) for dtypes in product(forward, backward)]
        return [decided, *(wire for wire in found if wire != plain)]

    def _priced(self, load: TableLoad, placement: Placement, constraint: Constraint, why: str) -> Choice:
        model = self._model
        work = [model.shard_work(load, placement, shard) for shard in placement.shards]
        asker = model.asker_work(load, placement)
        return Choice(
            placement,
            allowed=constraint.ranks,
            why=why,
            part_seconds=np.array(
                [[model.local_seconds(part) for part in work], [model.exchange_seconds(part) for part in work]]
            ),
            part_bytes=np.array([model.memory_bytes(part) for part in work]),
            asker_seconds=model.local_seconds(asker),
            asker_bytes=model.memory_bytes(asker),
            num_ranks=self._num_ranks,
        )


_FREE = Constraint()
