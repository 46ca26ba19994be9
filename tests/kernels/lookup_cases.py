"""Lookups at the edges of the operations, and calls of them on any device through the C interface."""

import ctypes
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.bags import SparseGradient
from tests.kernels.device_memory import Kernels

FLOAT32, FLOAT16, BFLOAT16, INT8 = range(4)
ERROR, ZERO, CLIP, OOV_ROW = range(4)
SUM, MEAN, SQRTN, NONE = range(4)


@dataclass(frozen=True)
class LookupCase:
    """A lookup in host memory. `tables` are float32, to be converted to `types`; hotness None: by offsets."""

    tables: list[NDArray[np.float32]] = field(repr=False)
    feature_tables: list[int]
    combiners: list[int]
    batch_size: int
    ids: NDArray[Any] = field(repr=False)
    offsets: NDArray[np.int64] = field(repr=False)
    hotness: list[int] | None = None
    weights: NDArray[np.float32] | None = field(default=None, repr=False)
    weighting: int = 0
    types: tuple[int, ...] = ()
    out_of_range: int = ERROR
    extra_stride: int = 0  # bytes between packed rows
    extra_columns: int = 0  # floats between the features' rows in outputs and gradients
    seed: int = 0

    def dim(self, feature: int) -> int:
        return self.tables[self.feature_tables[feature]].shape[1]

    def row_shape(self, feature: int) -> tuple[int, int]:
        """The shape of what the lookup writes for a feature."""
        if self.combiners[feature] != NONE:
            return self.batch_size, self.dim(feature)
        if self.hotness is not None:
            return self.batch_size, self.hotness[feature] * self.dim(feature)
        bounds = self.offsets[[feature * self.batch_size, (feature + 1) * self.batch_size]]
        return int(bounds[1] - bounds[0]), self.dim(feature)


def make_case(
    seed: int,
    shapes: list[tuple[int, int]],
    feature_tables: list[int],
    batch_size: int,
    *,
    hotness: list[int] | None = None,
    max_hotness: int = 4,
    weighted: bool = False,
    bad_share: float = 0.0,
    id_type: type = np.int64,
    **options: Any,
) -> LookupCase:
    """Ids are good but for a share of them; low ids are frequent. Features of empty tables have bad ids only."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, max_hotness + 1, (len(feature_tables), batch_size))
    if hotness is not None:
        lengths[:] = np.array(hotness)[:, None]
    ids = []
    for f, table in enumerate(feature_tables):
        num_rows = shapes[table][0]
        if num_rows == 0 and not bad_share:
            lengths[f] = 0
        good = (rng.random(lengths[f].sum()) ** 2 * num_rows).astype(np.int64)
        bad = rng.choice([-1, num_rows, np.iinfo(id_type).max, np.iinfo(id_type).min], len(good))
        ids.append(np.where((rng.random(len(good)) < bad_share) | (num_rows == 0), bad, good))
    all_ids = np.concatenate([np.zeros(0, np.int64), *ids]).astype(id_type)
    return LookupCase(
        tables=[rng.standard_normal(shape).astype(np.float32) for shape in shapes],
        feature_tables=feature_tables,
        batch_size=batch_size,
        ids=all_ids,
        offsets=np.concatenate([[0], np.cumsum(lengths.ravel())]).astype(np.int64),
        hotness=hotness,
        weights=rng.choice([-0.5, 0.0, 0.25, 1.0, 3.0], len(all_ids)).astype(np.float32) if weighted else None,
        seed=seed,
        **{"combiners": rng.integers(0, 3, len(feature_tables)).tolist(), **options},
    )


DIMS = (1, 3, 4, 7, 16, 20, 32, 64, 128, 257, 300)


def forward_cases() -> dict[str, LookupCase]:
    wide = [(20, dim) for dim in DIMS]
    every = list(range(len(wide)))
    cases = {
        "widths": make_case(1, wide, every, 9),
        "widths, weights": make_case(2, wide, every, 9, weighted=True, id_type=np.int32),
        "widths, one id each": make_case(3, wide, every, 13, hotness=[1] * len(wide)),
        "none": make_case(4, wide, every, 5, combiners=[NONE] * len(wide), weighted=True),
        "none, fixed": make_case(
            5, wide, every, 5, combiners=[NONE, MEAN] * 5 + [NONE], hotness=[2, 3, 0] * 3 + [1, 5]
        ),
        "strides": make_case(6, wide, every, 9, extra_stride=16, extra_columns=3),
        "unaligned strides": make_case(7, wide, every, 9, extra_stride=4, extra_columns=4, weighted=True),
        "fbgemm": make_case(8, [(50, 16), (7, 128)], [0, 1, 0], 33, weighted=True, weighting=1, combiners=[0, 1, 2]),
        "long bags": make_case(9, [(3000, 16), (9, 300)], [0, 1], 3, max_hotness=150, combiners=[MEAN, SUM]),
        "many bags": make_case(10, [(50, 16), (7, 4), (300, 128)], [0, 1, 2, 0], 70, max_hotness=2),
        "fixed": make_case(11, [(50, 16), (7, 64)], [1, 0, 1], 33, hotness=[10, 0, 64], weighted=True),
        "no samples": make_case(12, [(9, 8)], [0], 0),
        "no features": make_case(13, [(9, 8)], [], 0),
        "empty bags": make_case(14, [(9, 8), (0, 4)], [0, 1], 40, max_hotness=0, combiners=[MEAN, NONE]),
        "empty table, zero": make_case(15, [(0, 4)], [0], 40, bad_share=1.0, out_of_range=ZERO),
    }
    for type_ in (FLOAT16, BFLOAT16, INT8):
        cases[f"type {type_}"] = make_case(20 + type_, wide, every, 9, types=(type_,), weighted=type_ == INT8)
        cases[f"type {type_}, strides"] = make_case(30 + type_, wide, every, 9, types=(type_,), extra_stride=8)
    cases["mixed types"] = make_case(40, wide, every, 9, types=(FLOAT32, INT8, FLOAT16, BFLOAT16), extra_stride=2 * 8)
    cases["odd strides"] = make_case(41, wide, every, 9, types=(INT8,), extra_stride=1)
    for policy in (ZERO, CLIP, OOV_ROW):
        cases[f"policy {policy}"] = make_case(50 + policy, wide, every, 9, bad_share=0.3, out_of_range=policy)
    cases["policy none"] = make_case(
        60, wide, every, 9, bad_share=0.5, out_of_range=CLIP, combiners=[NONE] * len(wide), id_type=np.int32
    )
    return cases


def backward_cases() -> dict[str, LookupCase]:
    """Of float32 rows; those that forward_cases has, and runs of one to several chunks."""
    cases = {name: case for name, case in forward_cases().items() if not case.types and not case.extra_stride}
    cases["hot rows"] = make_case(70, [(3, 16), (2, 300)], [0, 1, 1], 500, max_hotness=5)
    cases["one row"] = make_case(71, [(1, 1)], [0], 1000, max_hotness=3)
    cases["hot, weights"] = make_case(72, [(2, 4), (2, 7)], [0, 1], 700, max_hotness=3, weighted=True)
    cases["hot, none"] = make_case(73, [(2, 132)], [0], 300, max_hotness=3, combiners=[NONE])
    for size in (255, 256, 257, 511, 512, 513, 769):
        ids = np.concatenate([np.zeros(100), np.ones(size), np.full(size, 2), np.full(30, 3)]).astype(np.int64)
        case = make_case(80, [(4, 20)], [0], len(ids), hotness=[1])
        cases[f"runs of {size}"] = replace(case, ids=ids)
    return cases


def pack(table: NDArray[np.float32], type_: int, stride: int, cpu: Kernels) -> NDArray[np.uint8]:
    """The bytes of a table's rows in a type."""
    rows, packed = np.ascontiguousarray(table), np.full((table.shape[0], stride), 0xCD, np.uint8)
    cpu.call("rh_quantize_rows", rows.ctypes.data, *table.shape, type_, stride, packed.ctypes.data, None)
    return packed


