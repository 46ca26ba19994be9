"""Random batches for the backward, as the C interface takes them: all that the NumPy view cannot say is in them, too.

The truth is one plain loop over ids, in float64.
"""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.bags import SparseGradient
from rankhouse.kernels.optimizer_settings import OptimizerSettings
from rankhouse.kernels.optimizers import Slots, settings_fields

SUM, MEAN, SQRTN, NONE = range(4)
ERROR, ZERO, CLIP, OOV_ROW = range(4)
FAR_IDS = {np.dtype(np.int64): (2**63 - 1, -(2**63)), np.dtype(np.int32): (2**31 - 1, -(2**31))}


class BackwardCase:
    """One batch: tables of random shapes, features of random combiners, bags of random sizes."""

    def __init__(self, seed: int, **fixed: Any) -> None:
        rng = self.rng = np.random.default_rng(seed)
        num_tables, num_features = fixed.get("num_tables", rng.integers(1, 4)), fixed.get("num_features", 4)
        self.batch_size = int(fixed.get("batch_size", rng.choice([0, 1, 7, 300])))
        self.num_rows = [int(r) for r in rng.choice(fixed.get("rows", [1, 3, 50, 700, 2**21]), num_tables)]
        dims = fixed.get("dims", [1, 3, 8, 16, 17, 32, 64, 128, 257])
        self.dims = [int(rng.choice(dims if r < 10_000 else [1, 16])) for r in self.num_rows]
        self.tables = np.asarray(fixed.get("tables", rng.integers(0, num_tables, num_features)), np.int32)
        self.combiners = rng.integers(0, 4, num_features).astype(np.int32)
        self.policies = [int(p) for p in rng.integers(0, 4, num_tables)]
        self.oov_rows = [int(rng.integers(0, r)) for r in self.num_rows]
        self.hotness = np.asarray(fixed.get("hotness", rng.integers(0, 9, num_features)), np.int32)
        self.ragged, self.weighting = bool(rng.integers(2)), int(rng.integers(2))
        self.lengths = np.repeat(self.hotness[:, None], self.batch_size, 1)
        if self.ragged:
            self.lengths = rng.integers(0, 9, self.lengths.shape)
        self.offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        self.ids = self._ids(np.int32 if rng.integers(2) else np.int64)
        self.weights = rng.uniform(0.5, 2, len(self.ids)).astype(np.float32) if rng.integers(2) else None
        self.grads = [self._grad(f) for f in range(num_features)]
        self.lookup = self._lookup()

    def _ids(self, dtype: type) -> NDArray[Any]:
        ids = [np.zeros(0, dtype)]
        for table, lengths in zip(self.tables, self.lengths, strict=True):
            rows = self.num_rows[table]
            # Squaring makes low ids frequent, so that there are duplicates.
            some = (self.rng.random(lengths.sum()) ** 2 * rows).astype(dtype)
            if self.policies[table] != ERROR:
                bad = self.rng.random(len(some)) < 0.05
                some[bad] = self.rng.choice([-1, rows, *FAR_IDS[np.dtype(dtype)]], bad.sum())
            ids.append(some)
        return np.concatenate(ids)

    def _grad(self, f: int) -> NDArray[np.float32]:
        """The gradient of a feature, with a few columns more than its width."""
        dim, spare = self.dims[self.tables[f]], int(self.rng.integers(3))
        shape = (self.batch_size, dim + spare)
        if self.combiners[f] == NONE:
            fixed = (self.batch_size, int(self.hotness[f]) * dim + spare)
            shape = (int(self.lengths[f].sum()), dim + spare) if self.ragged else fixed
        return self.rng.standard_normal(shape).astype(np.float32)

    def _lookup(self) -> library.Lookup:
        shapes = zip(self.num_rows, self.dims, self.oov_rows, self.policies, strict=True)
        tables = [library.Table(None, rows, dim, 0, oov, 0, policy) for rows, dim, oov, policy in shapes]
        int32s = ctypes.POINTER(ctypes.c_int32)
        return library.Lookup(
            tables=(library.Table * len(tables))(*tables),
            feature_tables=self.tables.ctypes.data_as(int32s),
            combiners=self.combiners.ctypes.data_as(int32s),
            ids=self.ids.ctypes.data,
            weights=None if self.weights is None else self.weights.ctypes.data,
            offsets=self.offsets.ctypes.data if self.ragged else None,
            hotness=self.hotness.ctypes.data_as(int32s),
            num_ids=len(self.ids),
            batch_size=self.batch_size,
            num_tables=len(tables),
            num_features=len(self.tables),
            id_type=1 if self.ids.dtype == np.int32 else 0,
            weighting=self.weighting,
        )

    @property
    def feature_rows(self) -> Any:
        return (library.FeatureRows * len(self.grads))(
            *(library.FeatureRows(grad.ctypes.data, grad.shape[1]) for grad in self.grads)
        )

    def row_of(self, table: int, row: int) -> int | None:
        """The row that an id stands for; None: none."""
        if 0 <= row < self.num_rows[table]:
            return row
        if self.policies[table] == ZERO:
            return None
        clipped = 0 if row < 0 else self.num_rows[table] - 1
        return clipped if self.policies[table] == CLIP else self.oov_rows[table]

    def truth(self) -> list[dict[int, NDArray[np.float64]]]:
        """For each table its touched rows' gradients."""
        sums: list[dict[int, NDArray[np.float64]]] = [{} for _ in self.num_rows]
        for f, table in enumerate(self.tables):
            dim = self.dims[table]
            for b in range(self.batch_size):
                begin, end = self.offsets[f * self.batch_size + b : f * self.batch_size + b + 2]
                for position, share in enumerate(self._shares(f, begin, end)):
                    row = self.row_of(table, int(self.ids[begin + position]))
                    if row is None:
                        continue
                    grad = self.grads[f][b, :dim] if self.combiners[f] != NONE else self._row(f, b, begin, position)
                    sums[table][row] = sums[table].get(row, np.zeros(dim)) + share * grad.astype(np.float64)
        return sums

    def _row(self, f: int, b: int, begin: int, position: int) -> NDArray[np.float32]:
        dim = self.dims[self.tables[f]]
        if self.ragged:
            return self.grads[f][begin - self.offsets[f * self.batch_size] + position, :dim]
        return self.grads[f][b, position * dim : (position + 1) * dim]

    def _shares(self, f: int, begin: int, end: int) -> NDArray[np.float64]:
        weights = np.ones(end - begin)
        if self.weights is not None and self.combiners[f] != NONE:
            weights = self.weights[begin:end].astype(np.float64)
        counted = weights if self.weighting == 0 else np.ones(end - begin)
        divisors = {SUM: 1.0, MEAN: counted.sum(), SQRTN: np.sqrt((counted**2).sum()), NONE: 1.0}
        return weights / divisors[self.combiners[f]] if len(weights) else weights

    def gradients(self, executor: library.Executor) -> list[SparseGradient]:
        kernels = library.load()
        capacity = (ctypes.c_int64 * len(self.dims))()
        library.check(kernels.rh_gradient_capacity(self.lookup, capacity))
        outs = [
            (np.full(most, -7, np.int64), np.full((most, dim), np.nan, np.float32))
            for most, dim in zip(capacity, self.dims, strict=True)
        ]
        buffers = (library.SparseGradientBuffer * len(outs))(
            *(library.SparseGradientBuffer(ids.ctypes.data, rows.ctypes.data, len(ids)) for ids, rows in outs)
        )
        library.check(kernels.rh_pooled_lookup_gradient(self.lookup, self.feature_rows, buffers, executor))
        return [
            SparseGradient(ids[: buffer.num_rows], rows[: buffer.num_rows])
            for (ids, rows), buffer in zip(outs, buffers, strict=True)
        ]

    def update(
        self,
        tables: list[NDArray[np.float32]],
        slots: list[Slots],
        settings: OptimizerSettings,
        step: int,
        **options: Any,
    ) -> None:
        """rh_pooled_lookup_update of all tables with one optimizer."""
        optimizer = library.Optimizer(**settings_fields(settings), learning_rate=0.1, step=step)
        trained = (library.TrainedTable * len(tables))()
        for entry, table, slot in zip(trained, tables, slots, strict=True):
            entry.rows, entry.num_rows, entry.dim = table.ctypes.data, *table.shape
            for number, array in enumerate(slot.arrays):
                entry.slots[number] = array.ctypes.data
            entry.last_steps = None if slot.last_steps is None else slot.last_steps.ctypes.data
        library.check(
            library.load().rh_pooled_lookup_update(
                self.lookup,
                self.feature_rows,
                (library.Optimizer * len(tables))(*[optimizer] * len(tables)),
                trained,
                library.Executor(**options),
            )
        )
