"""The engine's figures as tables, and how they compare with the aims."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.support.embedding.cells import Cell
from benchmarks.support.sheet import Sheet

HOT, COLD, NEW = "hot", "cold", "new ids"


@dataclass(frozen=True)
class Place:
    """What a figure is of: a cell, in a state of the page cache or of the row cache."""

    cell: Cell
    state: str


@dataclass
class Timing:
    """What one candidate took for a request, seconds: medians of rounds, or single requests."""

    place: Place
    candidate: str
    seconds: list[float] = field(default_factory=list)

    @property
    def microseconds(self) -> float:
        """The median."""
        return median(self.seconds) * 1e6


@dataclass(frozen=True)
class Aim:
    """A peer takes at least so many times as long as we do, in cells of one state."""

    text: str
    ours: str
    peer: str
    ratio: float
    state: str = HOT
    distribution: str = ""


LIMIT = 1 / 1.3
REDIS_TIER = "Rankhouse Redis tier, cache of"
AIMS = (
    Aim("within 1.3x of the C loop, both through C, pinned", "Rankhouse pin", "C loop", LIMIT),
    Aim("within 1.3x of the C loop, both through C, over the same map", "Rankhouse map", "C loop, mapped", LIMIT),
    Aim("the same after 8 deltas, pinned", "Rankhouse pin, 8 deltas", "C loop", LIMIT),
    Aim("50x RocksDB, both through Python", "Rankhouse map, Python", "RocksDB, Python", 50),
    Aim("50x LMDB, both through Python", "Rankhouse map, Python", "LMDB, Python", 50),
    Aim("5x RocksDB, both through C", "Rankhouse map", "RocksDB, C", 5),
    Aim("5x LMDB, both through C", "Rankhouse map", "LMDB, C", 5),
    *(
        Aim(
            f"5x MGET with a host cache of {share}, Zipf", f"{REDIS_TIER} {share}", "Redis MGET, Python", 5, NEW, "zipf"
        )
        for share in ("10%", "50%")
    ),
)
CELL_COLUMNS = ("rows", "dim", "candidates", "keys", "ids")


def sheets(timings: Sequence[Timing], ours: dict[str, str]) -> list[Sheet]:
    """Returns a sheet for each state and shape of tables; `ours`: whose time is 1, by state."""
    found = []
    for state, tables in dict.fromkeys((timing.place.state, timing.place.cell.tables) for timing in timings):
        chosen = [each for each in timings if (each.place.state, each.place.cell.tables) == (state, tables)]
        places = list(dict.fromkeys(each.place for each in chosen))
        by = {(each.place, each.candidate): each for each in chosen}
        lines = [
            [name, *(_entry(by.get((place, name)), by.get((place, ours[state]))) for place in places)]
            for name in dict.fromkeys(each.candidate for each in chosen)
        ]
        rows, dim, *_ = cell_columns(places[0].cell)
        title = f"{state}, {rows} rows of dim {dim}: us for a request (times {ours[state]}'s; million keys/s)"
        heads = (f"{place.cell.batch_size} {place.cell.distribution}" for place in places)
        found.append(Sheet(title, ["candidates in a request, ids", *heads], lines))
    return found


def aims_sheet(timings: Iterable[Timing]) -> Sheet:
    """Returns how many cells meet each aim."""
    by = {(timing.place, timing.candidate): timing for timing in timings}
    lines = []
    for aim in AIMS:
        ratios = {
            place: by[place, aim.peer].microseconds / by[place, aim.ours].microseconds
            for place, candidate in by
            if candidate == aim.ours and (place, aim.peer) in by and place.state == aim.state
            if aim.distribution in place.cell.distribution
        }
        if ratios:
            worst = min(ratios, key=lambda place: ratios[place])
            met = sum(ratio >= aim.ratio for ratio in ratios.values())
            lines.append(
                [
                    *(aim.text, f"{aim.ratio:.2f}", f"{met} of {len(ratios)}", f"{median(ratios.values()):.2f}"),
                    *(f"{ratios[worst]:.2f}", ", ".join(cell_columns(worst.cell))),
                ]
            )
    columns = ["aim", "at least", "cells that meet it", "median", "worst", f"where ({', '.join(CELL_COLUMNS)})"]
    return Sheet("Aims: the peer's time divided by ours", columns, lines)


def cell_columns(cell: Cell) -> list[str]:
    """Returns what says which cell a line is of."""
    tables = cell.tables
    rows = tables.num_tables * tables.rows
    text = f"{round(rows / 1e6)}M" if rows > 1_000_000 else f"{round(rows / 1e3)}k"
    keys = tables.num_tables * cell.batch_size
    return [text, str(tables.dim), str(cell.batch_size), f"{keys:,}", cell.distribution]


def _entry(timing: Timing | None, reference: Timing | None) -> str:
    if timing is None:
        return "-"
    cell, taken = timing.place.cell, timing.microseconds
    rate = f"{cell.tables.num_tables * cell.batch_size / taken:.3g}"
    ratio = "" if reference is None else f"{taken / reference.microseconds:.2f}x; "
    return f"{taken:,.0f} ({ratio}{rate})" if taken >= 100 else f"{taken:.3g} ({ratio}{rate})"
