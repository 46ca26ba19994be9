"""Arrays on a GPU as the host sees them: these lie at addresses that nobody reads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.device_arrays import device_view, lie_on_device
from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.errors import BatchError
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.kernels import library
from rankhouse.kernels.errors import UnsupportedError
from tests.embedding_cache.random_store import random_batch, write_random

ADDRESS = 1 << 40


class OnDevice:
    """An array there."""

    def __init__(self, shape: tuple[int, ...], typestr: str = "<f4", **changes: Any) -> None:
        data = (ADDRESS, False)
        self.__cuda_array_interface__ = {"shape": shape, "typestr": typestr, "data": data, "version": 3, **changes}


class DlpackOnDevice:
    """An array there that has DLPack only, as TensorFlow's."""

    def __dlpack__(self) -> object:
        raise BufferError("nobody takes it")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


@pytest.mark.parametrize(
    ("array", "shape", "dtype"),
    [
        (OnDevice((3, 5)), (3, 5), np.float32),
        (OnDevice((7,), "<i8", strides=None), (7,), np.int64),
        (OnDevice((2, 3), "<i4", strides=(12, 4)), (2, 3), np.int32),
    ],
)
def test_views_have_address_shape_and_dtype(array: OnDevice, shape: tuple[int, ...], dtype: type) -> None:
    view = device_view(array, "ids")
    assert (view.ctypes.data, view.shape) == (ADDRESS, shape)
    assert view.dtype == dtype


def test_an_array_without_elements_has_no_address() -> None:
    assert device_view(OnDevice((0, 4), data=(0, False)), "ids").shape == (0, 4)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), "ids is a ndarray; expected an array on a GPU, with __cuda_array_interface__"),
        ([1, 2], "ids is a list"),
        (
            DlpackOnDevice(),
            r"ids is a DlpackOnDevice on a device with DLPack only; expected .* by cupy.from_dlpack\(ids\) or torch",
        ),
        (OnDevice((3, 5), strides=(40, 8)), r"ids has strides \[40, 8\]; expected its elements one after the other"),
    ],
)
def test_what_is_no_array_there_is_refused(array: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        device_view(array, "ids")


def test_a_batch_lies_in_one_place() -> None:
    host, device = np.zeros(3), OnDevice((3,))
    assert not lie_on_device({"ids": host, "weights": None})
    assert lie_on_device({"ids": device, "offsets": device, "weights": None})
    with pytest.raises(BatchError, match="ids and weights lies on a GPU, lengths on the host; expected all"):
        lie_on_device({"ids": device, "lengths": host, "weights": device})
    with pytest.raises(BatchError, match="lengths is a DlpackOnDevice on a device with DLPack only"):
        lie_on_device({"ids": device, "lengths": DlpackOnDevice(), "weights": None})


def test_the_cpus_lookup_takes_no_array_on_a_gpu(tmp_path: Path) -> None:
    version = write_random(VersionStore(tmp_path / "store"), tmp_path / "parts")
    with Engine().open(version.store, version.name) as found:
        _, lengths = random_batch(version, 2)
        with pytest.raises(BatchError, match=r"ids is a DlpackOnDevice on a GPU; .* copy it there, or use lookup_cuda"):
            found.lookup(DlpackOnDevice(), lengths)


@pytest.mark.skipif(bool(library.load().rh_built_with_cuda()), reason="this build has CUDA")
def test_a_build_without_cuda_names_the_option() -> None:
    with pytest.raises(UnsupportedError, match="'device' is 0, but this library was built without CUDA: leave the"):
        Engine(device=0)


def test_an_engine_without_a_gpu_says_so(tmp_path: Path) -> None:
    version = write_random(VersionStore(tmp_path / "store"), tmp_path / "parts")
    with Engine().open(version.store, version.name) as found:
        batch, out = random_batch(version, 2), OnDevice((2, found.embeddings_dim))
        with pytest.raises(UnsupportedError, match="this engine has no GPU: create it with the option 'device'"):
            found.lookup_cuda(*batch, out=out)
