"""A version as models in Triton's repository: three steps and the ensemble that joins them."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import InvalidModelNameError

_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Tensor:
    """A tensor in a model's configuration; -1 in its shape is any size."""

    name: str
    data_type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class StepModel:
    """A step's model: `step` and `step_class` name its module in `triton_models` and its class there."""

    step: str
    step_class: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


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


def write_models(version: Version, *, repository: Path) -> str:
    """Writes the models of a version into a repository, in place of what an earlier call wrote; loads nothing.

    Args:
        version: The version; its store must lie at the same path where Triton runs.
        repository: The folder that Triton was started with.

    Returns:
        The name of the ensemble, which is the one to load.

    Raises:
        InvalidModelNameError: See `ensemble_name`.
    """
    name = ensemble_name(version.model, version.name)
    steps = _steps(version)
    for step in steps:
        folder = _new_folder(repository / f"{name}.{step.step}")
        (folder / "config.pbtxt").write_text(_step_config(f"{name}.{step.step}", step, version))
        (folder / "1" / "model.py").write_text(_model_file(step))
    folder = _new_folder(repository / name)
    (folder / "config.pbtxt").write_text(_ensemble_config(name, steps))
    return name


def _steps(version: Version) -> tuple[StepModel, ...]:
    any_ = -1
    dense = Tensor("dense", "TYPE_FP32", (any_, _size(version.num_dense)))
    ids = Tensor("ids", "TYPE_INT64", (any_,))
    lengths = Tensor("lengths", "TYPE_INT32", (len(version.features), any_))
    embeddings = Tensor("embeddings", "TYPE_FP32", (any_, version.embeddings_dim))
    raw = (
        Tensor("float_values", "TYPE_FP64", (any_, _size(version.num_dense))),
        Tensor("int_values", "TYPE_INT64", (any_,)),
        Tensor("int_lengths", "TYPE_INT32", (any_, any_)),
        Tensor("text_bytes", "TYPE_UINT8", (any_,)),
        Tensor("text_sizes", "TYPE_INT32", (any_,)),
        Tensor("text_lengths", "TYPE_INT32", (any_, any_)),
    )
    scores = Tensor("scores", "TYPE_FP32", (any_,))
    return (
        StepModel("transform", "TransformStep", inputs=raw, outputs=(dense, ids, lengths)),
        StepModel("embedding", "EmbeddingStep", inputs=(ids, lengths), outputs=(embeddings,)),
        StepModel("dense", "DenseStep", inputs=(dense, embeddings), outputs=(scores,)),
    )


def _size(count: int) -> int:
    """Triton knows no dimension of size 0 in a configuration, but takes one in a request where any size may be."""
    return count or -1


def _new_folder(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "1").mkdir(parents=True)
    return folder


def _model_file(step: StepModel) -> str:
    return (
        "from rankhouse.serving.triton_models.python_backend import triton_model\n"
        f"from rankhouse.serving.triton_models.{step.step} import {step.step_class}\n\n"
        f"TritonPythonModel = triton_model({step.step_class})\n"
    )


def _step_config(name: str, step: StepModel, version: Version) -> str:
    parameters = {"store": str(version.store.resolve()), "version": version.name}
    lines = [
        f"name: {_quoted(name)}",
        'backend: "python"',
        "max_batch_size: 0",
        *_tensors("input", step.inputs),
        *_tensors("output", step.outputs),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        *(
            f"parameters {{ key: {_quoted(key)} value: {{ string_value: {_quoted(value)} }} }}"
            for key, value in parameters.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _ensemble_config(name: str, steps: Sequence[StepModel]) -> str:
    """Joins the steps: a tensor of one step goes to the later ones that have an input of its name."""
    lines = [
        f"name: {_quoted(name)}",
        'platform: "ensemble"',
        "max_batch_size: 0",
        *_tensors("input", steps[0].inputs),
        *_tensors("output", steps[-1].outputs),
        "ensemble_scheduling {",
    ]
    for step in steps:
        lines.append(f"  step {{ model_name: {_quoted(f'{name}.{step.step}')} model_version: -1")
        for field, tensors in (("input_map", step.inputs), ("output_map", step.outputs)):
            lines += [f'    {field} {{ key: "{tensor.name}" value: "{tensor.name}" }}' for tensor in tensors]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def _tensors(field: str, tensors: Sequence[Tensor]) -> list[str]:
    return [
        f'{field} {{ name: "{tensor.name}" data_type: {tensor.data_type} dims: {list(tensor.shape)} }}'
        for tensor in tensors
    ]


def _quoted(text: str) -> str:
    """Quotes a string for protobuf's text format."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
