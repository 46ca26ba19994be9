"""A version as models in Triton's repository: two steps and the ensemble that joins them.

`features` is of our own backend: raw values to dense features and embeddings. `dense` is the dense part, in ONNX
Runtime in one of three ways with the same answers: see `dense_step`.
"""

import importlib.util
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.format.version_record import is_version_name
from rankhouse.serving.errors import InvalidModelNameError

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_DENSE_MODEL = """\
from rankhouse.serving.triton_models.dense import DenseStep
from rankhouse.serving.triton_models.python_backend import triton_model

TritonPythonModel = triton_model(DenseStep)
"""
# Instances are threads, and take no memory. (Those of the Python backend are processes.)
_NUM_THREADS = 4


@dataclass(frozen=True)
class Tensor:
    """A tensor in a model's configuration; -1 in its shape is any size."""

    name: str
    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StepModel:
    """A step of an ensemble, as a model.

    Attributes:
        step: Its name.
        backend: The backend of Triton that runs it.
        inputs: What it takes.
        outputs: What it gives.
        parameters: What its backend is told.
        files: The files of the model by name: a text is written, a path is linked to.
        num_instances: How many requests it may answer at once.
        device: The number of the GPU that it runs on; None: the CPU.
    """

    step: str
    backend: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, str]
    files: Mapping[str, str | Path] = field(default_factory=dict)
    num_instances: int = 1
    device: int | None = None


def ensemble_name(model: str, version: str) -> str:
    """Returns the name of the ensemble of a version: `<model>.<version>`.

    Raises:
        InvalidModelNameError: The model's name cannot be part of Triton's names, which are names of folders too.
    """
    if not _MODEL_NAME.fullmatch(model):
        raise InvalidModelNameError(
            f"model name {model!r} is invalid; use letters, digits, _ and -, first a letter or digit"
        )
    return f"{model}.{version}"


def write_models(version: Version, *, repository: Path, backends: Path | None = None, device: int | None = None) -> str:
    """Writes the models of a version into a repository, in place of what an earlier call wrote; loads nothing.

    Args:
        version: The version; its store must lie at the same path where Triton runs.
        repository: The folder that Triton was started with.
        backends: The server's folder of backends; None: it has no `onnxruntime`.
        device: The number of the GPU that embeddings are looked up on, which the server's engine keeps rows on
            (`TritonServer`); None: the CPU.

    Returns:
        The name of the ensemble, which is the one to load.

    Raises:
        InvalidModelNameError: See `ensemble_name`.
        NotServableError: The version has no dense part.
    """
    name = ensemble_name(version.model, version.name)
    steps = features_step(version, device=device), dense_step(version, backends=backends)
    write_ensemble(name, steps, repository=repository)
    return name


def written_versions(model: str, repository: Path) -> list[str]:
    """Returns the versions of a model that a repository has models of, whoever wrote them."""
    names = {path.name.removeprefix(f"{model}.") for path in repository.glob(f"{model}.*")}
    return sorted(name for name in names if is_version_name(name))


def remove_models(model: str, version: str, repository: Path) -> None:
    """Removes the models of a version from a repository; it must not be loaded any more."""
    name = ensemble_name(model, version)
    for folder in (repository / name, *repository.glob(f"{name}.*")):
        shutil.rmtree(folder, ignore_errors=True)


def features_step(version: Version, *, device: int | None = None) -> StepModel:
    """The first step: raw values to dense features and embeddings, and what befell them (ARCHITECTURE.md).

    `device` is that of `write_models`. The dense part runs on the CPU, so its input is left where Triton has it there.
    """
    parameters = version_parameters(version, step="features")
    told = (Tensor(name, "TYPE_INT32", (1,)) for name in ("degraded", "unknown"))
    outputs = (*feature_tensors(version), *told)
    return StepModel(
        "features",
        "rankhouse",
        raw_tensors(version),
        outputs,
        parameters,
        num_instances=_NUM_THREADS,
        device=device,
    )


def dense_step(version: Version, *, backends: Path | None) -> StepModel:
    """The last step: dense features and embeddings to scores.

    It is of Triton's `onnxruntime` backend where the server has it, as NVIDIA's images do; else of our own, over the
    library of the package `onnxruntime` here; or of the Python backend where that package has no library apart.
    """
    if backends is not None and (backends / "onnxruntime" / "libtriton_onnxruntime.so").is_file():
        # As in the other ways: instances answer requests side by side, and threads that spin would take their cores.
        parameters = {"intra_op_thread_count": "1", "inter_op_thread_count": "1"}
        files = {"model.onnx": version.dense_path}
        return _dense_step(version, "onnxruntime", parameters, files=files, num_instances=_NUM_THREADS)
    library = _onnxruntime_library()
    if library is None:
        return python_dense_step(version)
    parameters = version_parameters(version, step="dense", onnxruntime=str(library))
    return _dense_step(version, "rankhouse", parameters, num_instances=_NUM_THREADS)


