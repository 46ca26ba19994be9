"""The libraries with sanitizers in them, and programs over them: Python itself cannot load such a library."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SANITIZERS = ("address,undefined", "thread")

_INCLUDES = [f"-I{ROOT / folder}" for folder in (".", "kernels/include", "embedding_cache/native/include")]
_OWN_INCLUDES = [f"-I{ROOT / folder}" for folder in ("kernels", "embedding_cache/native")]
_STRICT = ("-Wall", "-Wextra", "-Werror")
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
    def built(cls, folder: Path, sanitizers: str) -> "SanitizedLibraries":
        """Builds them, unless another process of this test run has: the others wait for the first one."""
        libraries, is_built = cls(folder, sanitizers), folder / "is_built"
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_built.exists():
                libraries._build()
                is_built.touch()
        return libraries

    def _build(self) -> None:
        cmake = shutil.which("cmake", path=Path(sys.executable).parent) or "cmake"
        # ThreadSanitizer does not know the stacks that emulated threads change.
        cuda = "OFF" if self.sanitizers == "thread" else "EMULATED"
        options = {"RANKHOUSE_SANITIZE": self.sanitizers, "RANKHOUSE_TENSORFLOW": "OFF", "RANKHOUSE_CUDA": cuda}
        definitions = [f"-D{name}={value}" for name, value in options.items()]
        configure = [cmake, "-S", ROOT, "-B", self.folder, f"-DPython_EXECUTABLE={sys.executable}", *definitions]
        subprocess.run(configure, check=True, timeout=600, capture_output=True)
        build = [cmake, "--build", self.folder, "--target", "rankhouse_engine", "--parallel", "2"]
        output = subprocess.run(build, timeout=6000, capture_output=True, text=True, check=False)
        assert output.returncode == 0, output.stdout[-4000:] + output.stderr[-4000:]
        (self.folder / "messages").write_text(output.stdout + output.stderr)

    @property
    def kernels(self) -> Path:
        return self.folder / "librankhouse_kernels.so"

    @property
    def engine(self) -> Path:
        return self.folder / "embedding_cache/librankhouse_engine.so"

    @property
    def _checked(self) -> list[str]:
        return [f"-fsanitize={self.sanitizers}", "-fno-sanitize-recover=all"]

    def program(self, sources: list[Path], folder: Path) -> Path:
        """Compiles C, or C++, with all that the libraries export."""
        options = [*_STRICT, "-pedantic", *_INCLUDES, *self._checked, "-g1", "-O1"]
        found_by = f"-Wl,-rpath,{self.kernels.parent}:{self.engine.parent}"
        libraries = [self.engine, self.kernels, "-lm", "-lpthread", found_by]
        return linked(folder / sources[0].stem, compiled(sources, folder, options), [*self._checked, *libraries])

    def program_of_parts(
        self, sources: Sequence[Path], parts: Sequence[Path], folder: Path, *, options: Sequence[str] = ()
    ) -> Path:
        """Compiles C, or C++, with what only some of the libraries' sources have, exported or not.

        Args:
            sources: The program's own.
            parts: Sources of the libraries, whose objects are there already.
            folder: Gets the program, named as the first source.
            options: More of the compiler's, as `-pedantic`, and of the linker's, as `-lcrypto`.
        """
        messages = (self.folder / "messages").read_text().splitlines()
        warnings = [line for line in messages if "warning:" in line and line.startswith(tuple(map(str, parts)))]
        assert warnings == []
        flags = [*_STRICT, *_INCLUDES, *_OWN_INCLUDES, *self._checked, "-g1", "-O1"]
        flags += [option for option in options if not option.startswith("-l")]
        there = {part: self._object_of(part) for part in parts}
        # The stand-ins of what a build without CUDA lacks, where this one has it.
        own = compiled([*sources, *(part for part, made in there.items() if not made.exists())], folder, flags)
        libraries = ["-lpthread", *(option for option in options if option.startswith("-l"))]
        objects = [*own, *(made for made in there.values() if made.exists())]
        return linked(folder / sources[0].stem, objects, [*self._checked, *libraries])

    def _object_of(self, source: Path) -> Path:
        """Where CMake has the object of a library's source."""
        inside = source.relative_to(ROOT)
        place, target = self.folder, "rankhouse_kernels"
        if inside.parts[0] == "embedding_cache":
            place, target, inside = place / inside.parts[0], "rankhouse_engine", inside.relative_to(inside.parts[0])
        return place / "CMakeFiles" / f"{target}.dir" / f"{inside}.o"


def compiled(sources: Sequence[Path], folder: Path, options: Sequence[str]) -> list[Path]:
    """Compiles C and C++, a source on each core; returns the objects."""

    def compile_one(source: Path) -> Path:
        made = folder / f"{source.parent.name}_{source.name}.o"
        language = ["cc", "-std=c11"] if source.suffix == ".c" else ["c++", "-std=c++17"]
        _run_compiler([*language, *options, "-c", source, "-o", made])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, sources))


def linked(program: Path, objects: Sequence[Path], options: Sequence[str | Path]) -> Path:
    """Makes a program of objects."""
    _run_compiler(["c++", *objects, *options, "-o", program])
    return program


def _run_compiler(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-8000:]


def run(program: Path, *arguments: str | Path) -> str:
    """Runs a program; returns what it prints."""
    result = subprocess.run(
        [program, *arguments], env={**os.environ, **_OPTIONS}, capture_output=True, text=True, timeout=800, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]
    return result.stdout
