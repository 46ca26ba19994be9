"""Arrays that lie in a GPU's memory, by the interface that PyTorch, CuPy, Numba and JAX have in common.

https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, version 3.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.errors import BatchError

# Devices of dlpack.h whose memory the host reads: kDLCPU, kDLCUDAHost, kDLROCMHost, kDLCUDAManaged.
_READ_BY_HOST = (1, 3, 11, 13)


def has_dlpack_on_device(value: Any) -> bool:
    """Returns whether an array says by DLPack that it lies in memory of a device, as a GPU's."""
    return hasattr(value, "__dlpack_device__") and int(value.__dlpack_device__()[0]) not in _READ_BY_HOST


def lie_on_device(arrays: Mapping[str, Any]) -> bool:
    """Returns whether arrays lie on a GPU, rather than on the host. None is no array.

    Raises:
        BatchError: Some do, others do not; or one is there and has DLPack only.
    """
    for name, array in arrays.items():
        _check_interface(array, name)
    places = {name: hasattr(array, "__cuda_array_interface__") for name, array in arrays.items() if array is not None}
    if len(set(places.values())) > 1:
        there = " and ".join(name for name, on_device in places.items() if on_device)
        here = " and ".join(name for name, on_device in places.items() if not on_device)
        raise BatchError(f"{there} lies on a GPU, {here} on the host; expected all arrays of a batch in one place")
    return any(places.values())


def device_view(value: Any, name: str) -> npt.NDArray[Any]:
    """Describes an array on a GPU by one of NumPy at the same address, so that it can be handed to the C interface.

    Its address, dtype and shape are good, but nobody on the host may read its elements. It does not keep `value`.

    Raises:
        BatchError: It is none, or its elements do not lie one after the other.
    """
    _check_interface(value, name)
    if not hasattr(value, "__cuda_array_interface__"):
        raise BatchError(
            f"{name} is a {type(value).__name__}; expected an array on a GPU, with __cuda_array_interface__"
        )
    interface = value.__cuda_array_interface__
    shape, dtype = tuple(interface["shape"]), np.dtype(interface["typestr"])
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    if not num_bytes:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * num_bytes).from_address(interface["data"][0])
    view: npt.NDArray[Any] = np.ndarray(shape, dtype, buffer=memoryview(memory))
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != view.strides:
        raise BatchError(f"{name} has strides {list(strides)}; expected its elements one after the other")
    return view


def _check_interface(value: Any, name: str) -> None:
    """Refuses an array on a device that has DLPack only: its memory would be this call's to release, on that stream."""
    if has_dlpack_on_device(value) and not hasattr(value, "__cuda_array_interface__"):
        raise BatchError(
            f"{name} is a {type(value).__name__} on a device with DLPack only; expected an array with "
            f"__cuda_array_interface__: make one of it by cupy.from_dlpack({name}) or torch.from_dlpack({name})"
        )
