"""Arrays on the GPU, or in the memory of an emulated one, as lookups take them; and the libraries of an emulation."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.embedding_cache import library as engine_library
from rankhouse.embedding_cache.engine import OpenVersion
from rankhouse.kernels import library as kernels_library
from tests.kernels import device_memory
from tests.kernels.device_memory import Kernels


class DeviceArray:
    """An array with __cuda_array_interface__."""

    def __init__(self, cuda: Kernels, array: NDArray[Any], **changes: Any) -> None:
        self._cuda, self._array, self.address = cuda, array, cuda.memory.put(array)
        data = (self.address, False)
        self.__cuda_array_interface__ = {
            "shape": array.shape, "typestr": array.dtype.str, "data": data, "version": 3, **changes
        }  # fmt: skip

    def get(self) -> NDArray[Any]:
        return self._cuda.memory.get(self.address, self._array.shape, self._array.dtype)


def look_up(cuda: Kernels, version: OpenVersion, ids: Any, lengths: NDArray[np.int32], **options: Any) -> NDArray[Any]:
    """Looks a batch up on the GPU, into memory that is full of other bits before."""
    out = DeviceArray(cuda, np.full((len(lengths[0]), version.embeddings_dim), np.nan, np.float32))
    version.lookup_cuda(ids, lengths, out=out, **options)
    return out.get()


@contextmanager
def emulated_libraries(engine: Path) -> Iterator[None]:
    """Has the package load an emulation's libraries: that of the engine, with the kernels' in the folder above."""
    paths = {engine.name: engine, "librankhouse_kernels.so": engine.parents[1] / "librankhouse_kernels.so"}

    def find(name: str, _package: ModuleType | None = None) -> Path:
        return paths[name]

    loads = (engine_library.load, kernels_library.load)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels_library, "find", find)
        patch.delenv("LD_PRELOAD", raising=False)  # programs that tests start need no sanitizer
        for load in loads:
            load.cache_clear()
        yield
        for load in loads:
            load.cache_clear()


@contextmanager
def cuda_engine() -> Iterator[Kernels]:
    """Gives a GPU and the library for it, or the emulation that the environment names. Skips where there is neither."""
    emulated = os.environ.get(device_memory.EMULATED_LIBRARY)
    with emulated_libraries(Path(emulated)) if emulated else nullcontext():
        found = device_memory.find_cuda()
        if found is None:
            pytest.skip("needs an NVIDIA GPU and a build with CUDA")
        yield found
