"""Tensor files: safetensors, written durably and read by memory mapping.

The only importer of safetensors. `write_tensors` is for a few arrays that are in memory, `write_tensor_blocks` for one
tensor of any size that arrives block by block, `stream_tensors` for several under a name that does not count yet. All
give files that every safetensors reader opens.

FORMAT.md gives the files byte by byte.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError
from rankhouse.embedding_cache.format.files import FileRecord, flush

# A tensor written by blocks begins on a page, so that its rows are aligned for vector loads, direct I/O and pinning.
DATA_ALIGNMENT = 4096

LENGTH_BYTES = 8  # The file begins with the header's length, an unsigned 64-bit little-endian integer.
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_DTYPES["BF16"] = np.dtype("<u2")  # NumPy has no bfloat16: its bits.


@dataclass(frozen=True)
class TensorFile:
    """A tensor file, opened.

    Attributes:
        tensors: The arrays by name: read-only, loaded from the disk page by page when touched.
        codes: The format's name for the dtype of each, such as "F32"; "BF16" is read as uint16.
        metadata: The texts kept beside them.
    """

    tensors: Mapping[str, npt.NDArray[Any]]
    codes: Mapping[str, str]
    metadata: Mapping[str, str]


def write_tensors(
    path: Path | str, tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes arrays to a file that appears complete or not at all.

    Args:
        path: The file; an older one is replaced.
        tensors: The arrays by name: booleans, integers or floats of any shape.
        metadata: Texts to keep beside them.

    Raises:
        ContentError: An array has a dtype that the format does not know.
    """
    path = Path(path)
    for name, tensor in tensors.items():
        _code(path, name, tensor.dtype)
    # The library writes a strided array's memory as it lies, so each is made contiguous first.
    arrays = {name: tensor if tensor.flags.c_contiguous else tensor.copy(order="C") for name, tensor in tensors.items()}
    temporary = _temporary(path)
    safetensors.numpy.save_file(arrays, temporary, metadata=dict(metadata) if metadata else None)
    flush(temporary)
    os.replace(temporary, path)
    flush(path.parent)


def write_tensor_blocks(
    path: Path | str,
    name: str,
    blocks: Iterable[npt.NDArray[Any]],
    *,
    shape: tuple[int, ...],
    dtype: Any = np.float32,
    metadata: Mapping[str, str] | None = None,
) -> FileRecord:
    """Writes one tensor that arrives in blocks of rows, in the memory of one block.

    Args:
        path: The file, which appears when it is complete; an older one is replaced.
        name: The tensor's name.
        blocks: Arrays [n, *shape[1:]] of `dtype`, or uint16 with the bits of bfloat16, whose rows add up to shape[0].
        shape: The shape of the tensor.
        dtype: Its dtype, also bfloat16 of a library that adds it to NumPy.
        metadata: Texts to keep beside it.

    Returns:
        The file's size and checksum, taken while writing.

    Raises:
        ContentError: A block has another dtype or width, or the rows do not add up.
    """
    path = Path(path)
    temporary = _temporary(path)
    record = stream_tensors(temporary, [BlockTensor(name, _code(path, name, dtype), shape, blocks)], metadata)
    os.replace(temporary, path)
    flush(path.parent)
    return record


@dataclass(frozen=True)
class BlockTensor:
    """A tensor to be written in blocks.

    Attributes:
        name: Its name.
        code: The format's name for its dtype, such as "F32"; blocks of "BF16" are of uint16.
        shape: Its shape.
        blocks: Arrays [n, *shape[1:]] whose rows add up to shape[0].
    """

    name: str
    code: str
    shape: tuple[int, ...]
    blocks: Iterable[npt.NDArray[Any]]


