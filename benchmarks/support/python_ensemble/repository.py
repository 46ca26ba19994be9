"""The models of the Python ensemble in Triton's repository."""

from pathlib import Path

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.model_repository import (
    StepModel,
    Tensor,
    feature_tensors,
    python_dense_step,
    raw_tensors,
    version_parameters,
    write_ensemble,
)

CHECKOUT = Path(__file__).parents[3]


def write_python_ensemble(version: Version, *, name: str, repository: Path) -> str:
    """Writes the ensemble of a version and its three steps; loads nothing.

    Args:
        version: The version.
        name: The ensemble's name, which must not be that of serving's own.
        repository: The folder that Triton was started with.

    Returns:
        The name.
    """
    dense, embeddings = feature_tensors(version)
    ids = Tensor("ids", "TYPE_INT64", (-1,))
    lengths = Tensor("lengths", "TYPE_INT32", (len(version.features), -1))
    steps = (
        _step("transform", "TransformStep", raw_tensors(version), (dense, ids, lengths), version),
        _step("embedding", "EmbeddingStep", (ids, lengths), (embeddings,), version),
        python_dense_step(version),
    )
    write_ensemble(name, steps, repository=repository)
    return name


def importing(code: str) -> str:
    """Returns the file of a Python model whose code imports from `benchmarks`."""
    return f"import sys\n\nsys.path.insert(0, {str(CHECKOUT)!r})\n{code}"


def _step(
    step: str, step_class: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], version: Version
) -> StepModel:
    code = (
        f"from benchmarks.support.python_ensemble.{step} import {step_class}\n"
        "from rankhouse.serving.triton_models.python_backend import triton_model\n\n"
        f"TritonPythonModel = triton_model({step_class})\n"
    )
    files = {"model.py": importing(code)}
    return StepModel(step, "python", inputs, outputs, version_parameters(version), files, num_instances=1)
