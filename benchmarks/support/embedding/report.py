"""The figures as tables, for the terminal and as markdown, and how they compare with the aims."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from statistics import median

from benchmarks.support.embedding.cells import Cell
from benchmarks.support.process import Figure
from benchmarks.support.sheet import Sheet

ADAGRAD, ROW_WISE = "Rankhouse Adagrad", "Rankhouse row-wise"
# What a candidate's ratio is to.
OURS = {
    False: ("Rankhouse", {}),
    True: (ADAGRAD, {"FBGEMM row-wise": ROW_WISE}),
}
CELL_COLUMNS = ("tables", "rows", "dim", "batch", "hotness", "ids", "threads")


@dataclass(frozen=True)
class Aim:
    """The fastest of some peers takes at least so many times as long as we do."""

    text: str
    ours: str
    peers: tuple[str, ...]
    ratio: float


KERAS = ("Keras legacy Adagrad", "Keras Adagrad")
AIMS = (
    Aim("forward: within 15 % of the C loop", "Rankhouse", ("C loop",), 1 / 1.15),
    Aim("forward: 4x embedding_lookup_sparse", "Rankhouse", ("lookup_sparse",), 4),
    Aim("forward: never slower than EmbeddingBag", "Rankhouse", ("EmbeddingBag",), 1),
    Aim("forward: 2x FBGEMM", "Rankhouse", ("FBGEMM",), 2),
    Aim("Adagrad: 5x the faster of Keras' two", ADAGRAD, KERAS, 5),
    Aim("Adagrad: 2x FBGEMM", ADAGRAD, ("FBGEMM Adagrad",), 2),
    Aim("Adagrad: 8x torch", ADAGRAD, ("torch Adagrad",), 8),
    Aim("row-wise: 5x the faster of Keras' two", ROW_WISE, KERAS, 5),
    Aim("row-wise: 2x FBGEMM", ROW_WISE, ("FBGEMM row-wise",), 2),
    Aim("row-wise: 8x torch's Adagrad", ROW_WISE, ("torch Adagrad",), 8),
)


def sheets(figures: Sequence[Figure[Cell]], title: str) -> list[Sheet]:
    """Returns one sheet of milliseconds for the lookups and one for training."""
    found = []
    for training, what in ((False, "forward"), (True, "forward, backward and optimizer step")):
        chosen = [figure for figure in figures if figure.cell.tables.training == training]
        if chosen:
            found.append(_milliseconds(chosen, f"{title}: {what}, ms (times Rankhouse's)", *OURS[training]))
    return found


def _milliseconds(figures: Sequence[Figure[Cell]], title: str, ours: str, ours_of: dict[str, str]) -> Sheet:
    candidates = list(dict.fromkeys(figure.candidate for figure in figures))
    lines = []
    for (cell, threads), by_name in _by_cell(figures).items():
        line = _cell_columns(cell, threads)
        for name in candidates:
            reference = by_name.get(ours_of.get(name, ours))
            line.append(_entry(by_name.get(name), reference))
        lines.append(line)
    return Sheet(title, [*CELL_COLUMNS, *candidates], lines)


def _by_cell(figures: Sequence[Figure[Cell]]) -> dict[tuple[Cell, int], dict[str, Figure[Cell]]]:
    found: dict[tuple[Cell, int], dict[str, Figure[Cell]]] = {}
    for figure in figures:
        found.setdefault((figure.cell, figure.threads), {})[figure.candidate] = figure
    return found


def _cell_columns(cell: Cell, threads: int) -> list[str]:
    tables = cell.tables
    rows = f"{tables.rows // 1_000_000}M" if tables.rows % 1_000_000 == 0 else f"{tables.rows // 1000}k"
    numbers = (tables.num_tables, rows, tables.dim, cell.batch_size, cell.hotness, cell.distribution, threads)
    return [str(number) for number in numbers]


def _entry(figure: Figure[Cell] | None, ours: Figure[Cell] | None) -> str:
    if figure is None:
        return "-"
    known = ours is not None and ours is not figure and figure.calls and ours.calls
    return f"{figure.text} ({figure.milliseconds / ours.milliseconds:.2f})" if known else figure.text


def aims_sheet(figures: Sequence[Figure[Cell]]) -> Sheet:
    """Returns how many cells meet each aim, by threads."""
    lines = []
    by_cell = _by_cell(figures)
    for aim in AIMS:
        for threads in sorted({figure.threads for figure in figures}):
            ratios = {}
            for (cell, cell_threads), by_name in by_cell.items():
                peers = [by_name[name].milliseconds for name in aim.peers if name in by_name]
                if cell_threads == threads and aim.ours in by_name and peers:
                    ratio = min(peers) / by_name[aim.ours].milliseconds
                    if not isnan(ratio):
                        ratios[cell] = ratio
            if ratios:
                worst = min(ratios, key=lambda cell: ratios[cell])
                met = sum(ratio >= aim.ratio for ratio in ratios.values())
                lines.append(
                    [
                        *(aim.text, str(threads), f"{aim.ratio:.2f}", f"{met} of {len(ratios)}"),
                        *(f"{median(ratios.values()):.2f}", f"{ratios[worst]:.2f}", worst.label),
                    ]
                )
    columns = ["aim", "threads", "at least", "cells that meet it", "median", "worst", "where"]
    return Sheet("Aims: the peer's time divided by ours", columns, lines)


def notes(figures: Sequence[Figure[Cell]]) -> list[str]:
    """Returns what candidates say of themselves, once for each candidate and text."""
    found: dict[str, dict[str, None]] = {}
    for figure in figures:
        if figure.note:
            found.setdefault(figure.candidate, {})[figure.note] = None
    return [f"{candidate}: {', or '.join(texts)}" for candidate, texts in found.items()]
