"""The optimizers of the CUDA operations against the CPU's, bit for bit: `pytest -m gpu tests/kernels`.

test_cuda_emulation.py runs the same tests without a GPU.
"""

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError
from rankhouse.kernels.reference.rows import quantize_rows
from tests.kernels.device_memory import Kernels, cpu, find_cuda
from tests.kernels.lookup_cases import ZERO, Call, LookupCase, backward_cases, make_case

pytestmark = pytest.mark.gpu

LAZY, DENSE, EXACT = range(3)

# The row types of tables, in turn.
ROW_TYPES = {"float32": ("float32",), "16 bits": ("float16", "bfloat16", "bfloat16", "float16", "bfloat16")}


@pytest.fixture(scope="module")
def cuda() -> Kernels:
    found = find_cuda()
    if found is None:
        pytest.skip("needs an NVIDIA GPU and a build with CUDA")
    return found


def optimizer(rule: str, **settings: Any) -> library.Optimizer:
    given = {
        "learning_rate": 0.1, "epsilon": 1e-5, "momentum": 0.9, "beta_1": 0.9, "beta_2": 0.99, "rho": 0.9, "l1": 0.01,
        "l2": 0.02, "l2_shrinkage": 0.01, "learning_rate_power": -0.5, "beta": 0.1, "step": 3, "gradient_scale": 0.5,
    }  # fmt: skip
    return library.Optimizer(rule=library.RULES[rule], **{**given, **settings})


OPTIMIZERS = {
    **{rule: optimizer(rule) for rule in library.RULES},
    "nesterov": optimizer("momentum", nesterov=1),
    "decay": optimizer("adagrad", weight_decay=0.1),
    "row-wise, decoupled decay": optimizer("rowwise_adagrad", weight_decay=0.1, decoupled=1),
    "dense momentum": optimizer("momentum", kind=DENSE),
    "dense Adam": optimizer("adam", kind=DENSE),
    "exact momentum": optimizer("momentum", kind=EXACT, step=40),
    "exact Adam": optimizer("adam", kind=EXACT, step=40),
}


class Trained:
    """Tables and their slots in the memory of a device."""

    def __init__(
        self,
        shapes: list[tuple[int, int]],
        chosen: list[library.Optimizer],
        kernels: Kernels,
        row_types: tuple[str, ...] = ("float32",),
    ) -> None:
        rng = np.random.default_rng(len(shapes))
        self.shapes, self.kernels = shapes, kernels
        self.arrays: list[list[NDArray[Any]]] = []
        tables = []
        for t, ((num_rows, dim), setting) in enumerate(zip(shapes, chosen, strict=True)):
            row_type = row_types[t % len(row_types)]
            rows = quantize_rows(rng.standard_normal((num_rows, dim)).astype(np.float32), row_type)
            width = 1 if setting.rule == library.RULES["rowwise_adagrad"] else dim
            slots = [rng.random((num_rows, width)).astype(np.float32) for _ in range(2)]
            last_steps = rng.integers(0, max(1, setting.step), num_rows).astype(np.int32)
            self.arrays.append([rows, *slots, last_steps])
            put = [kernels.memory.put(array) for array in self.arrays[-1]]
            slots = (ctypes.c_void_p * 2)(*put[1:3])
            tables.append(library.TrainedTable(put[0], slots, put[3], num_rows, dim, library.ROW_TYPES[row_type]))
        self.tables = (library.TrainedTable * len(tables))(*tables)

    def read(self) -> list[NDArray[Any]]:
        return [
            self.kernels.memory.get(address, array.shape, array.dtype.type)
            for table, arrays in zip(self.tables, self.arrays, strict=True)
            for address, array in zip((table.rows, *table.slots, table.last_steps), arrays, strict=True)
        ]


