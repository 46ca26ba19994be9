"""The Triton server as a child process: finding it, starting it, waiting for it, stopping it."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType, TracebackType

import rankhouse.embedding_cache
import rankhouse.kernels
import rankhouse.serving
from rankhouse.serving.errors import ProgramMissingError
from rankhouse.serving.processes import ChildProcess, answers_ok, free_ports

_PACKAGE = "nvidia-pytriton==0.7.0"
_PYTHON_BACKEND = ("libtriton_python.so", "triton_python_backend_utils.py")
_STUB = "triton_python_backend_stub"
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class TritonProgram:
    """Where a Triton installation lies.

    Attributes:
        binary: The program `tritonserver`.
        backends: Its folder of backends.
        libraries: Folders for LD_LIBRARY_PATH that the binary, its Python stub and our backend need.
    """

    binary: Path
    backends: Path
    libraries: tuple[Path, ...] = ()


@dataclass(frozen=True)
class TritonPorts:
    """The ports to listen on; 0 takes a free one."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def chosen(self, host: str) -> "TritonPorts":
        """Returns the same ports with a free one for each 0.

        Raises:
            AddressError: A port is taken.
        """
        return TritonPorts(*free_ports(host, self.http, self.grpc, self.metrics))


def installed_program(binary: Path, *, run_dir: Path) -> TritonProgram:
    """Describes the Triton installation of a given binary, as `/opt/tritonserver/bin/tritonserver` in a container.

    Lays out in `run_dir` a folder of its backends and ours.

    Raises:
        ProgramMissingError: There is no such program, no Python backend beside it, or our backend was not built.
    """
    if not os.access(binary, os.X_OK) or not binary.is_file():
        raise ProgramMissingError(f"{binary} is not an executable file; give the path of the program `tritonserver`")
    backends = binary.resolve().parent.parent / "backends"
    if not (backends / "python" / _PYTHON_BACKEND[0]).is_file():
        raise ProgramMissingError(f"{binary} has no Python backend: expected it in {backends / 'python'}")
    own = run_dir / "backends"
    own.mkdir(parents=True, exist_ok=True)
    for backend in backends.iterdir():
        _link(own / backend.name, backend)
    return TritonProgram(binary, own, _add_our_backend(own))


def packaged_program(*, run_dir: Path) -> TritonProgram:
    """Finds the Triton in the PyPI package, and lays out in `run_dir` the folder of backends that it lacks.

    Raises:
        ProgramMissingError: The package is not installed, or has no stub that runs in this Python.
    """
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise ProgramMissingError(
            f"there is no Triton server here; install it with `pip install {_PACKAGE}` (Linux x86-64), "
            "or give the path of another one with --triton-bin"
        )
    package = Path(spec.origin).parent
    files = package / "tritonserver"
    # The stub embeds Python, and must embed the very build whose packages it imports.
    libraries = (package.parent / "nvidia_pytriton.libs", Path(sysconfig.get_config_var("LIBDIR")))
    stub = files / "python_backend_stubs" / sysconfig.get_python_version() / _STUB
    _check_stub(stub, libraries)
    backends = run_dir / "backends"
    (backends / "python").mkdir(parents=True, exist_ok=True)
    for source in (*(files / "backends" / "python" / name for name in _PYTHON_BACKEND), stub):
        _link(backends / "python" / source.name, source)
    return TritonProgram(files / "bin" / "tritonserver", backends, (*libraries, *_add_our_backend(backends)))


def _link(link: Path, target: Path) -> None:
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _add_our_backend(backends: Path) -> tuple[Path, ...]:
    """Links our backend into a folder of backends; returns the folders of the libraries that it is built over.

    The dynamic loader looks for those beside the link, not beside the file.

    Raises:
        ProgramMissingError: It was not built.
    """
    backend = _built_file(rankhouse.serving, "libtriton_rankhouse.so")
    engine = _built_file(rankhouse.embedding_cache, "librankhouse_engine.so")
    kernels = _built_file(rankhouse.kernels, "librankhouse_kernels.so")
    (backends / "rankhouse").mkdir(exist_ok=True)
    _link(backends / "rankhouse" / backend.name, backend)
    return engine.parent, kernels.parent


def _built_file(package: ModuleType, name: str) -> Path:
    """Finds a compiled file of a package, which in an editable install lies apart from its sources."""
    for folder in package.__path__:
        if (Path(folder) / name).is_file():
            return Path(folder) / name
    raise ProgramMissingError(f"{name} was not built; build it with `make setup` or `pip install .`")


