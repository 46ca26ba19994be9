"""The cache under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, driven from C and C++.

Programs have it, with the few files of the kernels that it stands on, in them; Python itself cannot load that.
"""

from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.tensors import read_tensors
from tests.sanitized import ROOT, SanitizedLibraries, run

HERE = Path(__file__).parent
SOURCES = [
    *sorted((ROOT / "embedding_cache/native/cache").glob("*.cc")),
    *(ROOT / "embedding_cache/native/format" / name for name in ("json.cc", "mapped_file.cc", "tensor_file.cc")),
    *(ROOT / "kernels" / name for name in ("core/status.cc", "cpu/memory.cc")),
]

pytestmark = pytest.mark.timeout(1500)


def run_with_cache(source: Path, sanitized: SanitizedLibraries, folder: Path, *arguments: str) -> None:
    options = ["-pedantic"] if source.suffix == ".c" else []
    run(sanitized.program_of_parts([source], SOURCES, folder, options=options), *arguments)


def test_nothing_is_found_in_the_c_program(sanitized: SanitizedLibraries, tmp_path: Path) -> None:
    run_with_cache(HERE / "row_cache.c", sanitized, tmp_path)


def test_rows_that_threads_find_while_others_write_them_are_whole(
    sanitized: SanitizedLibraries, tmp_path: Path
) -> None:
    run_with_cache(HERE / "stress_row_cache.cc", sanitized, tmp_path, "600")


def test_hot_rows_are_found_and_kept(sanitized: SanitizedLibraries, tmp_path: Path) -> None:
    folder = tmp_path / "hot"
    run_with_cache(HERE / "check_hot_rows.cc", sanitized, tmp_path, str(folder))
    files = {path.name for path in folder.iterdir()}
    assert files == {f"{model}.hot_rows.safetensors" for model in ("ads", "empty", "shared")}
    kept = read_tensors(folder / "ads.hot_rows.safetensors")
    assert kept['Länder/"x"/ids'].tolist() == [5, 9]
    assert kept['Länder/"x"/counts'].tolist() == [2, 1]
    assert kept["user id/ids"][0] == 0
    assert (np.diff(kept["user id/counts"]) <= 0).all()
