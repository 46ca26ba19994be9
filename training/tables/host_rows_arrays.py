"""Arrays that hold the rows of a table in host memory, or in a file that is mapped into it."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.training.errors import HostRowsError

_BLOCK_BYTES = 64 << 20


def make_array(shape: tuple[int, ...], dtype: Any, *, fill: float, folder: Path | None, name: str) -> npt.NDArray[Any]:
    """Makes an array with one value everywhere.

    Args:
        shape: Rows first, then the width if there is one.
        dtype: Of NumPy.
        fill: The value.
        folder: Where its file lies, which has no name and is gone with the process, however that ends; None: it lies
            in memory.
        name: What it holds, for messages.

    Raises:
        HostRowsError: The folder is not there, cannot be written, or has no room. Room is taken at once: a mapped file
            that finds none later would kill the process.
    """
    if folder is None:
        return np.full(shape, fill, dtype) if fill else np.zeros(shape, dtype)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            array = np.memmap(file, dtype, mode="r+", shape=shape)
    except OSError as exc:
        raise HostRowsError(
            f"{folder}: cannot hold the {num_bytes / 2**20:,.1f} MiB of {name} ({exc.strerror}); name a folder of a "
            "disk that has room"
        ) from exc
    if fill:
        step = max(1, _BLOCK_BYTES * shape[0] // num_bytes)
        for start in range(0, shape[0], step):
            array[start : start + step] = fill
    return array
