"""Memory of the first GPU, through the driver's own library, which is there wherever a GPU is."""

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Device:
    """Copies arrays to the GPU and back. Everything is freed with the process."""

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

    def get(self, address: int, shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
        array = np.empty(shape, dtype)
        if array.nbytes:
            pointer, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
            self._call("cuMemcpyDtoH_v2", pointer, ctypes.c_uint64(address), size)
        return array

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._driver, function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function} failed with CUDA driver error {status}")


def find_device() -> Device | None:
    """Returns the first GPU, or None where there is none."""
    try:
        return Device()
    except (OSError, RuntimeError):
        return None
