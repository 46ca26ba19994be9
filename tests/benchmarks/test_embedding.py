"""The parts of the benchmark of embedding operations that a wrong figure could come from."""

from itertools import groupby

import numpy as np
import pytest

from benchmarks.support.embedding.cells import Cell, Pattern, TableShape, every_cell, make_ids, quick_cells
from benchmarks.support.embedding.report import aims_sheet, notes, sheets
from benchmarks.support.process import Figure

TABLES = TableShape(2, 1000, 16, training=False)


def cell(distribution: str) -> Cell:
    return Cell(TABLES, 64, 10, distribution)


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
def test_ids_are_rows_and_the_same_every_time(distribution: str) -> None:
    ids = make_ids(cell(distribution))
    assert ids.shape == (256, 2, 64, 10)
    assert ids.min() >= 0
    assert ids.max() < 1000
    np.testing.assert_array_equal(ids, make_ids(cell(distribution)))


def test_zipf_ids_are_skewed() -> None:
    shares = [np.bincount(make_ids(cell(name)).ravel()).max() / (256 * 2 * 640) for name in ("uniform", "zipf")]
    assert shares[0] < 0.002
    assert 0.1 < shares[1] < 0.2  # 1 / sum(k ** -1.05 for k up to 1000) = 0.15


def test_rows_of_a_pattern_are_those_of_a_filled_table() -> None:
    tables = TableShape(2, 100_000, 16, training=True)
    pattern, filled = Pattern(tables), np.empty(100_000 * 16, np.float32)
    pattern.fill(filled, 1)
    ids = np.array([0, 1, 62_500, 99_999])
    np.testing.assert_array_equal(pattern.rows(1, ids), filled.reshape(-1, 16)[ids])
    later = np.empty(16, np.float32)
    pattern.fill(later, 1, first_row=99_999)
    np.testing.assert_array_equal(later, filled[-16:])


def test_no_cell_comes_twice_and_tables_are_made_once() -> None:
    cells = list(every_cell())
    assert len({one.label for one in cells}) == len(cells)
    turns = [tables for tables, _ in groupby(cells, key=lambda one: one.tables)]
    assert len(set(turns)) == len(turns)


def test_quick_cells_have_every_kind_of_tables() -> None:
    tables = {(one.tables.training, one.tables.num_tables, one.tables.dim) for one in quick_cells()}
    assert tables == {(training, num, dim) for training in (False, True) for num, dim in ((1, 16), (1, 128), (26, 16))}


def test_the_report_counts_cells_that_meet_an_aim() -> None:
    figures = [
        Figure(cell(name), 2, candidate, calls=[[seconds] * 3])
        for name, loop, ours in (("uniform", 0.9, 1.0), ("zipf", 0.5, 1.0))
        for candidate, seconds in (("C loop", loop), ("Rankhouse", ours))
    ]
    figures.append(Figure(cell("zipf"), 2, "FBGEMM", note="fails: why"))
    (line,) = aims_sheet(figures).lines
    assert line[1:6] == ["2", "0.87", "1 of 2", "0.70", "0.50"]
    assert line[6] == cell("zipf").label
    (sheet,) = sheets(figures, "title")
    assert sheet.lines[1][-3:] == ["500 (0.50)", "1000", "see below"]
    assert notes(figures) == ["FBGEMM: fails: why"]
