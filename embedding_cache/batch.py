"""A batch of ids as the compiled engine takes it, made of arrays."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache import library
from rankhouse.embedding_cache.device_arrays import has_dlpack_on_device
from rankhouse.embedding_cache.errors import BatchError
from rankhouse.kernels.library import COMBINERS

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def taken(value: Any, name: str) -> npt.NDArray[Any]:
    """Takes an array of NumPy, or of anything else that has DLPack, without copying it.

    Raises:
        BatchError: It is none, or lies on a GPU.
    """
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
        raise BatchError(f"{name} is a {type(value).__name__}; expected an array of NumPy, or one with DLPack")
    if has_dlpack_on_device(value):
        raise BatchError(
            f"{name} is a {type(value).__name__} on a GPU; expected an array on the host: copy it there, or use "
            "lookup_cuda, of an engine with the option device"
        )
    return np.from_dlpack(value)


def array_of(value: Any, name: str, dtypes: Sequence[type], num_dims: int) -> npt.NDArray[Any]:
    """Takes an array as `taken` does.

    Raises:
        BatchError: It is none, of another dtype or of another number of dimensions.
    """
    array = taken(value, name)
    if array.dtype not in dtypes or array.ndim != num_dims:
        known = " or ".join(np.dtype(dtype).name for dtype in dtypes)
        raise BatchError(f"{name} is {array.dtype} {list(array.shape)}; expected {known} of {num_dims} dimensions")
    return array


_Nothing = ctypes.c_char * 0


def address_of(array: npt.NDArray[Any]) -> int:
    """Returns where the elements of an array lie that are one after the other.

    A call of some microseconds feels how that is asked for: `array.ctypes` takes three times as long.
    """
    memory: Any = array  # a buffer, which its stubs do not say
    try:
        return ctypes.addressof(_Nothing.from_buffer(memory))
    except (TypeError, ValueError):  # It cannot be written to.
        return int(array.ctypes.data)


class NativeBatch:
    """An rh_engine_batch, and the arrays that it points to.

    Attributes:
        native: The rh_engine_batch.
        batch_size: B.

    Raises:
        BatchError: An array has another dtype or shape than said in `OpenVersion.lookup`.
    """

    def __init__(
        self,
        num_features: int,
        ids: Any,
        lengths: Any,
        offsets: Any,
        weights: Any,
        combiners: Sequence[str] | None,
    ) -> None:
        self._num_features = num_features
        ids = np.ascontiguousarray(array_of(ids, "ids", (np.int64, np.int32), 1))
        self.native = library.Batch(ids=address_of(ids), num_ids=len(ids), id_type=int(ids.dtype == np.int32))
        self._arrays = [ids]
        if (lengths is None) == (offsets is None):
            raise BatchError("expected either lengths or offsets")
        if lengths is not None:
            self.batch_size = self._take_lengths(lengths)
        else:
            self.batch_size = self._take_offsets(offsets)
        self.native.batch_size = self.batch_size
        if weights is not None:
            self._take_weights(weights)
        if combiners is not None:
            self._take_combiners(combiners)

    def ids_per_feature(self) -> list[int]:
        """How many ids each feature has, if its bags are right: the engine checks that."""
        bags = self._arrays[1]
        if self.native.lengths:
            counts = bags.sum(axis=1, dtype=np.int64)
        else:
            counts = np.diff(bags[np.arange(self._num_features + 1) * self.batch_size])
        return [min(max(0, int(count)), self.native.num_ids) for count in counts]

    def _keep(self, array: npt.NDArray[Any]) -> int:
        array = np.ascontiguousarray(array)
        self._arrays.append(array)
        return address_of(array)

    def _take_lengths(self, lengths: Any) -> int:
        lengths = taken(lengths, "lengths")
        if lengths.ndim != 2 or len(lengths) != self._num_features:
            raise BatchError(
                f"lengths has shape {list(lengths.shape)}; expected [{self._num_features}, B], one row for each of the "
                "version's features"
            )
        self.native.lengths = self._keep(array_of(lengths, "lengths", (np.int32,), 2))
        return int(lengths.shape[1])

    def _take_offsets(self, offsets: Any) -> int:
        offsets = array_of(offsets, "offsets", (np.int64,), 1)
        num_bags = len(offsets) - 1
        if num_bags < 0 or (num_bags % self._num_features if self._num_features else num_bags):
            raise BatchError(f"offsets has {len(offsets)} elements; expected F * B + 1 with F = {self._num_features}")
        self.native.offsets = self._keep(offsets)
        return num_bags // self._num_features if self._num_features else 0

    def _take_weights(self, weights: Any) -> None:
        weights = array_of(weights, "weights", (np.float32,), 1)
        if len(weights) != self.native.num_ids:
            raise BatchError(f"there are {len(weights)} weights, there are {self.native.num_ids} ids; expected as many")
        self.native.weights = self._keep(weights)

    def _take_combiners(self, combiners: Sequence[str]) -> None:
        if len(combiners) != self._num_features or not set(combiners) <= set(COMBINERS):
            raise BatchError(
                f"combiners are {list(combiners)}; expected one of {', '.join(COMBINERS)} for each of the "
                f"{self._num_features} features"
            )
        numbers = np.array([COMBINERS[combiner] for combiner in combiners], np.int32)
        self.native.combiners = self._keep(numbers)