def assert_same(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> None:
    for array, expected in zip(one, other, strict=True):
        np.testing.assert_array_equal(array, expected)


class Updates:
    """Sparse gradients of tables in the memory of a device; only the device knows how many ids table 1 has."""

    shapes = ((10, 16), (300, 33), (4, 1), (9, 300), (20, 128))

    def __init__(
        self,
        chosen: library.Optimizer,
        kernels: Kernels,
        ids_of_table_0: list[int],
        row_types: tuple[str, ...] = ("float32",),
    ) -> None:
        rng = np.random.default_rng(0)
        self.kernels = kernels
        self.trained = Trained(list(self.shapes), [chosen] * 5, kernels, row_types)
        self.optimizer = chosen
        ids = [np.array(ids_of_table_0), np.arange(0, 300, 3), np.array([2]), np.array([0, 8]), np.arange(3, 17)]
        put, updates = kernels.memory.put, []
        for t, (some, (_, dim)) in enumerate(zip(ids, self.shapes, strict=True)):
            room = 5 if t == 1 and kernels.is_cuda else 0  # more than there are, as a gradient's capacity has it
            gradient = rng.standard_normal((len(some), dim)).astype(np.float32)
            gradient = np.concatenate([gradient, np.full((room, dim), np.nan, np.float32)])
            some_ids = np.concatenate([some, np.full(room, -7)]).astype(np.int64)
            count = put(np.array([len(some)], np.int64)) if room else None
            updates.append(
                library.Update(
                    self.trained.tables[t], ctypes.pointer(chosen), put(some_ids), put(gradient), count, len(some_ids)
                )
            )
        self.updates = (library.Update * 5)(*updates)

    def run(self, operation: str) -> list[NDArray[Any]]:
        if self.kernels.is_cuda:
            workspace, size = self.kernels.workspace("rh_apply_workspace_cuda", 5)
            self.kernels.call(f"rh_{operation}_cuda", self.updates, 5, workspace, size, None)
            self.kernels.call("rh_apply_check_cuda", self.updates, 5, workspace, None)
        else:
            self.kernels.call(f"rh_{operation}", self.updates, 5, None)
        return self.trained.read()


@pytest.mark.parametrize("row_types", ROW_TYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_apply_equals_the_cpus_bit_for_bit(name: str, row_types: str, cuda: Kernels) -> None:
    ours, theirs = (
        Updates(OPTIMIZERS[name], kernels, [0, 3, 9], ROW_TYPES[row_types]).run("apply") for kernels in (cuda, cpu())
    )
    assert_same(ours, theirs)


@pytest.mark.parametrize("row_types", ROW_TYPES)
@pytest.mark.parametrize("name", ["exact momentum", "exact Adam", "dense Adam"])
@pytest.mark.parametrize("whole", [False, True])
def test_catch_up_equals_the_cpus_bit_for_bit(name: str, whole: bool, row_types: str, cuda: Kernels) -> None:
    results = []
    for kernels in (cuda, cpu()):
        chosen = library.Optimizer.from_buffer_copy(OPTIMIZERS[name])
        rates = np.linspace(0.2, 0.1, chosen.step).astype(np.float32)
        chosen.learning_rates = kernels.memory.put(rates)
        updates = Updates(chosen, kernels, [0, 3, 9], ROW_TYPES[row_types])
        for update in updates.updates:
            update.ids = None if whole else update.ids
        results.append(updates.run("catch_up"))
    assert_same(*results)


def test_int8_rows_and_steps_of_0_are_refused(cuda: Kernels) -> None:
    updates = Updates(optimizer("adagrad", step=0), cuda, [0, 3, 9], ROW_TYPES["16 bits"])
    with pytest.raises(ArgumentError, match="has step 0: expected at least 1, because float16 and bfloat16 rows"):
        updates.run("apply")
    updates.updates[0].table.type = library.ROW_TYPES["int8"]
    with pytest.raises(ArgumentError, match="table 0 that is trained has rows of row-wise int8"):
        updates.run("apply")


@pytest.mark.parametrize("name", ["adagrad", "rowwise_adagrad", "dense Adam", "exact momentum"])
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 3, 3], ArgumentError, "ids of the gradient of table 0 must increase, but 3 at position 2 follows 3"),
        ([0, 3, 10], IdOutOfRangeError, "id 10 at position 2 of the gradient is out of range: table 0 has 10 rows"),
        ([-1, 3, 4], IdOutOfRangeError, "id -1 at position 0"),
    ],
)
def test_bad_ids_change_nothing(name: str, ids: list[int], error: type[Exception], message: str, cuda: Kernels) -> None:
    updates = Updates(OPTIMIZERS[name], cuda, ids)
    before = updates.trained.read()
    with pytest.raises(error, match=message):
        updates.run("apply")
    assert_same(updates.trained.read(), before)


UPDATED = backward_cases()
CASES = ["widths", "widths, weights", "none", "fixed", "hot rows", "one row", "hot, none", "runs of 513", "no samples"]


