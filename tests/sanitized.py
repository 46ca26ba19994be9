"""The libraries with sanitizers in them, and programs over them: Python itself cannot load such a library."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SANITIZERS = ("address,undefined", "thread")

_INCLUDES = [f"-I{ROOT / folder}" for folder in (".", "kernels/include", "embedding_cache/native/include")]
# Longer than any allocation that the machine could grant fails here as it does there.
_OPTIONS = {
    "ASAN_OPTIONS": "allocator_may_return_null=1",
    "TSAN_OPTIONS": "second_deadlock_stack=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


@dataclass(frozen=True)
class SanitizedLibraries:
    """The libraries of the kernels and the engine, built with sanitizers; what these find ends a program.

    Those with AddressSanitizer have the CUDA operations, emulated.
    """

    folder: Path
    sanitizers: str

    @classmethod
    def build(cls, folder: Path, sanitizers: str) -> "SanitizedLibraries":
        cmake = shutil.which("cmake", path=Path(sys.executable).parent) or "cmake"
        # ThreadSanitizer does not know the stacks that emulated threads change.
        cuda = "OFF" if sanitizers == "thread" else "EMULATED"
        options = {"RANKHOUSE_SANITIZE": sanitizers, "RANKHOUSE_TENSORFLOW": "OFF", "RANKHOUSE_CUDA": cuda}
        definitions = [f"-D{name}={value}" for name, value in options.items()]
        configure = [cmake, "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", *definitions]
        subprocess.run(configure, check=True, timeout=120, capture_output=True)
        build = [cmake, "--build", folder, "--target", "rankhouse_engine", "--parallel", "2"]
        output = subprocess.run(build, timeout=1200, capture_output=True, text=True, check=False)
        assert output.returncode == 0, output.stdout[-4000:] + output.stderr[-4000:]
        return cls(folder, sanitizers)

    @property
    def kernels(self) -> Path:
        return self.folder / "librankhouse_kernels.so"

    @property
    def engine(self) -> Path:
        return self.folder / "embedding_cache/librankhouse_engine.so"

    def program(self, sources: list[Path], folder: Path) -> Path:
        """Compiles C, or C++, with all that the libraries export."""
        program = folder / sources[0].stem
        language = ["cc", "-std=c11"] if sources[0].suffix == ".c" else ["c++", "-std=c++17"]
        strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", *_INCLUDES]
        checked = [f"-fsanitize={self.sanitizers}", "-fno-sanitize-recover=all", "-g1", "-O1"]
        linked = [self.engine, self.kernels, "-lm", "-lpthread"]
        found_by = f"-Wl,-rpath,{self.kernels.parent}:{self.engine.parent}"
        command = [*language, *strict, *checked, *sources, "-o", program, *linked, found_by]
        subprocess.run(command, check=True, timeout=300)
        return program


def run(program: Path, *arguments: str | Path) -> str:
    """Runs a program; returns what it prints."""
    result = subprocess.run(
        [program, *arguments], env={**os.environ, **_OPTIONS}, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    return result.stdout
