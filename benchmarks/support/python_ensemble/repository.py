"""The models of the Python ensemble, and of one Python step alone, in Triton's repository."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.format.version import Version

CHECKOUT = Path(__file__).parents[3]
_STEPS = "benchmarks.support.python_ensemble"


@dataclass(frozen=True)
class Tensor:
    """A tensor in a model's configuration; -1 in its shape is any size."""

    name: str
    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PythonModel:
    """A model of Triton's Python backend: what its file says, and its configuration."""

    name: str
    code: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, str]
    max_batch_size: int = 0


def write_python_ensemble(version: Version, *, name: str, repository: Path) -> str:
    """Writes the ensemble of a version and its three steps; loads nothing.

    Args:
        version: The version.
        name: The ensemble's name, which must not be that of serving's own.
        repository: The folder that Triton was started with.

    Returns:
        The name.
    """
    steps = _steps(name, version)
    for step in steps:
        write_python_model(step, repository)
    folder = _new_folder(repository / name)
    (folder / "config.pbtxt").write_text(_ensemble_config(name, steps))
    return name


def write_python_model(model: PythonModel, repository: Path) -> None:
    """Writes one model of the Python backend; its code may import from `benchmarks`."""
    lines = [
        f'name: "{model.name}"',
        'backend: "python"',
        f"max_batch_size: {model.max_batch_size}",
        *_tensors("input", model.inputs),
        *_tensors("output", model.outputs),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        *(
            f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in model.parameters.items()
        ),
        *(["dynamic_batching { }"] if model.max_batch_size else []),
    ]
    folder = _new_folder(repository / model.name)
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")
    (folder / "1" / "model.py").write_text(f"import sys\n\nsys.path.insert(0, {str(CHECKOUT)!r})\n{model.code}")


def _steps(name: str, version: Version) -> tuple[PythonModel, ...]:
    any_ = -1
    dense = Tensor("dense", "TYPE_FP32", (any_, version.num_dense or any_))
    ids = Tensor("ids", "TYPE_INT64", (any_,))
    lengths = Tensor("lengths", "TYPE_INT32", (len(version.features), any_))
    embeddings = Tensor("embeddings", "TYPE_FP32", (any_, version.embeddings_dim))
    raw = (
        Tensor("float_values", "TYPE_FP64", (any_, version.num_dense or any_)),
        Tensor("int_values", "TYPE_INT64", (any_,)),
        Tensor("int_lengths", "TYPE_INT32", (any_, any_)),
        Tensor("text_bytes", "TYPE_UINT8", (any_,)),
        Tensor("text_sizes", "TYPE_INT32", (any_,)),
        Tensor("text_lengths", "TYPE_INT32", (any_, any_)),
    )
    scores = Tensor("scores", "TYPE_FP32", (any_,))
    parameters = {"store": str(version.store.resolve()), "version": version.name}

    def step(which: str, code: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> PythonModel:
        return PythonModel(f"{name}.{which}", code, inputs, outputs, parameters)

    return (
        step("transform", _code(f"{_STEPS}.transform", "TransformStep"), raw, (dense, ids, lengths)),
        step("embedding", _code(f"{_STEPS}.embedding", "EmbeddingStep"), (ids, lengths), (embeddings,)),
        step("dense", _code("rankhouse.serving.triton_models.dense", "DenseStep"), (dense, embeddings), (scores,)),
    )


def _code(module: str, step_class: str) -> str:
    return (
        "from rankhouse.serving.triton_models.python_backend import triton_model\n"
        f"from {module} import {step_class}\n\n"
        f"TritonPythonModel = triton_model({step_class})\n"
    )


def _new_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1").mkdir(parents=True)
    return folder


def _ensemble_config(name: str, steps: Sequence[PythonModel]) -> str:
    """Joins the steps: a tensor of one step goes to the later ones that have an input of its name."""
    lines = [
        f'name: "{name}"',
        'platform: "ensemble"',
        "max_batch_size: 0",
        *_tensors("input", steps[0].inputs),
        *_tensors("output", steps[-1].outputs),
        "ensemble_scheduling {",
    ]
    for step in steps:
        lines.append(f'  step {{ model_name: "{step.name}" model_version: -1')
        for field, tensors in (("input_map", step.inputs), ("output_map", step.outputs)):
            lines += [f'    {field} {{ key: "{tensor.name}" value: "{tensor.name}" }}' for tensor in tensors]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _tensors(field: str, tensors: Sequence[Tensor]) -> list[str]:
    return [
        f'{field} {{ name: "{tensor.name}" data_type: {tensor.data_type} dims: {list(tensor.shape)} }}'
        for tensor in tensors
    ]
