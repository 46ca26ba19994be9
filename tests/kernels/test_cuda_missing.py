"""The CUDA operations of a build that has none."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from rankhouse.kernels import library
from rankhouse.kernels.errors import UnsupportedError

CALLS_WITHOUT_CUDA: dict[str, Callable[[Any], int]] = {
    "lookup": lambda kernels: kernels.rh_pooled_lookup_cuda(library.Lookup(), None, None, 0, None),
    "lookup workspace": lambda kernels: kernels.rh_pooled_lookup_workspace_cuda(
        library.Lookup(), ctypes.byref(ctypes.c_int64())
    ),
    "gradient": lambda kernels: kernels.rh_pooled_lookup_gradient_cuda(
        library.Lookup(), None, None, None, None, 0, None
    ),
    "lookup check": lambda kernels: kernels.rh_lookup_check_cuda(library.Lookup(), None, None, None),
    "apply": lambda kernels: kernels.rh_apply_cuda(None, 0, None, 0, None),
    "apply check": lambda kernels: kernels.rh_apply_check_cuda(None, 0, None, None),
    "unique": lambda kernels: kernels.rh_unique_cuda(None, 0, None, None, None, None, None, 0, None),
}


@pytest.mark.skipif(bool(library.load().rh_built_with_cuda()), reason="this build has CUDA")
@pytest.mark.parametrize("call", CALLS_WITHOUT_CUDA)
def test_a_build_without_cuda_says_so(call: str) -> None:
    with pytest.raises(UnsupportedError, match="built without CUDA: build it where nvcc and a GPU are"):
        library.check(CALLS_WITHOUT_CUDA[call](library.load()))
