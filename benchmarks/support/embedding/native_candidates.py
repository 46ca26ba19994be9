"""Our operations through the C interface, and the machine's limit, on the same tables in huge pages.

No OpenMP runtime but that of the limit is in this process, and that one's threads sleep before we are timed.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.support.embedding import gather_loop
from benchmarks.support.embedding.candidate import (
    EPSILON,
    FIRST_ACCUMULATOR,
    LEARNING_RATE,
    Candidate,
    compared_samples,
)
from benchmarks.support.embedding.cells import Cell, Pattern, TableShape
from benchmarks.support.embedding.native_memory import allocate
from rankhouse.kernels import library


class NativeCandidates:
    """Candidates in C, called by ctypes with everything preallocated: pool, scratch, outputs."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._library, self._loop = library.load(), gather_loop.load()
        pool, scratch = ctypes.c_void_p(), ctypes.c_void_p()
        library.check(self._library.rh_thread_pool_create(num_threads, ctypes.byref(pool)))
        library.check(self._library.rh_scratch_create(ctypes.byref(scratch)))
        parallel_for = ctypes.cast(self._library.rh_thread_pool_for, ctypes.c_void_p)
        self._executor = ctypes.byref(library.Executor(parallel_for, pool, num_threads, scratch))

    def set_tables(self, tables: TableShape) -> None:
        """Makes the tables as the library makes them, and what optimizers keep."""
        self._rows, self._slots, self._row_slots = [], [], []
        self._tables, self._pattern = tables, Pattern(tables)
        for table in range(tables.num_tables):
            rows = allocate(tables.rows, tables.dim)
            self._pattern.fill(rows.reshape(-1), table)
            self._rows.append(rows)
        if tables.training:
            self._slots = [_filled(tables.rows, tables.dim) for _ in self._rows]
            self._row_slots = [_filled(tables.rows) for _ in self._rows]

    def make(self, cell: Cell, ids: np.ndarray, gradient: np.ndarray) -> list[Candidate]:
        """Returns the candidates for a cell."""
        self._ids = allocate(*ids.shape, dtype=np.int64)
        self._ids[:] = ids
        # Where each batch begins: asking NumPy takes microseconds, and small batches do too.
        self._batches = [batch.ctypes.data for batch in self._ids]
        self._out = allocate(*gradient.shape)
        self._lookup = _lookup(cell, self._rows)
        self._lookup.ids = self._batches[0]
        if not cell.tables.training:
            return self._forward(cell)
        self._gradient = allocate(*gradient.shape)
        self._gradient[:] = gradient
        return self._training()

    # -- Lookup

    def _forward(self, cell: Cell) -> list[Candidate]:
        def result(_: Sequence[np.ndarray]) -> np.ndarray:
            return self._out[compared_samples(cell.batch_size)]

        def candidate(name: str, run: Callable[[int], None], note: str = "") -> Candidate:
            return Candidate(name, run, result, lambda _: self._out.fill(np.nan), note)

        loops = {
            name: gather_loop.GatherLoop(
                self._loop,
                [rows.ctypes.data for rows in self._rows],
                self._ids,
                self._out,
                num_threads=self._num_threads,
                streaming=streaming,
            )
            for name, streaming in (("C loop", False), ("C loop, streaming", True))
        }
        run = partial(self._look_up, self._lookup, self._feature_rows(self._out))
        return [
            *(candidate(name, loop.run, f"prefetches {loop.distance} ids ahead") for name, loop in loops.items()),
            candidate("Rankhouse", run),
            candidate("Rankhouse, offsets", self._with_offsets(cell)),
        ]

    def _with_offsets(self, cell: Cell) -> Callable[[int], None]:
        num_bags = cell.tables.num_tables * cell.batch_size
        self._offsets = np.arange(0, (num_bags + 1) * cell.hotness, cell.hotness, dtype=np.int64)
        lookup = _lookup(cell, self._rows)
        lookup.hotness, lookup.offsets = None, self._offsets.ctypes.data
        return partial(self._look_up, lookup, self._feature_rows(self._out))

    def _look_up(self, lookup: library.Lookup, out: ctypes.Array, batch: int) -> None:
        lookup.ids = self._batches[batch]
        library.check(self._library.rh_pooled_lookup(lookup, out, None, self._executor))

    def _feature_rows(self, matrix: np.ndarray) -> ctypes.Array:
        width, dim = matrix.shape[1], self._tables.dim
        features = range(self._tables.num_tables)
        return (library.FeatureRows * len(features))(*((matrix.ctypes.data + f * dim * 4, width) for f in features))

    # -- Lookup, backward and one step of the optimizer

    def _training(self) -> list[Candidate]:
        return [
            self._trained("Rankhouse Adagrad", "adagrad", self._slots, self._fused),
            self._trained("Rankhouse Adagrad, unfused", "adagrad", self._slots, self._unfused),
            self._trained("Rankhouse row-wise", "rowwise_adagrad", self._row_slots, self._fused),
        ]

    def _trained(
        self,
        name: str,
        rule: str,
        slots: list[np.ndarray],
        step: Callable[[ctypes.Array, ctypes.Array], Callable[[], None]],
    ) -> Candidate:
        num_tables = self._tables.num_tables
        optimizers = (library.Optimizer * num_tables)()
        tables = (library.TrainedTable * num_tables)()
        for optimizer, table, rows, slot in zip(optimizers, tables, self._rows, slots, strict=True):
            optimizer.rule, optimizer.step = library.RULES[rule], 1
            optimizer.learning_rate, optimizer.epsilon = LEARNING_RATE, EPSILON
            table.rows, table.slots[0] = rows.ctypes.data, slot.ctypes.data
            table.num_rows, table.dim = rows.shape
        out, backward = self._feature_rows(self._out), step(optimizers, tables)

        def run(batch: int) -> None:
            self._look_up(self._lookup, out, batch)
            backward()

        def reset(touched: Sequence[np.ndarray]) -> None:
            for table, ids in enumerate(touched):
                self._rows[table][ids] = self._pattern.rows(table, ids)
                slots[table][ids] = FIRST_ACCUMULATOR

        def result(compared: Sequence[np.ndarray]) -> np.ndarray:
            return np.concatenate([rows[ids] for rows, ids in zip(self._rows, compared, strict=True)])

        return Candidate(name, run, result, reset)

    def _fused(self, optimizers: ctypes.Array, tables: ctypes.Array) -> Callable[[], None]:
        gradient = self._feature_rows(self._gradient)

        def backward() -> None:
            library.check(
                self._library.rh_pooled_lookup_update(self._lookup, gradient, optimizers, tables, self._executor)
            )

        return backward

    def _unfused(self, optimizers: ctypes.Array, tables: ctypes.Array) -> Callable[[], None]:
        num_tables, dim = self._tables.num_tables, self._tables.dim
        gradient = self._feature_rows(self._gradient)
        capacity = np.zeros(num_tables, np.int64)
        library.check(self._library.rh_gradient_capacity(self._lookup, capacity.ctypes.data))
        unique = [allocate(size, dtype=np.int64) for size in capacity]
        rows = [allocate(size, dim) for size in capacity]
        gradients = (library.SparseGradientBuffer * num_tables)()
        updates = (library.Update * num_tables)()
        for table in range(num_tables):
            gradients[table].ids, gradients[table].rows = unique[table].ctypes.data, rows[table].ctypes.data
            gradients[table].capacity = capacity[table]
            updates[table].table = tables[table]
            updates[table].optimizer = ctypes.pointer(optimizers[table])
            updates[table].ids, updates[table].gradient = unique[table].ctypes.data, rows[table].ctypes.data
        self._rows_out = (unique, rows)

        def backward() -> None:
            library.check(self._library.rh_pooled_lookup_gradient(self._lookup, gradient, gradients, self._executor))
            for update, sparse in zip(updates, gradients, strict=True):
                update.num_ids = sparse.num_rows
            library.check(self._library.rh_apply(updates, num_tables, self._executor))

        return backward


def _lookup(cell: Cell, tables: list[np.ndarray]) -> library.Lookup:
    num_tables = len(tables)
    int32s = ctypes.c_int32 * num_tables
    return library.Lookup(
        tables=(library.Table * num_tables)(*((rows.ctypes.data, *rows.shape) for rows in tables)),
        feature_tables=int32s(*range(num_tables)),
        combiners=int32s(*[library.COMBINERS["sum"]] * num_tables),
        hotness=int32s(*[cell.hotness] * num_tables),
        num_ids=num_tables * cell.batch_size * cell.hotness,
        batch_size=cell.batch_size,
        num_tables=num_tables,
        num_features=num_tables,
    )


def _filled(*shape: int) -> np.ndarray:
    array = allocate(*shape)
    array.fill(FIRST_ACCUMULATOR)
    return array
