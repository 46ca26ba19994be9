import ctypes
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankhouse.kernels import library
from rankhouse.kernels.errors import STATUS_ERRORS, InternalError, LibraryError, OutOfMemoryError

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "kernels/include/rankhouse/kernels.h"
ALL_HEADERS = sorted(HEADER.parent.glob("*.h"))


@pytest.mark.parametrize("source", sorted((ROOT / "tests/kernels").glob("*.c")), ids=lambda path: path.stem)
def test_a_c_program_can_use_the_interface(source: Path, tmp_path: Path) -> None:
    built = library.find("librankhouse_kernels.so")
    program = tmp_path / source.stem
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", f"-I{HEADER.parents[1]}"]
    linked = [built, "-lpthread", f"-Wl,-rpath,{built.parent}"]
    subprocess.run(["cc", *strict, "-o", program, source, *linked], check=True, timeout=300)
    run = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr


def test_declarations_follow_the_header() -> None:
    text = "".join(path.read_text() for path in ALL_HEADERS)
    declared = set(re.findall(r"RH_API \S+ \*?(rh_\w+)\(", text.replace("const char*", "char*")))
    assert declared == {*library._FUNCTIONS, "rh_abi_version", "rh_last_error"}
    assert f"#define RH_ABI_VERSION {library.ABI_VERSION}\n" in text
    statuses = dict(re.findall(r"RH_([A-Z_]+) = (\d)", text.split("typedef enum rh_status")[1].split("}")[0]))
    assert {int(number) for number in statuses.values()} == {0, *STATUS_ERRORS}


def test_only_the_interface_is_exported() -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library.find("librankhouse_kernels.so")],
        capture_output=True, text=True, check=True, timeout=300,
    ).stdout  # fmt: skip
    ours = {line.split()[-1] for line in symbols.splitlines() if not line.split()[-1].startswith("_Z")}
    assert {name for name in ours if name.startswith("rh_")} == {*library._FUNCTIONS, "rh_abi_version", "rh_last_error"}
    # What libraries over this one share with it: errors, threads and working memory.
    shared = re.compile(r"_ZN(9rankhouse(4Fail|16ParallelForRange|7Scratch)|10rh_scratch)")
    assert [name for name in re.findall(r" T (_Z\w+)", symbols) if "rankhouse" in name and not shared.match(name)] == []


def test_a_missing_library_says_how_to_build_it() -> None:
    with pytest.raises(LibraryError, match=r"libnothing\.so is missing \(searched .*\): build it with `make setup`"):
        library.find("libnothing.so")


def load_a_stand_in(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    (tmp_path / "other.c").write_text(source)
    other = tmp_path / "other.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", other, tmp_path / "other.c"], check=True, timeout=300)
    monkeypatch.setattr(library, "find", lambda name: other)
    return library.load.__wrapped__()


def test_a_library_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LibraryError, match="has ABI version 99: expected 3; build it with `make setup`"):
        load_a_stand_in("int rh_abi_version(void) { return 99; }", tmp_path, monkeypatch)


def test_a_library_that_lacks_a_function_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "int rh_abi_version(void) { return 3; } const char* rh_last_error(void) { return 0; }"
    with pytest.raises(LibraryError, match=r"other\.so has no rh_built_with_cuda, .*: build it with `make setup`"):
        load_a_stand_in(source, tmp_path, monkeypatch)


def test_a_broken_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(library, "find", lambda name: broken)
    with pytest.raises(LibraryError, match=r"broken\.so cannot be loaded: .*file too short"):
        library.load.__wrapped__()


def test_statuses_become_errors() -> None:
    library.check(0)
    with pytest.raises(OutOfMemoryError):
        library.check(3)
    with pytest.raises(InternalError):
        library.check(77)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_cuda_build_compiles_and_exports_its_functions(tmp_path: Path) -> None:
    environment_bin = Path(sys.executable).parent
    cmake = shutil.which("cmake", path=environment_bin) or "cmake"
    configure = [
        *(cmake, "-S", ROOT, "-B", tmp_path, "-DRANKHOUSE_CUDA=ON", "-DRANKHOUSE_TENSORFLOW=OFF"),
        *("-DCMAKE_CUDA_ARCHITECTURES=80;90;100", f"-DPython_EXECUTABLE={sys.executable}"),
    ]
    subprocess.run(configure, check=True, timeout=3000, capture_output=True)
    build = [cmake, "--build", tmp_path, "--target", "rankhouse_kernels", "--parallel", "2"]
    output = subprocess.run(build, timeout=1700, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stdout + output.stderr
    assert "warning" not in output.stdout + output.stderr
    # In a process of its own, so that this one keeps one library.
    probe = (
        "import ctypes, sys; kernels = ctypes.CDLL(sys.argv[1]); assert kernels.rh_built_with_cuda() == 1; "
        f"print([name for name in {[*library._FUNCTIONS]} if not hasattr(kernels, name)])"
    )
    built = tmp_path / "librankhouse_kernels.so"
    missing = subprocess.run(
        [sys.executable, "-c", probe, built], capture_output=True, text=True, timeout=300, check=True
    )
    assert missing.stdout.strip() == "[]"
