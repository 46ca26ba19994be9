"""Who holds which embedding table: a pure function of the tables and the number of ranks.

A table is data-parallel (every rank holds a copy, and the copies' gradients are summed), table-wise (one rank holds it,
and the others send it their ids and get rows back), or cut by columns or by rows over several ranks. Planning knows
neither Horovod nor TensorFlow.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from rankhouse.training.errors import PlanError
from rankhouse.training.exchange.wire_format import WIRE_DTYPES, WireDtypes
from rankhouse.training.tables.row_dtypes import ROW_DTYPES, RowDtype, number_bytes

Mode = Literal["data_parallel", "table_wise", "column_wise", "row_wise"]
Exchange = Literal["pooled", "rows"]
Device = Literal["device", "host"]

MODES: tuple[Mode, ...] = get_args(Mode)

# Summing a data-parallel table moves every row there and back once per step, whatever the batch; exchanging moves a row
# there and a gradient back for every sample. The two break even where a table has as many rows as a rank has samples in
# a step, and that is some thousands.
DATA_PARALLEL_THRESHOLD_ROWS = 2048


@dataclass(frozen=True)
class TableSpec:
    """An embedding table, as the planner sees it.

    Attributes:
        name: Unique name.
        num_rows: Rows, at least 1.
        dim: Width of a row, at least 1.
        lookups_per_sample: How many ids a sample looks up in it, over all features that share it.
        dtype: What its rows are held in; what the optimizer keeps beside them is float32.
    """

    name: str
    num_rows: int
    dim: int
    lookups_per_sample: float = 1.0
    dtype: RowDtype = "float32"

    def __post_init__(self) -> None:
        for field in ("num_rows", "dim"):
            if getattr(self, field) < 1:
                raise PlanError(f"table {self.name!r} has {field} = {getattr(self, field)}; expected at least 1")
        if not (math.isfinite(self.lookups_per_sample) and self.lookups_per_sample >= 0):
            raise PlanError(
                f"table {self.name!r} has lookups_per_sample = {self.lookups_per_sample}; "
                "expected a finite number, at least 0"
            )
        if self.dtype not in ROW_DTYPES:
            raise PlanError(
                f"table {self.name!r} has rows of dtype {self.dtype!r}; expected one of {', '.join(ROW_DTYPES)}"
            )

    @property
    def number_bytes(self) -> int:
        """Bytes of a number of a row."""
        return number_bytes(self.dtype)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights; with float32 Adagrad's accumulator takes as much again."""
        return self.number_bytes * self.num_rows * self.dim


@dataclass(frozen=True)
class ShardSpec:
    """A rectangle of one table on one rank: rows [row_start, row_stop) and columns [column_start, column_stop)."""

    rank: int
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int

    @property
    def num_rows(self) -> int:
        """How many rows it has; 0 where a table has fewer rows than it has ranks."""
        return self.row_stop - self.row_start

    @property
    def dim(self) -> int:
        """How many columns it has."""
        return self.column_stop - self.column_start

    @property
    def num_elements(self) -> int:
        """How many numbers it has."""
        return self.num_rows * self.dim


