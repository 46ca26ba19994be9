"""What users decide themselves: per table by name or pattern, or for all tables by thresholds of their size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, get_args

import yaml

from rankhouse.training.errors import PlanError
from rankhouse.training.exchange.wire_format import WireDtype, WireDtypes
from rankhouse.training.plan import MODES, Device, Exchange, Mode, Placement
from rankhouse.training.planner.workload import TableLoad, check_dtype
from rankhouse.training.tables.row_dtypes import ROW_DTYPES, RowDtype


@dataclass(frozen=True)
class Constraint:
    """What a table's placement must be; None leaves it to the planner.

    Attributes:
        mode: How it is cut.
        ranks: Who may hold it.
        num_slices: Into how many parts it is cut, by columns or by rows.
        exchange: How lookups travel: "pooled" or "rows".
        device: "device" or "host": where its weights and slots lie.
        cache_rows: How many rows of a table on the host are cached on the device.
        host_folder: The folder in whose mapped files a table on the host lies; None: in memory.
        wire_forward: What its rows travel in, where they do.
        wire_backward: What their gradients travel in.
        dtype: What its rows are held in.
    """

    mode: Mode | None = None
    ranks: tuple[int, ...] | None = None
    num_slices: int | None = None
    exchange: Exchange | None = None
    device: Device | None = None
    cache_rows: int | None = None
    host_folder: str | None = None
    wire_forward: WireDtype | None = None
    wire_backward: WireDtype | None = None
    dtype: RowDtype | None = None

    @property
    def decided_mode(self) -> Mode | None:
        """The mode, also where only the number of slices says it."""
        return self.mode or ("column_wise" if (self.num_slices or 1) > 1 else None)

    @property
    def may_be_everywhere(self) -> bool:
        """Whether every rank may have a copy."""
        return self.ranks is None and self.exchange != "rows" and self.device != "host" and self.num_slices is None

    def check(self, where: str, num_ranks: int) -> None:
        """Raises PlanError where a value is impossible or contradicts another."""
        if self.mode is not None and self.mode not in MODES:
            raise PlanError(f"{where} has mode = {self.mode!r}; expected one of {', '.join(MODES)}")
        if self.exchange is not None and self.exchange not in get_args(Exchange):
            raise PlanError(f"{where} has exchange = {self.exchange!r}; expected {' or '.join(get_args(Exchange))}")
        if self.device is not None and self.device not in get_args(Device):
            raise PlanError(f"{where} has device = {self.device!r}; expected 'device' or 'host'")
        if self.cache_rows is not None and (self.device != "host" or self.cache_rows < 1):
            raise PlanError(f"{where} has cache_rows = {self.cache_rows}; expected at least 1, and device = 'host'")
        if self.host_folder is not None and self.device != "host":
            raise PlanError(f"{where} has a host_folder, {self.host_folder}; expected device = 'host' with it")
        if self.dtype is not None and self.dtype not in ROW_DTYPES:
            raise PlanError(f"{where} has dtype = {self.dtype!r}; expected one of {', '.join(ROW_DTYPES)}")
        for name in ("wire_forward", "wire_backward"):
            if getattr(self, name) is not None:
                check_dtype(where, name, getattr(self, name))
        for rank in self.ranks or ():
            if not 0 <= rank < num_ranks:
                raise PlanError(f"{where} names rank {rank}; expected one of the {num_ranks} ranks")
        if self.ranks is not None and (not self.ranks or len(set(self.ranks)) < len(self.ranks)):
            raise PlanError(f"{where} has ranks = {self.ranks}; expected at least one, each once")
        if self.num_slices is not None and self.num_slices < 1:
            raise PlanError(f"{where} has num_slices = {self.num_slices}; expected at least 1")
        if self.mode == "data_parallel" and (self.ranks is not None or self.num_slices is not None):
            raise PlanError(f"{where} is data_parallel, which is whole on all ranks; leave out ranks and num_slices")
        travels = self.wire_forward is not None or self.wire_backward is not None
        if self.mode == "data_parallel" and (travels or not self.may_be_everywhere):
            raise PlanError(
                f"{where} is data_parallel, so none of its rows travel or lie on the host; leave out exchange, device "
                "and wires, or take another mode"
            )
        if self.mode == "row_wise" and self.exchange == "pooled":
            raise PlanError(f"{where} is row_wise, where unique ids travel; expected exchange = 'rows', or none")
        if self.mode == "table_wise" and (self.num_slices or 1) > 1:
            raise PlanError(f"{where} is table_wise in {self.num_slices} slices; expected column_wise or row_wise")


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of distributed-embeddings, in elements (rows times width); None leaves a choice to the planner.

    Attributes:
        data_parallel: Tables of at most so many are on every rank.
        row_slice: Tables of at least so many are cut by rows.
        column_slice: Others are cut by columns, into the fewest slices of a power of two that have at most so many.
    """

    data_parallel: int | None = None
    row_slice: int | None = None
    column_slice: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value < 0:
                raise PlanError(f"the threshold {field.name} is {value}; expected at least 0")


