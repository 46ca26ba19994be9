import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError
from rankhouse.embedding_cache.format.files import file_record
from rankhouse.embedding_cache.format.tensors import (
    DATA_ALIGNMENT,
    open_tensors,
    read_tensors,
    write_tensor_blocks,
    write_tensors,
)

ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)


@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"])
def test_reads_back_each_dtype(tmp_path: Path, dtype: str) -> None:
    tensors = {"x": ROWS.astype(dtype), "strided": ROWS.astype(dtype).T, "scalar": np.array(1, dtype)}
    write_tensors(tmp_path / "x", tensors, {"made": "here"})
    for found in (read_tensors(tmp_path / "x"), safetensors.numpy.load_file(tmp_path / "x")):
        assert found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert found[name].dtype == tensor.dtype
            np.testing.assert_array_equal(found[name], tensor)
    assert open_tensors(tmp_path / "x").metadata == {"made": "here"}


def test_tensors_are_mapped_read_only(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"x": ROWS})
    tensor = read_tensors(tmp_path / "x")["x"]
    with pytest.raises(ValueError, match="read-only"):
        tensor[0, 0] = 1
    with open(tmp_path / "x", "r+b") as file:
        file.seek(-4, 2)
        file.write(np.float32(99).tobytes())
    assert tensor[-1, -1] == 99


@pytest.mark.parametrize("tensors", [{}, {"empty": np.zeros((0, 4), np.float32)}])
def test_holds_nothing(tmp_path: Path, tensors: dict[str, np.ndarray]) -> None:
    write_tensors(tmp_path / "x", tensors)
    assert {name: tensor.shape for name, tensor in read_tensors(tmp_path / "x").items()} == {
        name: tensor.shape for name, tensor in tensors.items()
    }


@pytest.mark.parametrize("cuts", [[], [2], [0, 3, 3, 6]])
def test_blocks_make_one_aligned_tensor(tmp_path: Path, cuts: list[int]) -> None:
    path = tmp_path / "x"
    record = write_tensor_blocks(path, "rows", np.split(ROWS, cuts), shape=(6, 4), metadata={"table": "C1"})
    assert record == file_record(path)
    with safetensors.safe_open(path, framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("rows"), ROWS)
        assert file.metadata() == {"table": "C1"}
    np.testing.assert_array_equal(read_tensors(path)["rows"], ROWS)
    assert record.bytes == DATA_ALIGNMENT + ROWS.nbytes
    assert path.read_bytes()[DATA_ALIGNMENT:] == ROWS.tobytes()


def test_header_longer_than_a_page(tmp_path: Path) -> None:
    write_tensor_blocks(tmp_path / "x", "rows", [ROWS], shape=(6, 4), metadata={"long": "ü" * 5000})
    assert open_tensors(tmp_path / "x").metadata == {"long": "ü" * 5000}
    np.testing.assert_array_equal(safetensors.numpy.load_file(tmp_path / "x")["rows"], ROWS)


def test_blocks_of_no_rows(tmp_path: Path) -> None:
    write_tensor_blocks(tmp_path / "x", "rows", [], shape=(0, 4))
    assert read_tensors(tmp_path / "x")["rows"].shape == (0, 4)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([ROWS[:3]], "has 6 rows, its blocks brought 3"),
        ([ROWS, ROWS], "has 6 rows, its blocks brought 12"),
        ([ROWS.astype(np.float64)], r"given a block of float64 \[6, 4\]"),
        ([ROWS[:, :3]], r"given a block of float32 \[6, 3\]"),
        ([ROWS.reshape(-1)], r"given a block of float32 \[24\]"),
    ],
)
def test_refuses_blocks_that_do_not_fit_and_leaves_nothing(
    tmp_path: Path, blocks: list[np.ndarray], message: str
) -> None:
    with pytest.raises(ContentError, match=message):
        write_tensor_blocks(tmp_path / "x", "rows", blocks, shape=(6, 4))
    assert not list(tmp_path.iterdir())


def test_refuses_dtypes_that_the_format_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match="tensor 'x' has dtype object; expected one of bool"):
        write_tensors(tmp_path / "x", {"x": np.array(["a"], object)})
    safetensors.numpy.save_file({"x": ROWS.astype(ml_dtypes.float8_e4m3fn)}, tmp_path / "foreign")
    with pytest.raises(CorruptFileError, match="tensor 'x' has dtype F8_E4M3"):
        read_tensors(tmp_path / "foreign")


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, b"PAR1" * 50])
def test_refuses_a_file_that_is_not_well_formed(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "x").write_bytes(damage)
    with pytest.raises(CorruptFileError, match="x: is not a well-formed tensor file"):
        read_tensors(tmp_path / "x")
    with pytest.raises(CorruptFileError, match="nowhere: is missing"):
        read_tensors(tmp_path / "nowhere")


def test_refuses_a_truncated_file(tmp_path: Path) -> None:
    write_tensor_blocks(tmp_path / "x", "rows", [ROWS], shape=(6, 4))
    with open(tmp_path / "x", "r+b") as file:
        file.truncate(DATA_ALIGNMENT + 10)
    with pytest.raises(CorruptFileError, match="not a well-formed tensor file"):
        read_tensors(tmp_path / "x")


def test_blocks_take_the_memory_of_one_block(tmp_path: Path) -> None:
    script = """
import pathlib, re, sys
import numpy as np
from rankhouse.embedding_cache.format.tensors import write_tensor_blocks
block = np.ones((1 << 14, 64), np.float32)
write_tensor_blocks(sys.argv[1], "rows", (block for _ in range(64)), shape=(1 << 20, 64))
resident = int(re.search(r"VmHWM:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
assert resident < 150_000, f"{resident} KiB for a file of 256 MiB"
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "x")], check=True, timeout=120)