def python_dense_step(version: Version) -> StepModel:
    """The last step in a Python process."""
    return _dense_step(version, "python", version_parameters(version), files={"model.py": _DENSE_MODEL})


def _dense_step(version: Version, backend: str, parameters: Mapping[str, str], **settings: Any) -> StepModel:
    scores = Tensor("scores", "TYPE_FP32", (-1,))
    return StepModel("dense", backend, feature_tensors(version), (scores,), parameters, **settings)


def version_parameters(version: Version, **others: str) -> dict[str, str]:
    """How a model of ours is told of its version."""
    return {"store": str(version.store.resolve()), "version": version.name, **others}


def _onnxruntime_library() -> Path | None:
    """The library in the package `onnxruntime`; None where it is linked into the package's extension module."""
    spec = importlib.util.find_spec("onnxruntime")
    folders = spec.submodule_search_locations if spec else None
    return next((path for folder in folders or () for path in Path(folder, "capi").glob("libonnxruntime.so*")), None)


def raw_tensors(version: Version) -> tuple[Tensor, ...]:
    """What an ensemble takes: raw values, ARCHITECTURE.md, "The Triton ensemble"."""
    return (
        Tensor("float_values", "TYPE_FP64", (-1, _size(version.num_dense))),
        Tensor("int_values", "TYPE_INT64", (-1,)),
        Tensor("int_lengths", "TYPE_INT32", (-1, -1)),
        Tensor("text_bytes", "TYPE_UINT8", (-1,)),
        Tensor("text_sizes", "TYPE_INT32", (-1,)),
        Tensor("text_lengths", "TYPE_INT32", (-1, -1)),
    )


def feature_tensors(version: Version) -> tuple[Tensor, Tensor]:
    """What the dense part takes: dense features and embeddings."""
    return (
        Tensor("dense", "TYPE_FP32", (-1, _size(version.num_dense))),
        Tensor("embeddings", "TYPE_FP32", (-1, version.embeddings_dim)),
    )


def write_ensemble(name: str, steps: Sequence[StepModel], *, repository: Path) -> None:
    """Writes an ensemble and a model for each of its steps, `<name>.<step>`, in place of what has their names.

    A tensor of one step goes to the later ones that have an input of its name; one that none of them takes is an output
    of the ensemble.
    """
    for step in steps:
        folder = _new_folder(repository / f"{name}.{step.step}")
        (folder / "config.pbtxt").write_text(_step_config(f"{name}.{step.step}", step))
        for file, content in step.files.items():
            if isinstance(content, str):
                (folder / "1" / file).write_text(content)
            else:
                (folder / "1" / file).symlink_to(content.resolve())
    folder = _new_folder(repository / name)
    (folder / "config.pbtxt").write_text(_ensemble_config(name, steps))


def _size(count: int) -> int:
    """Triton knows no dimension of size 0 in a configuration, but takes one in a request where any size may be."""
    return count or -1


def _new_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1").mkdir(parents=True)
    return folder


def _step_config(name: str, step: StepModel) -> str:
    lines = [
        f"name: {_quoted(name)}",
        f"backend: {_quoted(step.backend)}",
        "max_batch_size: 0",
        *_tensors("input", step.inputs),
        *_tensors("output", step.outputs),
        f"instance_group [ {{ {_kind(step.device)} count: {step.num_instances} }} ]",
        *(
            f"parameters {{ key: {_quoted(key)} value: {{ string_value: {_quoted(value)} }} }}"
            for key, value in step.parameters.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _kind(device: int | None) -> str:
    return "kind: KIND_CPU" if device is None else f"kind: KIND_GPU gpus: [ {device} ]"


def _ensemble_config(name: str, steps: Sequence[StepModel]) -> str:
    lines = [
        f"name: {_quoted(name)}",
        'platform: "ensemble"',
        "max_batch_size: 0",
        *_tensors("input", steps[0].inputs),
        *_tensors("output", _ensemble_outputs(steps)),
        "ensemble_scheduling {",
    ]
    for step in steps:
        lines.append(f"  step {{ model_name: {_quoted(f'{name}.{step.step}')} model_version: -1")
        for kind, tensors in (("input_map", step.inputs), ("output_map", step.outputs)):
            lines += [f'    {kind} {{ key: "{tensor.name}" value: "{tensor.name}" }}' for tensor in tensors]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _ensemble_outputs(steps: Sequence[StepModel]) -> list[Tensor]:
    taken = {tensor.name for step in steps for tensor in step.inputs}
    return [tensor for step in steps for tensor in step.outputs if tensor.name not in taken]


def _tensors(field: str, tensors: Sequence[Tensor]) -> list[str]:
    return [
        f'{field} {{ name: "{tensor.name}" data_type: {tensor.data_type} dims: {list(tensor.shape)} }}'
        for tensor in tensors
    ]


def _quoted(text: str) -> str:
    """Quotes a string for protobuf's text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
