"""The cache under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, driven from C and C++.

It is compiled for them with the few files of the kernels that it stands on; Python itself cannot load that.
"""

from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.tensors import read_tensors
from tests.sanitized import ROOT, SANITIZERS, compiled, linked, run

HERE = Path(__file__).parent
SOURCES = [
    *sorted((ROOT / "embedding_cache/native/cache").glob("*.cc")),
    *(ROOT / "embedding_cache/native/format" / name for name in ("json.cc", "mapped_file.cc", "tensor_file.cc")),
    *(ROOT / "kernels" / name for name in ("core/status.cc", "cpu/memory.cc")),
]
FOLDERS = (".", "kernels", "kernels/include", "embedding_cache/native", "embedding_cache/native/include")
CHECKED = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1", "-O1")
STRICT = ("-Wall", "-Wextra", "-Werror", *(f"-I{ROOT / folder}" for folder in FOLDERS))

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module", params=SANITIZERS)
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Path], str]:
    folder = tmp_path_factory.mktemp("sanitized")
    return compiled(SOURCES, folder, [*STRICT, *CHECKED, f"-fsanitize={request.param}"]), request.param


def run_with_cache(source: Path, cache: tuple[list[Path], str], folder: Path, *arguments: str) -> None:
    objects, sanitizers = cache
    checked = f"-fsanitize={sanitizers}"
    pedantic = ["-pedantic"] if source.suffix == ".c" else []
    own = compiled([source], folder, [*STRICT, *CHECKED, checked, *pedantic])
    run(linked(folder / source.stem, [*own, *objects], [checked, "-lpthread"]), *arguments)


def test_nothing_is_found_in_the_c_program(cache: tuple[list[Path], str], tmp_path: Path) -> None:
    run_with_cache(HERE / "row_cache.c", cache, tmp_path)


def test_rows_that_threads_find_while_others_write_them_are_whole(
    cache: tuple[list[Path], str], tmp_path: Path
) -> None:
    run_with_cache(HERE / "stress_row_cache.cc", cache, tmp_path, "600")


def test_hot_rows_are_found_and_kept(cache: tuple[list[Path], str], tmp_path: Path) -> None:
    folder = tmp_path / "hot"
    run_with_cache(HERE / "check_hot_rows.cc", cache, tmp_path, str(folder))
    files = {path.name for path in folder.iterdir()}
    assert files == {f"{model}.hot_rows.safetensors" for model in ("ads", "empty", "shared")}
    kept = read_tensors(folder / "ads.hot_rows.safetensors")
    assert kept['Länder/"x"/ids'].tolist() == [5, 9]
    assert kept['Länder/"x"/counts'].tolist() == [2, 1]
    assert kept["user id/ids"][0] == 0
    assert (np.diff(kept["user id/counts"]) <= 0).all()