def stream_tensors(path: Path, tensors: Sequence[BlockTensor], metadata: Mapping[str, str] | None = None) -> FileRecord:
    """Writes tensors that arrive in blocks, one after the other, in the memory of one block.

    The file grows under its name, and goes if that fails; it is on the disk at the end, but its name may not be. It is
    hashed in a second thread while it is written.

    Args:
        path: The file.
        tensors: The tensors in their order; the first begins on a page.
        metadata: Texts to keep beside them.

    Returns:
        The file's size and checksum.

    Raises:
        ContentError: A block has another dtype or width, or the rows do not add up.
    """
    header = _header(tensors, metadata)
    digest, size = hashlib.sha256(header), len(header)
    try:
        with open(path, "wb") as file, ThreadPoolExecutor(1) as hasher:
            file.write(header)
            for block in chain.from_iterable(_checked(path, tensor) for tensor in tensors):
                # A flat view of bytes, because neither files nor digests take arrays without elements otherwise.
                content = np.ascontiguousarray(block).reshape(-1).view(np.uint8).data
                hashed = hasher.submit(digest.update, content)
                file.write(content)
                hashed.result()
                size += len(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileRecord(bytes=size, sha256=digest.hexdigest())


def read_tensors(path: Path | str) -> dict[str, npt.NDArray[Any]]:
    """Maps a file's arrays into memory: `open_tensors(path).tensors`."""
    return dict(open_tensors(path).tensors)


def open_tensors(path: Path | str) -> TensorFile:
    """Maps a file's arrays into memory.

    Raises:
        CorruptFileError: The file is missing, or not a well-formed tensor file.
    """
    path = Path(path)
    entries, data_begin = _read_header(path)
    metadata = entries.pop("__metadata__", {})
    if any(prod(entry["shape"]) for entry in entries.values()):
        data = np.memmap(path, mode="r", dtype=np.uint8, offset=data_begin).view(np.ndarray)
    else:  # An empty stretch cannot be mapped.
        data = _frozen(np.empty(0, np.uint8))
    tensors = {}
    for name, entry in entries.items():
        begin, end = entry["data_offsets"]
        tensors[name] = data[begin:end].view(_dtype(path, name, entry)).reshape(entry["shape"])
    return TensorFile(tensors, {name: entry["dtype"] for name, entry in entries.items()}, metadata)


def _checked(path: Path, tensor: BlockTensor) -> Iterator[npt.NDArray[Any]]:
    """Passes a tensor's blocks on, if they are its own."""
    dtype, shape, num_rows = _DTYPES[tensor.code], tensor.shape, 0
    for block in tensor.blocks:
        if block.dtype != dtype or block.shape[1:] != shape[1:]:
            raise ContentError(
                f"{path}: tensor {tensor.name!r} of {dtype} {list(shape)} was given a block of {block.dtype} "
                f"{list(block.shape)}; blocks differ in their number of rows only"
            )
        yield block
        num_rows += len(block)
    if num_rows != shape[0]:
        raise ContentError(f"{path}: tensor {tensor.name!r} has {shape[0]} rows, its blocks brought {num_rows}")


def _header(tensors: Sequence[BlockTensor], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    begin = 0
    for tensor in tensors:
        end = begin + prod(tensor.shape) * _DTYPES[tensor.code].itemsize
        entries[tensor.name] = {"dtype": tensor.code, "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % DATA_ALIGNMENT)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Reads a header and where the data begins; the library checks that all offsets and sizes agree with the file."""
    try:
        with safetensors.safe_open(path, framework="numpy"):
            pass
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            entries: dict[str, Any] = json.loads(file.read(length))
    except FileNotFoundError as exc:
        raise CorruptFileError(f"{path}: is missing; restore the file from another copy or write it again") from exc
    except (safetensors.SafetensorError, OSError, ValueError) as exc:
        raise CorruptFileError(
            f"{path}: is not a well-formed tensor file ({exc}); restore it from another copy or write it again"
        ) from exc
    return entries, LENGTH_BYTES + length


def _dtype(path: Path, name: str, entry: Mapping[str, Any]) -> np.dtype[Any]:
    try:
        return _DTYPES[entry["dtype"]]
    except KeyError as exc:
        raise CorruptFileError(
            f"{path}: tensor {name!r} has dtype {entry['dtype']}, known are {list(_DTYPES)}"
        ) from exc


def _code(path: Path, name: str, dtype: Any) -> str:
    dtype = np.dtype(dtype)
    if dtype.name == "bfloat16":
        return "BF16"
    if dtype not in _CODES:
        known = ", ".join(str(known) for known in _CODES)
        raise ContentError(f"{path}: tensor {name!r} has dtype {dtype}; expected one of {known}")
    return _CODES[dtype]


def _frozen(tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    tensor.setflags(write=False)
    return tensor


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp-{os.getpid()}")