def _check_stub(stub: Path, libraries: tuple[Path, ...]) -> None:
    """Refuses a Python that Triton's stub cannot embed: found out later, it is a model that does not load."""
    if not stub.is_file():
        known = ", ".join(sorted(path.name for path in stub.parents[1].iterdir()))
        raise ProgramMissingError(f"{_PACKAGE} runs models in Python {known}, not in {stub.parent.name}")
    environment = os.environ | {"LD_LIBRARY_PATH": ":".join(map(str, libraries))}
    # Without arguments it says so and ends, unless the dynamic loader already failed (status 127).
    done = subprocess.run([stub], env=environment, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode == 127:
        raise ProgramMissingError(
            f"Triton's Python stub cannot start: {done.stderr.strip()}; "
            f"install Python's shared library (on Debian: apt-get install libpython{stub.parent.name})"
        )


class TritonServer:
    """A Triton server of our own, under explicit model control: nothing is loaded until a client asks for it.

    Use as a context manager, from one thread.

    Args:
        repository: The model repository; models may be written into it at any time.
        run_dir: Gets the log and the folder of backends.
        binary: Another Triton than the packaged one.
        host: The address to listen on.
        ports: The ports to listen on.
        engine_options: Options of the embedding engine, by name: embedding_cache/README.md.
        start_timeout_seconds: How long the server may take until it is ready.
    """

    def __init__(
        self,
        repository: Path,
        *,
        run_dir: Path,
        binary: Path | None = None,
        host: str = "127.0.0.1",
        ports: TritonPorts = TritonPorts(),
        engine_options: Mapping[str, str] = MappingProxyType({}),
        start_timeout_seconds: float = 60.0,
    ) -> None:
        self.repository = repository.resolve()
        self.host = host
        self.ports = ports
        self._run_dir = run_dir.resolve()
        self._binary = binary
        self._engine_options = engine_options
        self._start_timeout_seconds = start_timeout_seconds
        self.memory_prefix = f"rankhouse-{uuid.uuid4().hex[:12]}-"
        self.process = ChildProcess("Triton", [], log_path=self._run_dir / "triton.log")

    @property
    def backends(self) -> Path:
        """Its folder of backends, once it runs."""
        return self._run_dir / "backends"

    @property
    def grpc_url(self) -> str:
        """Where its gRPC service listens, as host:port."""
        return f"{self.host}:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus can read its metrics."""
        return f"http://{self.host}:{self.ports.metrics}/metrics"

    def start(self) -> None:
        """Starts the server and waits until it is ready.

        Raises:
            ProgramMissingError: There is no Triton to start.
            AddressError: A port is taken.
            ProcessFailedError: It died or was not ready in time; the message ends with the end of its log.
        """
        run_dir = self._run_dir
        program = (
            packaged_program(run_dir=run_dir)
            if self._binary is None
            else installed_program(self._binary, run_dir=run_dir)
        )
        self.repository.mkdir(parents=True, exist_ok=True)
        self.ports = self.ports.chosen(self.host)
        self.process = ChildProcess(
            "Triton", self._command(program), log_path=run_dir / "triton.log", environment=_environment(program)
        )
        try:
            self.process.start()
            self.process.wait_until(
                lambda: answers_ok(self.host, self.ports.http, "/v2/health/ready"),
                timeout_seconds=self._start_timeout_seconds,
            )
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the server and the Python processes of its models. Harmless when repeated."""
        self.process.stop()
        # Killed Python processes leave their shared memory behind.
        for region in _SHARED_MEMORY.glob(f"{self.memory_prefix}*"):
            region.unlink(missing_ok=True)

    def __enter__(self) -> "TritonServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, program: TritonProgram) -> list[str]:
        return [
            str(program.binary),
            f"--model-repository={self.repository}",
            f"--backend-directory={program.backends}",
            f"--backend-config=python,shm-region-prefix-name={self.memory_prefix}",
            *(f"--backend-config=rankhouse,{name}={value}" for name, value in self._engine_options.items()),
            "--model-control-mode=explicit",
            # Our models' configurations are complete; completing them would start each Python process twice.
            "--disable-auto-complete-config",
            # Readiness is asked for each version; one that does not load must not make the others' server unready.
            "--strict-readiness=false",
            f"--http-address={self.host}",
            f"--http-port={self.ports.http}",
            f"--grpc-address={self.host}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-address={self.host}",
            f"--metrics-port={self.ports.metrics}",
            "--exit-timeout-secs=10",
        ]


def _environment(program: TritonProgram) -> dict[str, str]:
    """Returns an environment in which the models' Python processes find this Python's packages.

    An embedded Python takes the first `python3` on PATH for its own, and with it that one's site-packages (a virtual
    environment's and editable installs' included).
    """
    environment = dict(os.environ)
    for variable, folders in (("PATH", (Path(sys.executable).parent,)), ("LD_LIBRARY_PATH", program.libraries)):
        inherited = [environment[variable]] if environment.get(variable) else []
        environment[variable] = os.pathsep.join([*map(str, folders), *inherited])
    return environment
