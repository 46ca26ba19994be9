"""The cache under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, driven from C and C++.

It is compiled for them with the few files of the kernels that it stands on; Python itself cannot load that.
"""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.tensors import read_tensors

ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent
SOURCES = [
    *sorted((ROOT / "embedding_cache/native/cache").glob("*.cc")),
    *(ROOT / "embedding_cache/native/format" / name for name in ("json.cc", "mapped_file.cc", "tensor_file.cc")),
    *(ROOT / "kernels" / name for name in ("core/status.cc", "cpu/memory.cc")),
]
FOLDERS = (".", "kernels", "kernels/include", "embedding_cache/native", "embedding_cache/native/include")
CHECKED = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1")
STRICT = ("-Wall", "-Wextra", "-Werror", *(f"-I{ROOT / folder}" for folder in FOLDERS))

pytestmark = pytest.mark.timeout(600)


def compiled(source: Path, folder: Path, sanitizers: str) -> Path:
    program = folder / f"{source.name}.o"
    language = ("cc", "-std=c11", "-pedantic") if source.suffix == ".c" else ("c++", "-std=c++17")
    options = [*STRICT, *CHECKED, f"-fsanitize={sanitizers}"]
    subprocess.run([*language, *options, "-c", str(source), "-o", str(program)], check=True, timeout=300)
    return program


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], str]:
    folder = tmp_path_factory.mktemp("sanitized")
    return [compiled(source, folder, request.param) for source in SOURCES], request.param


def run(source: Path, cache: tuple[list[Path], str], folder: Path, *arguments: str) -> None:
    objects, sanitizers = cache
    program = folder / source.stem
    linked = map(str, [compiled(source, folder, sanitizers), *objects])
    subprocess.run(
        ["c++", *linked, f"-fsanitize={sanitizers}", "-lpthread", "-o", str(program)], check=True, timeout=100
    )
    options = {"ASAN_OPTIONS": "allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    result = subprocess.run(
        [program, *arguments], env={**os.environ, **options}, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]


def test_nothing_is_found_in_the_c_program(cache: tuple[list[Path], str], tmp_path: Path) -> None:
    run(HERE / "row_cache.c", cache, tmp_path)


def test_rows_that_threads_find_while_others_write_them_are_whole(
    cache: tuple[list[Path], str], tmp_path: Path
) -> None:
    run(HERE / "stress_row_cache.cc", cache, tmp_path, "600")


def test_hot_rows_are_found_and_kept(cache: tuple[list[Path], str], tmp_path: Path) -> None:
    folder = tmp_path / "hot"
    run(HERE / "check_hot_rows.cc", cache, tmp_path, str(folder))
    files = {path.name for path in folder.iterdir()}
    assert files == {f"{model}.hot_rows.safetensors" for model in ("ads", "empty", "shared")}
    kept = read_tensors(folder / "ads.hot_rows.safetensors")
    assert kept['Länder/"x"/ids'].tolist() == [5, 9]
    assert kept['Länder/"x"/counts'].tolist() == [2, 1]
    assert kept["user id/ids"][0] == 0
    assert (np.diff(kept["user id/counts"]) <= 0).all()
