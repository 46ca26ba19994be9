"""Arrays in memory from rh_allocate: rows begin on 64 bytes, in huge pages where the system grants them."""

import ctypes
import weakref

import numpy as np

from rankhouse.kernels import library


def allocate(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """Returns an array of zeros. Its memory is given back when the array and all its views are gone."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = ctypes.c_void_p()
    library.check(library.load().rh_allocate(num_bytes, ctypes.byref(memory)))
    buffer = (ctypes.c_char * num_bytes).from_address(memory.value or 0)
    weakref.finalize(buffer, library.load().rh_free, memory, num_bytes)
    return np.frombuffer(buffer, dtype).reshape(shape)
