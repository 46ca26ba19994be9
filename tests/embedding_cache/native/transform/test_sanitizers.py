"""The compiled transform under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

Python itself cannot load a sanitized library, so programs are made of the sources: one in C that calls every function,
and one that opens damaged files, which it holds in memory of exactly their size.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.version import VersionStore

ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent
NATIVE = ROOT / "embedding_cache/native"
KERNELS = ROOT / "kernels"
STORES = ROOT / "tests/embedding_cache/format"
# What of the other folders the transform's sources need.
NEEDED = ("core/status.cc", "cpu/memory.cc", "cpu/parallel.cc", "cpu/scratch.cc")

pytestmark = pytest.mark.timeout(900)


def build(folder: Path, sanitizers: str, program: Path, *sources: Path) -> Path:
    """Compiles a program with the transform's sources; all that is found ends it."""
    checked = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g1", "-O1"]
    includes = [f"-I{path}" for path in (NATIVE / "include", NATIVE, KERNELS / "include", KERNELS, KERNELS.parent)]
    includes += [f"-I{ROOT / 'tests/kernels'}", f"-I{HERE}"]
    objects = []
    own = [*(NATIVE / "transform").glob("*.cc"), NATIVE / "format/json.cc", NATIVE / "format/tensor_file.cc"]
    for source in [program, *sources, *own, *(KERNELS / name for name in NEEDED)]:
        compiler = ["cc", "-std=c11", "-pedantic"] if source.suffix == ".c" else ["c++", "-std=c++17"]
        target = folder / f"{source.parent.name}_{source.stem}.o"
        objects.append(target)
        command: list[str | Path] = [
            *compiler,
            "-Wall",
            "-Wextra",
            "-Werror",
            *checked,
            *includes,
            "-c",
            source,
            "-o",
            target,
        ]
        subprocess.run(command, check=True, timeout=300)
    linked = folder / program.stem
    subprocess.run(["c++", *checked, *objects, "-o", linked, "-lm", "-lpthread"], check=True, timeout=300)
    return linked


def run(program: Path, *arguments: str | Path) -> str:
    options = {"ASAN_OPTIONS": "allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    environment = {**os.environ, **options}
    result = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-8000:]
    return result.stdout


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_nothing_is_found_in_a_c_program(tmp_path: Path, sanitizers: str) -> None:
    program = build(tmp_path, sanitizers, HERE / "transform.c", NATIVE / "format/mapped_file.cc")
    (folder,) = (STORES / "golden/versions").iterdir()
    run(program, folder)


def test_damaged_files_are_refused_or_read_within_their_bounds(tmp_path: Path) -> None:
    program = build(tmp_path, "address,undefined", HERE / "fuzz.cc", HERE / "memory_files.cc")
    version = VersionStore(STORES / "golden_chain").open("000003-b7a8a7ab")
    found = run(program, "1", "4000", version.path / "transform.json", *version.vocabulary_files)
    opened, applied = map(int, re.findall(r"\d+", found))
    assert 4000 > opened > 100
    assert applied > 100


def test_every_function_is_called() -> None:
    declared = set(re.findall(r"RH_API \w+ (rh_\w+)\(", (NATIVE / "include/rankhouse/transform.h").read_text()))
    called = set(re.findall(r"\b(rh_\w+)\(", (HERE / "transform.c").read_text()))
    assert declared
    assert declared - called == set()
