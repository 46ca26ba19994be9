"""The CUDA operations through the C interface, against the CPU's: `pytest -m gpu tests/kernels`.

test_cuda_emulation.py runs the same tests without a GPU.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError
from rankhouse.kernels.reference.rows import dequantize_rows, quantize_rows
from tests.kernels.device_memory import Kernels, cpu, find_cuda
from tests.kernels.lookup_cases import (
    CLIP,
    ERROR,
    MEAN,
    NONE,
    OOV_ROW,
    SQRTN,
    SUM,
    ZERO,
    Call,
    LookupCase,
    backward_cases,
    forward_cases,
    make_case,
)

FORWARD, BACKWARD = forward_cases(), backward_cases()

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda() -> Kernels:
    found = find_cuda()
    if found is None:
        pytest.skip("needs an NVIDIA GPU and a build with CUDA")
    return found


@pytest.mark.parametrize("name", FORWARD)
def test_lookups_equal_the_cpus_bit_for_bit(name: str, cuda: Kernels) -> None:
    rows, bad_ids = Call(FORWARD[name], cuda, cpu()).pooled_lookup()
    true_rows, true_bad_ids = Call(FORWARD[name], cpu(), cpu()).pooled_lookup()
    for row, truth in zip(rows, true_rows, strict=True):
        np.testing.assert_array_equal(row, truth)
    assert bad_ids == true_bad_ids


@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_equal_the_cpus_bit_for_bit(name: str, cuda: Kernels) -> None:
    gradients = Call(BACKWARD[name], cuda, cpu()).gradient()
    for gradient, truth in zip(gradients, Call(BACKWARD[name], cpu(), cpu()).gradient(), strict=True):
        np.testing.assert_array_equal(gradient.ids, truth.ids)
        np.testing.assert_array_equal(gradient.rows, truth.rows)


def test_keys_of_more_than_32_bits(cuda: Kernels) -> None:
    for name in ("hot rows", "widths, weights"):
        calls = [Call(BACKWARD[name], kernels, cpu()) for kernels in (cuda, cpu())]
        for call in calls:
            for table in call.tables:
                table.num_rows, table.rows = 2**40, None
        gradients, truths = (call.gradient(capacity=len(call.case.ids)) for call in calls)
        for gradient, truth in zip(gradients, truths, strict=True):
            np.testing.assert_array_equal(gradient.ids, truth.ids)
            np.testing.assert_array_equal(gradient.rows, truth.rows)


def true_weight_gradient(case: LookupCase, gradients: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """In float64, from the formulas of rankhouse/lookup.h; RH_NONE has none."""
    assert case.weights is not None
    out = np.zeros(len(case.ids))
    for bag in range(len(case.offsets) - 1):
        f, sample = divmod(bag, case.batch_size)
        at = slice(case.offsets[bag], case.offsets[bag + 1])
        if case.combiners[f] == NONE or at.start == at.stop:
            continue
        w = case.weights[at].astype(np.float64)
        products = case.tables[case.feature_tables[f]][case.ids[at]].astype(np.float64) @ gradients[f][sample]
        by_size = case.combiners[f] == SUM or case.weighting == 1
        size = {SUM: 1.0, MEAN: len(w), SQRTN: np.sqrt(len(w))}[case.combiners[f]]
        divisor = size if by_size else w.sum() if case.combiners[f] == MEAN else np.sqrt((w**2).sum())
        if divisor == 0:
            continue
        pooled = 0.0 if by_size else (w * products).sum() / divisor
        out[at] = (products - (pooled if case.combiners[f] == MEAN else w * pooled / divisor)) / divisor
    return out


@pytest.mark.parametrize("name", [name for name, case in BACKWARD.items() if case.weights is not None])
def test_gradients_of_weights_follow_their_formulas(name: str, cuda: Kernels) -> None:
    call = Call(BACKWARD[name], cuda, cpu())
    truth = true_weight_gradient(call.case, call.gradients())
    np.testing.assert_allclose(call.weight_gradient(), truth, rtol=1e-4, atol=1e-4)


def test_gradients_of_weights_read_rows_of_16_bits(cuda: Kernels) -> None:
    """With the bits of float32 rows of the same values."""
    shapes = [(50, 16), (20, 3), (9, 300)]
    case = make_case(8, shapes, [0, 1, 2, 0], 30, weighted=True)
    for row_type in ("float16", "bfloat16"):
        same = [dequantize_rows(quantize_rows(table, row_type)) for table in case.tables]
        wide, narrow = (
            Call(replace(case, tables=same, types=types), cuda, cpu()).weight_gradient()
            for types in ((), (library.ROW_TYPES[row_type],))
        )
        np.testing.assert_array_equal(narrow, wide)
    with pytest.raises(ArgumentError, match="table 0 has rows of row-wise int8: the gradient of weights takes"):
        Call(replace(case, types=(library.ROW_TYPES["int8"],)), cuda, cpu()).weight_gradient()


def with_bad_ids(bad_id: int, *, fixed: bool) -> LookupCase:
    """Feature 1 looks up table 0 of 50 rows; every bag holds 3 ids, and those of two samples a bad one."""
    case = make_case(0, [(50, 16), (20, 3)], [1, 0], 5, hotness=[3, 3], out_of_range=ERROR)
    ids = case.ids.copy()
    ids[[(1 * 5 + 2) * 3 + 1, (1 * 5 + 4) * 3]] = bad_id
    return LookupCase(**{**vars(case), "ids": ids, "hotness": [3, 3] if fixed else None})


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("bad_id", [-1, 50, 2**63 - 1, -(2**63)])
def test_bad_ids_are_named_and_counted(bad_id: int, fixed: bool, cuda: Kernels) -> None:
    message = rf"id {bad_id} of feature 1 \(sample 2, position 1 in its bag\) is out of range: table 0 has 50 rows"
    call = Call(with_bad_ids(bad_id, fixed=fixed), cuda, cpu())
    with pytest.raises(IdOutOfRangeError, match=message):
        call.pooled_lookup()
    assert call.bad_ids == [{"count": 2, "feature": 1, "sample": 2, "position": 1, "id": bad_id}, {"count": 0}]
    with pytest.raises(IdOutOfRangeError, match=message):
        call.gradient()


def test_bad_offsets_and_capacities_are_named(cuda: Kernels) -> None:
    case = make_case(1, [(50, 16)], [0], 33)
    with pytest.raises(ArgumentError, match="the gradient of table 0 has more unique ids than its capacity"):
        Call(case, cuda, cpu()).gradient(capacity=2)
    case.offsets[5] = 10**6
    for operation in (Call.pooled_lookup, Call.gradient):
        with pytest.raises(ArgumentError, match=r"offsets of feature 0, sample 4 run from \d+ to 1000000"):
            operation(Call(case, cuda, cpu()))
    case.offsets[5] = case.offsets[4]
    case.offsets[-1] -= 1
    for operation in (Call.pooled_lookup, Call.gradient):
        with pytest.raises(ArgumentError, match=r"offsets run from 0 to \d+: expected 0 to the number of ids"):
            operation(Call(case, cuda, cpu()))


def test_ids_without_bags_are_refused(cuda: Kernels) -> None:
    for operation in (Call.pooled_lookup, Call.gradient):
        call = Call(make_case(1, [(50, 16)], [0], 33), cuda, cpu())
        call.lookup.batch_size = 0
        with pytest.raises(ArgumentError, match=r"there are \d+ ids, but no bags"):
            operation(call)


def test_small_workspaces_are_refused(cuda: Kernels) -> None:
    call = Call(make_case(1, [(50, 16)], [0], 33), cuda, cpu())
    out, _ = call.feature_rows(None)
    with pytest.raises(ArgumentError, match="workspace has 100 bytes: expected what the"):
        cuda.call("rh_pooled_lookup_cuda", call.lookup, out, cuda.memory.allocate(100), 100, None)
    with pytest.raises(ArgumentError, match="workspace is NULL"):
        cuda.call("rh_pooled_lookup_cuda", call.lookup, out, None, 100, None)


@pytest.mark.parametrize("policy", [ZERO, CLIP, OOV_ROW])
def test_gradients_follow_the_policies(policy: int, cuda: Kernels) -> None:
    case = make_case(90, [(9, 16), (20, 3)], [0, 1, 0], 30, bad_share=0.3, out_of_range=policy, weighted=True)
    for gradient, truth in zip(Call(case, cuda, cpu()).gradient(), Call(case, cpu(), cpu()).gradient(), strict=True):
        np.testing.assert_array_equal(gradient.ids, truth.ids)
        np.testing.assert_array_equal(gradient.rows, truth.rows)


UNIQUE_KEYS: dict[str, NDArray[np.int64]] = {
    "none": np.zeros(0, np.int64),
    "one": np.array([-5]),
    "ends": np.array([2**63 - 1, -(2**63), 0, -1, 2**63 - 1, -(2**63)]),
    "one key": np.full(1000, 7),
    "many": np.random.default_rng(0).integers(-300, 300, 3000),
}


@pytest.mark.parametrize("name", UNIQUE_KEYS)
def test_unique_equals_numpys(name: str, cuda: Kernels) -> None:
    keys, memory = UNIQUE_KEYS[name], cuda.memory
    n = len(keys)
    unique, inverse, counts, count = (memory.allocate(8 * size) for size in (n, n, n, 1))
    workspace, size = cuda.workspace("rh_unique_workspace_cuda", n)
    cuda.call("rh_unique_cuda", memory.put(keys), n, unique, inverse, counts, count, workspace, size, None)
    truth = np.unique(keys, return_inverse=True, return_counts=True)
    num_unique = int(memory.get(count, (1,), np.int64)[0])
    assert num_unique == len(truth[0])
    np.testing.assert_array_equal(memory.get(unique, (num_unique,), np.int64), truth[0])
    np.testing.assert_array_equal(memory.get(inverse, (n,), np.int64), truth[1])
    np.testing.assert_array_equal(memory.get(counts, (num_unique,), np.int64), truth[2])
    cuda.call("rh_unique_cuda", memory.put(keys), n, unique, None, None, count, workspace, size, None)
    np.testing.assert_array_equal(memory.get(unique, (num_unique,), np.int64), truth[0])


@pytest.mark.parametrize("dim", [1, 3, 16, 70])
@pytest.mark.parametrize(("type_", "extra"), [(0, 0), (0, 4), (1, 0), (1, 2), (2, 0), (3, 0), (3, 1)])
def test_conversions_equal_the_cpus_bit_for_bit(type_: int, extra: int, dim: int, cuda: Kernels) -> None:
    rows = (np.random.default_rng(dim).standard_normal((13, dim)) * 10.0 ** (dim % 9 - 4)).astype(np.float32)
    stride = cuda.functions.rh_row_bytes(type_, dim) + extra
    packed, workspace = cuda.memory.allocate(13 * stride), cuda.workspace("rh_quantize_rows_workspace_cuda", 13)
    cuda.call("rh_quantize_rows_cuda", cuda.memory.put(rows), *rows.shape, type_, stride, packed, *workspace, None)
    cuda.call("rh_quantize_rows_check_cuda", workspace[0], None)
    truth = np.full((13, stride), 0xAB, np.uint8)
    cpu().call("rh_quantize_rows", rows.ctypes.data, *rows.shape, type_, stride, truth.ctypes.data, None)
    np.testing.assert_array_equal(cuda.memory.get(packed, truth.shape, np.uint8), truth)
    back, true_back = cuda.memory.allocate(rows.nbytes), np.empty_like(rows)
    cuda.call("rh_dequantize_rows_cuda", packed, *rows.shape, type_, stride, back, None)
    cpu().call("rh_dequantize_rows", truth.ctypes.data, *rows.shape, type_, stride, true_back.ctypes.data, None)
    np.testing.assert_array_equal(cuda.memory.get(back, rows.shape, np.float32), true_back)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_without_an_int8_form_are_named(bad: float, cuda: Kernels) -> None:
    rows = np.ones((5, 40), np.float32)
    rows[[3, 4], 37] = bad
    packed, workspace = cuda.memory.allocate(5 * 48), cuda.workspace("rh_quantize_rows_workspace_cuda", 5)
    cuda.call("rh_quantize_rows_cuda", cuda.memory.put(rows), 5, 40, 3, 0, packed, *workspace, None)
    with pytest.raises(ArgumentError, match="row 3, column 37 is"):
        cuda.call("rh_quantize_rows_check_cuda", workspace[0], None)


@pytest.mark.parametrize("dim", [1, 16, 70])
@pytest.mark.parametrize("num_embeddings", [0, 1, 4, 26, 33, 70])
@pytest.mark.parametrize(("has_bottom", "itself"), [(1, 0), (0, 0), (1, 1)])
def test_interactions_are_the_cpus(dim: int, num_embeddings: int, has_bottom: int, itself: int, cuda: Kernels) -> None:
    rng = np.random.default_rng(dim)
    shape = library.Interaction(5, dim, num_embeddings, has_bottom, itself)
    width = cuda.functions.rh_dot_interaction_width(shape)
    sizes = [5 * dim * has_bottom, 5 * dim * num_embeddings, 5 * width]
    bottom, embeddings, grad = (rng.standard_normal(size).astype(np.float32) for size in sizes)
    results = []
    for kernels, suffix in ((cuda, "_cuda"), (cpu(), "")):
        memory = kernels.memory
        inputs = [memory.put(array) for array in (bottom, embeddings)]
        out, bottom_grad, embeddings_grad = (memory.allocate(4 * sizes[i]) for i in (2, 0, 1))
        kernels.call(f"rh_dot_interaction{suffix}", shape, *inputs, out, None)
        gradients = (memory.put(grad), bottom_grad, embeddings_grad)
        kernels.call(f"rh_dot_interaction_gradient{suffix}", shape, *inputs, *gradients, None)
        addresses = (out, bottom_grad, embeddings_grad)
        results.append([memory.get(a, (sizes[i],), np.float32) for a, i in zip(addresses, (2, 0, 1), strict=True)])
    for result, truth in zip(*results, strict=True):
        np.testing.assert_allclose(result, truth, rtol=1e-4, atol=1e-4)
