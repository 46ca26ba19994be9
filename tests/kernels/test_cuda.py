"""The CUDA operations on a GPU, through the C interface: `pytest -m gpu tests/kernels`."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import arrays, library, optimizers
from rankhouse.kernels.bags import FixedHotness, SparseGradient
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError, UnsupportedError
from rankhouse.kernels.optimizer_settings import Adagrad, Sgd
from rankhouse.kernels.optimizers import Slots
from tests.kernels.batches import BAD_IDS, DIMS, Batch, bad_id_message, make_batch, with_bad_id
from tests.kernels.device_memory import Device, find_device

DEVICE = find_device()
BUILT_WITH_CUDA = bool(library.load().rh_built_with_cuda())

needs_gpu = pytest.mark.skipif(DEVICE is None or not BUILT_WITH_CUDA, reason="needs a GPU and a build with CUDA")


def device() -> Device:
    assert DEVICE is not None
    return DEVICE


@dataclass
class DeviceBatch:
    """A batch in the memory of the GPU."""

    batch: Batch
    hotness: FixedHotness | None = None

    def __post_init__(self) -> None:
        batch, num_features = self.batch, len(self.batch.feature_tables)
        tables = [library.Table(device().put(table), *table.shape) for table in batch.tables]
        int32s = ctypes.c_int32 * num_features
        self.lookup = library.Lookup(
            tables=(library.Table * len(tables))(*tables),
            num_tables=len(tables),
            feature_tables=int32s(*batch.feature_tables),
            combiners=int32s(*(library.COMBINERS[combiner] for combiner in batch.combiners)),
            num_features=num_features,
            ids=device().put(batch.ids),
            num_ids=len(batch.ids),
            batch_size=batch.batch_size,
        )
        if self.hotness is None:
            self.lookup.offsets = device().put(batch.offsets)
        else:
            self.lookup.hotness = int32s(*self.hotness.per_feature)

    def pooled_lookup(self) -> NDArray[np.float32]:
        shape = self.batch.grad.shape
        out = device().allocate(4 * shape[0] * shape[1])
        workspace, size = workspace_for("rh_pooled_lookup_workspace_cuda", self.lookup)
        kernels = library.load()
        library.check(kernels.rh_pooled_lookup_cuda(self.lookup, out, workspace, size, None))
        library.check(kernels.rh_lookup_check_cuda(self.lookup, workspace, None))
        return device().get(out, shape, np.float32)

    def gradient(self, *, capacity: int | None = None) -> list[SparseGradient]:
        num_ids, shapes = len(self.batch.ids), self.batch.tables_shape
        capacities = [min(num_ids, num_rows) if capacity is None else capacity for num_rows, _ in shapes]
        buffers = (library.SparseGradientBuffer * len(capacities))(
            *(
                library.SparseGradientBuffer(device().allocate(8 * most), device().allocate(4 * most * dim), most)
                for most, (_, dim) in zip(capacities, shapes, strict=True)
            )
        )
        num_rows = device().allocate(8 * len(capacities))
        workspace, size = workspace_for("rh_pooled_lookup_gradient_workspace_cuda", self.lookup)
        kernels = library.load()
        library.check(
            kernels.rh_pooled_lookup_gradient_cuda(
                self.lookup, device().put(self.batch.grad), buffers, num_rows, workspace, size, None
            )
        )
        library.check(kernels.rh_lookup_check_cuda(self.lookup, workspace, None))
        counts = device().get(num_rows, (len(capacities),), np.int64).tolist()
        return [
            SparseGradient(
                device().get(buffer.ids, (count,), np.int64), device().get(buffer.rows, (count, dim), np.float32)
            )
            for buffer, count, (_, dim) in zip(buffers, counts, shapes, strict=True)
        ]


def workspace_for(function: str, argument: Any) -> tuple[int, int]:
    size = ctypes.c_int64()
    library.check(getattr(library.load(), function)(argument, size))
    return device().allocate(size.value), size.value


def batch_cases() -> list[Batch]:
    wide = [(50, dim) for dim in DIMS]
    return [
        make_batch(1, shapes=[(50, 16), (7, 4), (3000, 128)], feature_tables=[0, 1, 2, 0], batch_size=33),
        make_batch(2, shapes=wide, feature_tables=list(range(len(wide))), batch_size=9),
        make_batch(3, shapes=[(3, 16), (2, 300)], feature_tables=[0, 1, 1], batch_size=900, max_hotness=5),
        make_batch(4, shapes=[(1, 1)], feature_tables=[0], batch_size=2000, max_hotness=3),
        make_batch(5, shapes=[(0, 4), (9, 8), (5, 8)], feature_tables=[0, 1], batch_size=5),
        make_batch(6, shapes=[(9, 8)], feature_tables=[0], batch_size=0),
        make_batch(7, shapes=[(9, 8)], feature_tables=[], batch_size=0),
    ]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("batch", batch_cases())
def test_lookup_and_gradient_equal_the_cpus_bit_for_bit(batch: Batch) -> None:
    on_device = DeviceBatch(batch)
    np.testing.assert_array_equal(
        on_device.pooled_lookup(), arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup)
    )
    expected = arrays.pooled_lookup_gradient(
        batch.grad, batch.ids, batch.offsets, tables_shape=batch.tables_shape, **batch.lookup
    )
    for gradient, truth in zip(on_device.gradient(), expected, strict=True):
        np.testing.assert_array_equal(gradient.ids, truth.ids)
        np.testing.assert_array_equal(gradient.rows, truth.rows)


@pytest.mark.gpu
@needs_gpu
def test_fixed_hotness_equals_offsets() -> None:
    batch = with_bad_id(0)
    by_hotness = DeviceBatch(batch, FixedHotness((3, 3)))
    np.testing.assert_array_equal(by_hotness.pooled_lookup(), DeviceBatch(batch).pooled_lookup())
    for gradient, truth in zip(by_hotness.gradient(), DeviceBatch(batch).gradient(), strict=True):
        np.testing.assert_array_equal(gradient.ids, truth.ids)
        np.testing.assert_array_equal(gradient.rows, truth.rows)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("bad_id", BAD_IDS)
def test_bad_ids_are_named(bad_id: int) -> None:
    for hotness in (None, FixedHotness((3, 3))):
        on_device = DeviceBatch(with_bad_id(bad_id), hotness)
        with pytest.raises(IdOutOfRangeError, match=bad_id_message(bad_id)):
            on_device.pooled_lookup()
        with pytest.raises(IdOutOfRangeError, match=bad_id_message(bad_id)):
            on_device.gradient()


@pytest.mark.gpu
@needs_gpu
def test_bad_offsets_and_capacities_are_named() -> None:
    batch = make_batch(1, shapes=[(50, 16)], feature_tables=[0], batch_size=33)
    with pytest.raises(ArgumentError, match="the gradient of table 0 has more unique ids than its capacity"):
        DeviceBatch(batch).gradient(capacity=2)
    batch.offsets[5] = 10**6
    with pytest.raises(ArgumentError, match=r"offsets of feature 0, sample 4 run from \d+ to 1000000"):
        DeviceBatch(batch).pooled_lookup()
    with pytest.raises(ArgumentError, match=r"offsets of feature 0, sample 4 run from \d+ to 1000000"):
        DeviceBatch(batch).gradient()


@pytest.mark.gpu
@needs_gpu
def test_small_workspaces_are_refused() -> None:
    lookup = DeviceBatch(make_batch(1, shapes=[(50, 16)], feature_tables=[0], batch_size=33)).lookup
    with pytest.raises(ArgumentError, match="workspace has 100 bytes: expected what the"):
        library.check(library.load().rh_pooled_lookup_cuda(lookup, None, device().allocate(100), 100, None))
    with pytest.raises(ArgumentError, match="workspace is NULL"):
        library.check(library.load().rh_pooled_lookup_cuda(lookup, None, None, 100, None))


class DeviceUpdates:
    """Three tables with sparse gradients on the GPU; for table 1 only the device knows how many ids there are."""

    shapes = ((10, 16), (700, 33), (4, 1))

    def __init__(self, *, ids_of_table_0: list[int]) -> None:
        rng = np.random.default_rng(0)
        ids = [np.array(ids_of_table_0), np.arange(0, 700, 3), np.array([2])]
        self.gradients = [
            SparseGradient(i.astype(np.int64), rng.standard_normal((len(i), dim)).astype(np.float32))
            for i, (_, dim) in zip(ids, self.shapes, strict=True)
        ]
        self.tables = [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]
        self.accumulators = [np.full(shape, 0.1, np.float32) for shape in self.shapes]
        self.updates = (library.Update * 3)(*(self._update(t) for t in range(3)))

    def _update(self, t: int) -> library.Update:
        gradient, num_ids = self.gradients[t], len(self.gradients[t].ids)
        room = 5 if t == 1 else 0  # more ids than there are, as a gradient's capacity has it
        return library.Update(
            rows=device().put(self.tables[t]),
            accumulator=device().put(self.accumulators[t]),
            ids=device().put(np.concatenate([gradient.ids, np.full(room, -7, np.int64)])),
            gradient=device().put(np.concatenate([gradient.rows, np.ones((room, self.shapes[t][1]), np.float32)])),
            device_num_ids=device().put(np.array([num_ids], np.int64)) if room else None,
            num_rows=self.shapes[t][0],
            dim=self.shapes[t][1],
            num_ids=num_ids + room,
        )

    def apply(self, optimizer: str) -> None:
        kernels = library.load()
        workspace, size = workspace_for("rh_apply_workspace_cuda", 3)
        if optimizer == "sgd":
            library.check(kernels.rh_apply_sgd_cuda(self.updates, 3, 0.3, workspace, size, None))
        else:
            library.check(kernels.rh_apply_adagrad_cuda(self.updates, 3, 0.3, 1e-3, workspace, size, None))
        library.check(kernels.rh_apply_check_cuda(self.updates, 3, workspace, None))

    def rows(self, t: int) -> NDArray[np.float32]:
        return device().get(self.updates[t].rows, self.shapes[t], np.float32)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_optimizers_equal_the_cpus_bit_for_bit(optimizer: str) -> None:
    on_device = DeviceUpdates(ids_of_table_0=[0, 3, 9])
    on_device.apply(optimizer)
    for t, (table, gradient) in enumerate(zip(on_device.tables, on_device.gradients, strict=True)):
        if optimizer == "sgd":
            optimizers.apply(table, Slots(()), gradient, Sgd(), learning_rate=0.3)
        else:
            slots = Slots((on_device.accumulators[t],))
            optimizers.apply(table, slots, gradient, Adagrad(epsilon=1e-3), learning_rate=0.3)
        np.testing.assert_array_equal(on_device.rows(t), table)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 3, 3], ArgumentError, "ids of the gradient of table 0 must increase, but 3 at position 2 follows 3"),
        ([0, 3, 10], IdOutOfRangeError, "id 10 at position 2 of the gradient is out of range: table 0 has 10 rows"),
        ([-1, 3, 4], IdOutOfRangeError, "id -1 at position 0"),
    ],
)
def test_optimizers_refuse_bad_ids_and_change_nothing(
    optimizer: str, ids: list[int], error: type[Exception], message: str
) -> None:
    on_device = DeviceUpdates(ids_of_table_0=ids)
    with pytest.raises(error, match=message):
        on_device.apply(optimizer)
    for t, table in enumerate(on_device.tables):
        np.testing.assert_array_equal(on_device.rows(t), table)


CALLS_WITHOUT_CUDA: dict[str, Callable[[Any], int]] = {
    "lookup": lambda kernels: kernels.rh_pooled_lookup_cuda(library.Lookup(), None, None, 0, None),
    "lookup workspace": lambda kernels: kernels.rh_pooled_lookup_workspace_cuda(library.Lookup(), ctypes.c_int64()),
    "gradient": lambda kernels: kernels.rh_pooled_lookup_gradient_cuda(
        library.Lookup(), None, None, None, None, 0, None
    ),
    "lookup check": lambda kernels: kernels.rh_lookup_check_cuda(library.Lookup(), None, None),
    "sgd": lambda kernels: kernels.rh_apply_sgd_cuda(None, 0, 0.1, None, 0, None),
    "adagrad": lambda kernels: kernels.rh_apply_adagrad_cuda(None, 0, 0.1, 0.1, None, 0, None),
    "apply check": lambda kernels: kernels.rh_apply_check_cuda(None, 0, None, None),
}


@pytest.mark.skipif(BUILT_WITH_CUDA, reason="this build has CUDA")
@pytest.mark.parametrize("call", CALLS_WITHOUT_CUDA)
def test_a_build_without_cuda_says_so(call: str) -> None:
    with pytest.raises(UnsupportedError, match="built without CUDA: build it where nvcc and a GPU are"):
        library.check(CALLS_WITHOUT_CUDA[call](library.load()))
