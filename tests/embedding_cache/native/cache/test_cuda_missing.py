"""The GPU's cache in a build without CUDA."""

import ctypes

import pytest

from rankhouse.kernels import library
from rankhouse.kernels.errors import UnsupportedError
from tests.embedding_cache.native.cache.caches import FUNCTIONS, load

CUDA_FUNCTIONS = [name for name in FUNCTIONS if name.endswith("_cuda") and "destroy" not in name]


@pytest.mark.skipif(bool(library.load().rh_built_with_cuda()), reason="this build has CUDA")
@pytest.mark.parametrize("function", CUDA_FUNCTIONS)
def test_a_build_without_cuda_says_so(function: str) -> None:
    nothing = [0 if kind is ctypes.c_int64 else None for kind in FUNCTIONS[function]]
    with pytest.raises(UnsupportedError, match="built without CUDA: build it where nvcc and a GPU are"):
        library.check(getattr(load(), function)(*nothing))
    load().rh_row_cache_destroy_cuda(None)
