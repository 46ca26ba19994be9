"""Where the CUDA operations run in tests: on the first GPU, or emulated on the host (tests/kernels/cuda_emulation)."""

import ctypes
import os
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.errors import STATUS_ERRORS, InternalError

# The path of a library with emulated CUDA operations, for a run of these tests without a GPU.
EMULATED_LIBRARY = "RANKHOUSE_EMULATED_CUDA_LIBRARY"


class Memory(Protocol):
    """Memory that kernels read and write. Everything is freed with the process."""

    def allocate(self, num_bytes: int, *, fill: int = 0xAB) -> int: ...
    def put(self, array: NDArray[Any]) -> int: ...
    def get(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]: ...
    def new_stream(self) -> int | None: ...


class Host:
    """Memory of the host, each block by itself, so that sanitizers see accesses beyond it."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)

    def allocate(self, num_bytes: int, *, fill: int = 0xAB) -> int:
        address = ctypes.c_void_p()
        assert self._libc.posix_memalign(ctypes.byref(address), ctypes.c_size_t(256), ctypes.c_size_t(num_bytes)) == 0
        if num_bytes:
            ctypes.memset(address, fill, num_bytes)
        return address.value or 0

    def put(self, array: NDArray[Any]) -> int:
        source = np.ascontiguousarray(array)
        address = self.allocate(source.nbytes)
        ctypes.memmove(address, source.ctypes.data, source.nbytes)
        return address

    def get(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)
        return array

    def new_stream(self) -> None:
        """There are none: calls are done when they return."""


class Gpu:
    """Memory of the first GPU, through the driver's own library, which is there wherever a GPU is."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, num_bytes: int, *, fill: int = 0xAB) -> int:
        """Returns the address of new memory, full of `fill`, so that what nobody wrote is seen."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, num_bytes)))
        self._call("cuMemsetD8_v2", address, ctypes.c_ubyte(fill), ctypes.c_size_t(max(1, num_bytes)))
        return address.value

    def put(self, array: NDArray[Any]) -> int:
        address = self.allocate(array.nbytes)
        if array.nbytes:
            source = np.ascontiguousarray(array)
            pointer, size = ctypes.c_void_p(source.ctypes.data), ctypes.c_size_t(array.nbytes)
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(address), pointer, size)
        return address

    def get(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        if array.nbytes:
            pointer, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            self._call("cuMemcpyDtoH_v2", pointer, ctypes.c_uint64(address), size)
        return array

    def new_stream(self) -> int | None:
        """Returns a stream which the other functions here wait for."""
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(0))
        return stream.value

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._driver, function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function} failed with CUDA driver error {status}")


class Kernels:
    """A library's functions, and the memory they work on. A call that fails raises its error."""

    def __init__(self, functions: ctypes.CDLL, memory: Memory, *, is_cuda: bool) -> None:
        self.functions, self.memory, self.is_cuda = functions, memory, is_cuda

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.functions, function)(*arguments)
        if status != 0:
            raise STATUS_ERRORS.get(status, InternalError)(self.functions.rh_last_error().decode())

    def workspace(self, function: str, *arguments: Any) -> tuple[int, int]:
        size = ctypes.c_int64()
        self.call(function, *arguments, ctypes.byref(size))
        return self.memory.allocate(size.value), size.value


@cache
def cpu() -> Kernels:
    return Kernels(library.load(), Host(), is_cuda=False)


@cache
def find_cuda() -> Kernels | None:
    """Returns the CUDA operations, or None where there is no GPU or the build has none."""
    emulated = os.environ.get(EMULATED_LIBRARY)
    if emulated:
        functions = ctypes.CDLL(emulated)
        library.declare(functions)
        return Kernels(functions, Host(), is_cuda=True)
    if not library.load().rh_built_with_cuda():
        return None
    try:
        return Kernels(library.load(), Gpu(), is_cuda=True)
    except (OSError, RuntimeError):
        return None