class Call:
    """A case in the memory of a device, and the operations on it."""

    def __init__(self, case: LookupCase, kernels: Kernels, cpu: Kernels) -> None:
        self.case, self.kernels, self.memory = case, kernels, kernels.memory
        types = [case.types[t % len(case.types)] if case.types else FLOAT32 for t in range(len(case.tables))]
        tables = []
        for table, type_ in zip(case.tables, types, strict=True):
            num_rows, dim = table.shape
            stride = cpu.functions.rh_row_bytes(type_, dim) + case.extra_stride
            rows = self.memory.put(pack(table, type_, stride, cpu))
            oov_row = max(0, num_rows - 2) if case.out_of_range == OOV_ROW else 0
            tables.append(library.Table(rows, num_rows, dim, stride, oov_row, type_, case.out_of_range))
        num_features = len(case.feature_tables)
        int32s = ctypes.c_int32 * num_features
        self.tables = (library.Table * len(tables))(*tables)
        self.lookup = library.Lookup(
            tables=self.tables, num_tables=len(tables), num_features=num_features, batch_size=case.batch_size,
            feature_tables=int32s(*case.feature_tables), combiners=int32s(*case.combiners),
            ids=self.memory.put(case.ids), num_ids=len(case.ids), id_type=int(case.ids.dtype == np.int32),
            weights=None if case.weights is None else self.memory.put(case.weights), weighting=case.weighting,
        )  # fmt: skip
        if case.hotness is None:
            self.lookup.offsets = self.memory.put(case.offsets)
        else:
            self.lookup.hotness = int32s(*case.hotness)

    def pooled_lookup(self) -> tuple[list[NDArray[np.float32]], list[dict[str, int]]]:
        """Returns each feature's rows, and each table's bad ids."""
        out, shapes = self.feature_rows(None)
        bad_ids = (library.BadIds * len(self.tables))()
        try:
            if self.kernels.is_cuda:
                workspace, size = self.kernels.workspace("rh_pooled_lookup_workspace_cuda", self.lookup)
                self.kernels.call("rh_pooled_lookup_cuda", self.lookup, out, workspace, size, None)
                self.kernels.call("rh_lookup_check_cuda", self.lookup, workspace, bad_ids, None)
            else:
                self.kernels.call("rh_pooled_lookup", self.lookup, out, bad_ids, None)
        finally:
            self.bad_ids = [
                {name: getattr(bad, name) for name, _ in library.BadIds._fields_} if bad.count else {"count": 0}
                for bad in bad_ids
            ]
        return [self._read(rows, shape) for rows, shape in zip(out, shapes, strict=True)], self.bad_ids

    def gradient(self, *, capacity: int | None = None) -> list[SparseGradient]:
        grad, _ = self.feature_rows(self.gradients())
        num_ids, shapes = len(self.case.ids), [table.shape for table in self.case.tables]
        capacities = [min(num_ids, shape[0]) if capacity is None else capacity for shape in shapes]
        allocate = self.memory.allocate
        buffers = (library.SparseGradientBuffer * len(shapes))(
            *(
                library.SparseGradientBuffer(allocate(8 * most), allocate(4 * most * dim), most)
                for most, (_, dim) in zip(capacities, shapes, strict=True)
            )
        )
        if self.kernels.is_cuda:
            num_rows = allocate(8 * len(shapes))
            workspace, size = self.kernels.workspace("rh_pooled_lookup_gradient_workspace_cuda", self.lookup)
            self.kernels.call(
                "rh_pooled_lookup_gradient_cuda", self.lookup, grad, buffers, num_rows, workspace, size, None
            )
            self.kernels.call("rh_lookup_check_cuda", self.lookup, workspace, None, None)
            counts = self.memory.get(num_rows, (len(shapes),), np.int64).tolist()
        else:
            self.kernels.call("rh_pooled_lookup_gradient", self.lookup, grad, buffers, None)
            counts = [buffer.num_rows for buffer in buffers]
        return [
            SparseGradient(
                self.memory.get(buffer.ids, (count,), np.int64), self.memory.get(buffer.rows, (count, dim), np.float32)
            )
            for buffer, count, (_, dim) in zip(buffers, counts, shapes, strict=True)
        ]

    def weight_gradient(self) -> NDArray[np.float32]:
        grad, _ = self.feature_rows(self.gradients())
        out = self.memory.allocate(4 * len(self.case.ids))
        if self.kernels.is_cuda:
            workspace, size = self.kernels.workspace("rh_pooled_lookup_workspace_cuda", self.lookup)
            self.kernels.call("rh_pooled_lookup_weight_gradient_cuda", self.lookup, grad, out, workspace, size, None)
            self.kernels.call("rh_lookup_check_cuda", self.lookup, workspace, None, None)
        else:
            self.kernels.call("rh_pooled_lookup_weight_gradient", self.lookup, grad, out, None)
        return self.memory.get(out, (len(self.case.ids),), np.float32)

    def update(self, optimizers: Any, trained: Any) -> None:
        """Makes the fused step of rh_trained_tables in this device's memory."""
        grad, _ = self.feature_rows(self.gradients())
        if self.kernels.is_cuda:
            workspace, size = self.kernels.workspace("rh_pooled_lookup_update_workspace_cuda", self.lookup)
            arguments = (self.lookup, grad, optimizers, trained, workspace, size, None)
            self.kernels.call("rh_pooled_lookup_update_cuda", *arguments)
            self.kernels.call("rh_lookup_check_cuda", self.lookup, workspace, None, None)
        else:
            self.kernels.call("rh_pooled_lookup_update", self.lookup, grad, optimizers, trained, None)

    def gradients(self) -> list[NDArray[np.float32]]:
        rng = np.random.default_rng(self.case.seed)
        shapes = [self.case.row_shape(f) for f in range(len(self.case.feature_tables))]
        return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def feature_rows(self, values: list[NDArray[np.float32]] | None) -> tuple[Any, list[tuple[int, int]]]:
        shapes = [self.case.row_shape(f) for f in range(len(self.case.feature_tables))]
        rows = (library.FeatureRows * len(shapes))()
        for f, (count, width) in enumerate(shapes):
            stride = width + self.case.extra_columns
            matrix = np.full((count, stride), np.nan, np.float32)
            if values is not None:
                matrix[:, :width] = values[f]
            rows[f] = library.FeatureRows(self.memory.put(matrix), stride)
        return rows, shapes

    def _read(self, rows: Any, shape: tuple[int, int]) -> NDArray[np.float32]:
        matrix = self.memory.get(rows.data, (shape[0], rows.stride), np.float32)
        assert np.isnan(matrix[:, shape[1] :]).all()  # what is not the feature's stays as it was
        return matrix[:, : shape[1]]