@dataclass(frozen=True)
class Placement:
    """Where one table lies; `place` makes even ones.

    Attributes:
        table: The table's name.
        mode: "data_parallel": the whole table once for every rank. "table_wise": whole, on one rank. "column_wise":
            slices of columns, several of which may lie on one rank. "row_wise": ranges of rows, at most one for each
            rank; a range may be empty.
        shards: The table's rectangles, in rising order.
        exchange: How lookups travel: "pooled": ids go to the owner, which pools them; "rows": unique ids go to the
            owners, rows come back and are pooled where they were asked for. Row-wise tables always exchange rows,
            table-wise and column-wise ones either; data-parallel ones say "pooled".
        reason: Why, as a sentence.
        device: "device": weights and slots lie where lookups are computed. "host": they lie in the host's memory, and
            rows that are in use are cached on the device; not of data-parallel tables.
        cache_rows: Of a table on the host, how many of its rows each rank that holds some of it caches, at most all; a
            step may not look up more different rows of a part than that. None of other tables.
        host_folder: Of a table on the host, the folder on the machine of each rank that holds some of it, in whose
            mapped files it lies; None: it lies in memory.
        wire: What rows and their gradients travel in; None is what the layer or the recipe says for all tables.
            Data-parallel tables, of which no row travels, have None.
    """

    table: str
    mode: Mode
    shards: tuple[ShardSpec, ...]
    exchange: Exchange = "pooled"
    reason: str = ""
    device: Device = "device"
    cache_rows: int | None = None
    host_folder: str | None = None
    wire: WireDtypes | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that hold some of it, in rising order, each once."""
        return tuple(sorted({shard.rank for shard in self.shards if shard.num_rows}))

    @property
    def held_by(self) -> str:
        """Who holds it, in words: "every rank", "rank 1", "ranks 0, 2 by rows"."""
        if self.mode == "data_parallel":
            return "every rank"
        cut = {"row_wise": " by rows", "column_wise": " by columns"}.get(self.mode, "")
        host = f", on the host with {self.cache_rows:,} rows cached" if self.device == "host" else ""
        return f"rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}{cut}{host}"


@dataclass(frozen=True)
class Plan:
    """Where every table lies.

    Attributes:
        tables: The tables, in the caller's order.
        placements: One for each table, in the same order.
        num_ranks: Number of ranks.
    """

    tables: tuple[TableSpec, ...]
    placements: tuple[Placement, ...]
    num_ranks: int

    def placement(self, table: str) -> Placement:
        """Returns where a table lies."""
        for placement in self.placements:
            if placement.table == table:
                return placement
        raise PlanError(f"the plan has no table {table!r}; it has {', '.join(spec.name for spec in self.tables)}")

    @property
    def wires(self) -> dict[str, WireDtypes]:
        """In what the rows of tables travel, by name, of those where the plan says so."""
        return {item.table: item.wire for item in self.placements if item.wire is not None}

    @property
    def dtypes(self) -> dict[str, RowDtype]:
        """In what the rows of tables are held, by name."""
        return {table.name: table.dtype for table in self.tables}

    @property
    def narrow_copies(self) -> tuple[str, ...]:
        """The tables of 16 bits of which each of several ranks has a copy."""
        pairs = zip(self.tables, self.placements, strict=True)
        everywhere = [table for table, placement in pairs if placement.mode == "data_parallel" and self.num_ranks > 1]
        return tuple(table.name for table in everywhere if table.dtype != "float32")

    @property
    def cut_by_columns(self) -> tuple[str, ...]:
        """The tables whose rows are cut."""
        return tuple(item.table for item in self.placements if len({shard.column_start for shard in item.shards}) > 1)

    def shards_of(self, rank: int) -> list[tuple[str, ShardSpec]]:
        """Returns what a rank holds, in the order of the tables: (table, rectangle), without empty rectangles."""
        return [
            (placement.table, shard)
            for placement in self.placements
            for shard in placement.shards
            if shard.rank == rank and shard.num_rows
        ]

    def shard_bytes_of(self, rank: int) -> list[tuple[str, int]]:
        """Returns the bytes of the weights of what a rank holds, in the order of `shards_of`: (table, bytes)."""
        dtypes = self.dtypes
        return [(name, number_bytes(dtypes[name]) * shard.num_elements) for name, shard in self.shards_of(rank)]

    def bytes_of(self, rank: int) -> int:
        """Returns the bytes of the weights that a rank holds."""
        return sum(num_bytes for _, num_bytes in self.shard_bytes_of(rank))

    def explain(self) -> str:
        """Returns the plan as text: bytes for each rank, and where each table lies and why."""
        lines = [f"{len(self.tables)} tables on {self.num_ranks} rank{'s' if self.num_ranks > 1 else ''}"]
        for rank in range(self.num_ranks):
            lines.append(self.explain_rank(rank))
        lines += [f"{placement.table}: {placement.reason}" for placement in self.placements]
        return "\n".join(lines)

    def explain_rank(self, rank: int) -> str:
        """Returns as a line what a rank holds."""
        own = [
            _named(self.placement(table), shard)
            for table, shard in self.shards_of(rank)
            if self.placement(table).mode != "data_parallel"
        ]
        held = ", ".join(own) if own else "no table of its own"
        return f"rank {rank}: {self.bytes_of(rank) / 2**20:,.2f} MiB of weights; owns {held}"

    def document(self) -> dict[str, Any]:
        """Returns the plan as plain data, for reports and checkpoints."""
        return asdict(self)

    @classmethod
    def read(cls, path: Path) -> "Plan":
        """Reads the document in a file, as `rankhouse plan --output` and every run write it.

        Raises:
            PlanError: It cannot be read, or is no plan.
        """
        try:
            return cls.from_document(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as exc:
            raise PlanError(
                f"cannot read a plan from {path} ({exc}); write one by `rankhouse plan DATASET --output {path}`, "
                "or let parallel.plan=auto make one"
            ) from exc
        except PlanError as exc:
            raise PlanError(f"{path}: {exc}") from exc

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Plan":
        """Reads what `document` returned, also that of releases whose tables lay whole on one rank or on all.

        Raises:
            PlanError: It is no plan, or one of shards that do not make up the tables.
        """
        try:
            tables = tuple(TableSpec(**table) for table in document["tables"])
            num_ranks = document["num_ranks"]
            placed = zip(tables, document["placements"], strict=True)
            placements = tuple(_placement_of(item, table, num_ranks) for table, item in placed)
        except (KeyError, TypeError, ValueError) as exc:
            raise PlanError(f"this document is no plan: {exc!r}; expected what Plan.document() returned") from exc
        plan = cls(tables, placements, num_ranks)
        check_plan(plan)
        return plan


def place(
    table: TableSpec,
    mode: Mode,
    *,
    num_ranks: int,
    ranks: Sequence[int] | None = None,
    num_slices: int | None = None,
    exchange: Exchange | None = None,
    reason: str = "",
) -> Placement:
    """Places one table in even parts, the first ones larger by one row or column where it does not divide.

    Args:
        table: The table.
        mode: How.
        num_ranks: How many ranks train.
        ranks: Who gets the parts, in turn; by default all ranks, or rank 0 for a table that lies on one.
        num_slices: How many parts: of columns, by default one for each of `ranks` and at most one for each column; of
            rows, one for each of `ranks`.
        exchange: How lookups travel; by default "rows" for a row-wise table, else "pooled".
        reason: Why, as a sentence.

    Raises:
        PlanError: The mode cannot place this table on these ranks in so many slices.
    """
    whole = (table.num_rows, table.dim)
    if mode not in MODES:
        raise PlanError(f"table {table.name!r} has the mode {mode!r}; expected one of {', '.join(MODES)}")
    if ranks is None:
        ranks = [0] if mode == "table_wise" else range(num_ranks)
    if num_slices is None:
        num_slices = min(len(ranks), table.dim) if mode == "column_wise" else len(ranks)
    if mode == "row_wise":
        spans = [(start, stop, 0, table.dim) for start, stop in _even_cuts(table.num_rows, num_slices)]
    elif mode == "column_wise":
        spans = [(0, table.num_rows, start, stop) for start, stop in _even_cuts(table.dim, num_slices)]
    else:
        spans = [(0, whole[0], 0, whole[1])] * num_slices
    if not ranks or not spans:
        raise PlanError(f"table {table.name!r} has no rank or no slice to lie in; expected at least one")
    shards = tuple(ShardSpec(ranks[number % len(ranks)], *span) for number, span in enumerate(spans))
    exchange = exchange or ("rows" if mode == "row_wise" else "pooled")
    placement = Placement(table.name, mode, shards, exchange, reason)
    _check_placement(placement, table, num_ranks)
    return placement


def check_plan(plan: Plan) -> None:
    """Raises PlanError, naming the table, where shards overlap, leave a gap, or name a rank that is not there."""
    tables, placed = [spec.name for spec in plan.tables], [item.table for item in plan.placements]
    if tables != placed:
        raise PlanError(f"the plan has the tables {tables}, but places {placed}; expected one placement for each")
    for table, placement in zip(plan.tables, plan.placements, strict=True):
        _check_placement(placement, table, plan.num_ranks)


def make_plan(
    tables: Sequence[TableSpec],
    *,
    num_ranks: int,
    data_parallel_threshold_rows: int = DATA_PARALLEL_THRESHOLD_ROWS,
) -> Plan:
    """Places every table: small ones on all ranks, each other one whole on the least loaded rank, largest first.

    A rank's load is its share of all table-wise bytes plus its share of all table-wise traffic (ids times width), so
    memory and time balance together. Greedy by falling size is within 4/3 of the best (Graham 1969) for one of them.
    The same input gives the same plan.

    Args:
        tables: The tables, with unique names.
        num_ranks: How many ranks train.
        data_parallel_threshold_rows: Tables with fewer rows are data-parallel; 0 makes every table table-wise.

    Raises:
        PlanError: No tables, two of one name, or a number of ranks below 1 or a threshold below 0.
    """
    _check(tables, num_ranks, data_parallel_threshold_rows)
    small = {table.name for table in tables if table.num_rows < data_parallel_threshold_rows}
    large = sorted((table for table in tables if table.name not in small), key=lambda t: (-t.weight_bytes, t.name))
    owners = _balance(large, num_ranks)
    placements = []
    for table in tables:
        if table.name in small:
            reason = f"on every rank: {table.num_rows:,} rows are fewer than {data_parallel_threshold_rows:,}"
            placements.append(place(table, "data_parallel", num_ranks=num_ranks, reason=reason))
        else:
            owner = owners[table.name]
            reason = f"on rank {owner}: {table.weight_bytes / 2**20:,.2f} MiB, to the least loaded rank, largest first"
            placements.append(place(table, "table_wise", num_ranks=num_ranks, ranks=[owner], reason=reason))
    return Plan(tuple(tables), tuple(placements), num_ranks)


def _check(tables: Sequence[TableSpec], num_ranks: int, threshold: int) -> None:
    if not tables:
        raise PlanError("there are no embedding tables to place; expected at least one categorical feature")
    if num_ranks < 1:
        raise PlanError(f"cannot place tables on {num_ranks} ranks; expected at least 1")
    if threshold < 0:
        raise PlanError(f"data_parallel_threshold_rows is {threshold}; expected 0 or more")
    for table in tables:
        if not isinstance(table, TableSpec):
            raise PlanError(f"a plan is made of TableSpecs; got {table!r} (EmbeddingSpec.table_spec() returns one)")
    names = [table.name for table in tables]
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"{names.count(name)} tables are named {name!r}; give each table its own name")


def _balance(large: Sequence[TableSpec], num_ranks: int) -> dict[str, int]:
    total_bytes = sum(table.weight_bytes for table in large) or 1
    total_traffic = sum(table.lookups_per_sample * table.dim for table in large) or 1.0
    load = [0.0] * num_ranks
    owners = {}
    for table in large:
        owner = min(range(num_ranks), key=lambda rank: (load[rank], rank))
        load[owner] += table.weight_bytes / total_bytes + table.lookups_per_sample * table.dim / total_traffic
        owners[table.name] = owner
    return owners


def _even_cuts(length: int, num_parts: int) -> list[tuple[int, int]]:
    """Cuts [0, length) into parts whose lengths differ by one at most."""
    whole, more = divmod(length, max(num_parts, 1))
    cuts = [part * whole + min(part, more) for part in range(num_parts + 1)]
    return list(pairwise(cuts))


def _named(placement: Placement, shard: ShardSpec) -> str:
    if placement.mode == "row_wise":
        return f"{placement.table}[{shard.row_start}:{shard.row_stop}]"
    if placement.mode == "column_wise":
        return f"{placement.table}[:, {shard.column_start}:{shard.column_stop}]"
    return placement.table


def _placement_of(item: Mapping[str, Any], table: TableSpec, num_ranks: int) -> Placement:
    if "shards" in item:
        shards = tuple(ShardSpec(**shard) for shard in item["shards"])
        wire = WireDtypes(**item["wire"]) if item.get("wire") is not None else None
        return Placement(**{**item, "shards": shards, "wire": wire})
    ranks = None if item["mode"] == "data_parallel" else [item["rank"]]
    placed = place(table, item["mode"], num_ranks=num_ranks, ranks=ranks, reason=item["reason"])
    return replace(placed, table=item["table"])


def _check_placement(placement: Placement, table: TableSpec, num_ranks: int) -> None:
    where = f"table {table.name!r} ({placement.mode})"
    for shard in placement.shards:
        if not 0 <= shard.rank < num_ranks:
            raise PlanError(f"{where} has a shard on rank {shard.rank}; expected one of the {num_ranks} ranks")
    ranks = [shard.rank for shard in placement.shards]
    if placement.mode == "data_parallel" and sorted(ranks) != list(range(num_ranks)):
        raise PlanError(f"{where} lies on the ranks {ranks}; expected once on each of the {num_ranks} ranks")
    if placement.mode == "table_wise" and len(ranks) != 1:
        raise PlanError(f"{where} lies on the ranks {ranks}; expected one rank")
    if placement.mode == "row_wise" and len(set(ranks)) != len(ranks):
        raise PlanError(f"{where} has two ranges of rows on one of the ranks {ranks}; expected at most one on each")
    expected = {"row_wise": ("rows",), "data_parallel": ("pooled",)}.get(placement.mode, ("pooled", "rows"))
    if placement.exchange not in expected:
        raise PlanError(f"{where} exchanges {placement.exchange!r}; expected {' or '.join(expected)}")
    _check_device_and_wire(placement, where)
    rows = [(shard.row_start, shard.row_stop) for shard in placement.shards]
    columns = [(shard.column_start, shard.column_stop) for shard in placement.shards]
    _check_spans(f"{where} by rows", rows, table.num_rows, cut=placement.mode == "row_wise")
    _check_spans(f"{where} by columns", columns, table.dim, cut=placement.mode == "column_wise")
    if any(stop == start for start, stop in columns):
        raise PlanError(f"{where} has a slice without a column; make at most {table.dim} slices")


def _check_device_and_wire(placement: Placement, where: str) -> None:
    everywhere = placement.mode == "data_parallel"
    if placement.device not in get_args(Device):
        raise PlanError(f"{where} has device = {placement.device!r}; expected 'device' or 'host'")
    if placement.device == "host":
        if everywhere:
            raise PlanError(f"{where} has device = 'host', but every rank computes with its own copy; cut it otherwise")
        if type(placement.cache_rows) is not int or placement.cache_rows < 1:
            raise PlanError(
                f"{where} lies on the host with cache_rows = {placement.cache_rows!r}; expected at least 1, and as "
                "many as a step looks up different rows of it"
            )
    elif placement.cache_rows is not None:
        raise PlanError(
            f"{where} has cache_rows = {placement.cache_rows!r}; only tables with device = 'host' have a cache"
        )
    if placement.host_folder is not None and placement.device != "host":
        raise PlanError(
            f"{where} has a host_folder, but does not lie on the host; leave it out, or say device = 'host'"
        )
    if placement.wire is not None:
        if everywhere:
            raise PlanError(f"{where} has a wire format, but none of its rows travel; leave it out")
        for dtype in (placement.wire.forward, placement.wire.backward):
            if dtype not in WIRE_DTYPES:
                raise PlanError(f"{where} travels as {dtype!r}; expected one of {', '.join(WIRE_DTYPES)}")


def _check_spans(where: str, spans: Sequence[tuple[int, int]], length: int, *, cut: bool) -> None:
    """Checks that spans follow each other from 0 to `length`; or, where nothing is cut, that each is all of it."""
    if not cut:
        for span in spans:
            if span != (0, length):
                raise PlanError(f"{where} has the shard {span[0]}:{span[1]}; expected 0:{length}")
        return
    at = 0
    for start, stop in [*spans, (length, length)]:
        if start != at or stop < start:
            problem = "leaves a gap" if start > at else "has shards that overlap or do not rise"
            raise PlanError(f"{where} {problem} at {min(start, at)}:{max(start, at)}; shards must cover 0:{length}")
        at = stop