def updated(
    case: LookupCase, chosen: list[library.Optimizer], kernels: Kernels, row_types: str = "float32"
) -> list[NDArray[Any]]:
    shapes = [(table.shape[0], table.shape[1]) for table in case.tables]
    settings = [chosen[t % len(chosen)] for t in range(len(shapes))]
    trained = Trained(shapes, settings, kernels, ROW_TYPES[row_types])
    Call(case, kernels, cpu()).update((library.Optimizer * len(settings))(*settings), trained.tables)
    return trained.read()


@pytest.mark.parametrize("row_types", ROW_TYPES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_equal_the_cpus_for_every_rule(name: str, row_types: str, cuda: Kernels) -> None:
    case = make_case(7, [(50, dim) for dim in (1, 4, 7, 16, 64, 128, 300)] + [(2, 20)], [*range(8), 7], 90)
    ours, theirs = (updated(case, [OPTIMIZERS[name]], kernels, row_types) for kernels in (cuda, cpu()))
    assert_same(ours, theirs)


@pytest.mark.parametrize(
    ("name", "row_types"), [*((name, "float32") for name in CASES), ("widths", "16 bits"), ("runs of 513", "16 bits")]
)
def test_updates_equal_the_cpus_for_every_batch(name: str, row_types: str, cuda: Kernels) -> None:
    chosen = [OPTIMIZERS[rule] for rule in ("rowwise_adagrad", "adagrad", "exact Adam", "dense momentum")]
    ours, theirs = (updated(UPDATED[name], chosen, kernels, row_types) for kernels in (cuda, cpu()))
    assert_same(ours, theirs)


def test_updates_follow_the_policy(cuda: Kernels) -> None:
    case = make_case(91, [(9, 16), (20, 3)], [0, 1, 0], 30, bad_share=0.3, out_of_range=ZERO)
    assert_same(updated(case, [OPTIMIZERS["adam"]], cuda), updated(case, [OPTIMIZERS["adam"]], cpu()))


@pytest.mark.parametrize("name", ["rowwise_adagrad", "dense Adam", "exact Adam"])
def test_bad_ids_and_last_steps_change_nothing(name: str, cuda: Kernels) -> None:
    good = make_case(92, [(50, 16), (20, 3)], [0, 1], 30, hotness=[2, 1])
    chosen = (library.Optimizer * 2)(OPTIMIZERS[name], OPTIMIZERS[name])
    bad_ids = good.ids.copy()
    bad_ids[-1] = 20
    cases = [(replace(good, ids=bad_ids), IdOutOfRangeError, r"id 20 of feature 1 \(sample 29, position 0")]
    if name == "exact Adam":
        cases.append((good, ArgumentError, r"row \d+ of table 1 is at step 99, and this is step 40"))
    for case, error, message in cases:
        trained = Trained([(50, 16), (20, 3)], list(chosen), cuda)
        trained.tables[1].last_steps = cuda.memory.put(np.full(20, 99, np.int32))
        before = trained.read()
        with pytest.raises(error, match=message):
            Call(case, cuda, cpu()).update(chosen, trained.tables)
        assert_same(trained.read(), before)


@pytest.mark.parametrize("shapes", [[], [(0, 4)], [(3, 5), (700, 33), (1, 1)]])
def test_the_squared_norm_equals_the_cpus(shapes: list[tuple[int, int]], cuda: Kernels) -> None:
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    dims = (ctypes.c_int64 * len(shapes))(*(dim for _, dim in shapes))
    buffer = library.SparseGradientBuffer * len(shapes)
    memory = cuda.memory
    on_device = buffer(*(library.SparseGradientBuffer(None, memory.put(r), len(r) + 4, -1) for r in rows))
    counts = memory.put(np.array([len(r) for r in rows], np.int64))
    norm, workspace = memory.allocate(8), cuda.workspace("rh_squared_norm_workspace_cuda", len(shapes))
    cuda.call("rh_squared_norm_cuda", on_device, dims, counts, len(shapes), norm, *workspace, None)
    truth = ctypes.c_double()
    on_host = buffer(*(library.SparseGradientBuffer(None, r.ctypes.data, len(r), len(r)) for r in rows))
    cpu().call("rh_squared_norm", on_host, dims, len(shapes), ctypes.byref(truth), None)
    assert memory.get(norm, (1,), np.float64)[0] == truth.value