def read_constraints(
    constraints: Mapping[str, Constraint | Mapping[str, Any]], tables: Sequence[str], *, num_ranks: int
) -> dict[str, Constraint]:
    """Returns the constraint of each table that has one.

    Args:
        constraints: By a table's name, or by a pattern with `*` and `?`. A name goes before patterns, and the first
            pattern that fits before later ones.
        tables: The tables there are.
        num_ranks: How many ranks there are.

    Raises:
        PlanError: A name or pattern fits no table, a key is unknown, or a value is impossible.
    """
    read = {name: _constraint(name, value, num_ranks) for name, value in constraints.items()}
    for name in read:
        if not any(fnmatchcase(table, name) for table in tables):
            near = get_close_matches(name, tables, n=1, cutoff=0)
            raise PlanError(f"the constraint on {name!r} fits no table; did you mean {near[0]!r}?")
    return _by_table(read, tables)


def row_dtypes(constraints: Mapping[str, Constraint], tables: Sequence[str]) -> dict[str, RowDtype]:
    """Returns what rows are held in, of each table whose constraint says it; the arguments: `read_constraints`."""
    found = _by_table(constraints, tables)
    return {table: constraint.dtype for table, constraint in found.items() if constraint.dtype is not None}


def load_constraints(path: Path) -> dict[str, Any]:
    """Reads constraints from YAML: a mapping of names or patterns to the fields of `Constraint`.

    Raises:
        PlanError: The file is missing or is no such mapping.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise PlanError(f"cannot read constraints from {path}: {exc}") from exc
    if not isinstance(document, dict) or not all(isinstance(value, dict) for value in document.values()):
        raise PlanError(f"{path} has no constraints; expected lines such as `table_0: {{mode: row_wise}}`")
    return {str(name): value for name, value in document.items()}


def _by_table(constraints: Mapping[str, Constraint], tables: Sequence[str]) -> dict[str, Constraint]:
    found = {}
    for table in tables:
        patterns = (name for name in constraints if fnmatchcase(table, name))
        pattern = table if table in constraints else next(patterns, None)
        if pattern is not None:
            found[table] = constraints[pattern]
    return found


def _constraint(name: str, value: Constraint | Mapping[str, Any], num_ranks: int) -> Constraint:
    where = f"the constraint on {name!r}"
    if not isinstance(value, Constraint):
        known = [field.name for field in fields(Constraint)]
        for key in value:
            if key not in known:
                raise PlanError(
                    f"{where} has the unknown key {key!r}; did you mean "
                    f"{get_close_matches(key, known, n=1, cutoff=0)[0]!r}?"
                )
        ranks = value.get("ranks")
        value = Constraint(**{**value, "ranks": None if ranks is None else tuple(ranks)})
    value.check(where, num_ranks)
    return value


def on_device(placement: Placement, load: TableLoad, constraint: Constraint, *, batch_size: int) -> Placement:
    """Returns a placement with the device, and the rows that are cached, that a constraint says.

    Where it does not say how many, a fifth of the table is cached, at least four times as many rows as a step has ids
    (a list has several in a sample), and at most all.
    """
    if constraint.device != "host":
        return placement
    table = load.table
    wanted = max(table.num_rows // 5, math.ceil(4 * batch_size * table.lookups_per_sample), 1)
    cache_rows = min(constraint.cache_rows or wanted, table.num_rows)
    return replace(placement, device="host", cache_rows=cache_rows, host_folder=constraint.host_folder)


def decided_wire(placement: Placement, constraint: Constraint, common: WireDtypes) -> WireDtypes | None:
    """Returns in what the rows of a table travel by its constraint; None where they travel as those of all do."""
    wire = WireDtypes(constraint.wire_forward or common.forward, constraint.wire_backward or common.backward)
    return None if placement.mode == "data_parallel" or wire == common else wire
