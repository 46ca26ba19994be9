"""The baseline of the ensemble's benchmark still computes what serving does."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.support.ensemble.wire import Tensors, ensemble_tensors
from benchmarks.support.python_ensemble.embedding import EmbeddingStep
from benchmarks.support.python_ensemble.repository import write_python_ensemble
from benchmarks.support.python_ensemble.transform import TransformStep
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import InvalidTensorsError
from rankhouse.serving.triton_models.dense import DenseStep
from rankhouse.serving.triton_models.step import Step
from tests.serving.small_version import ROWS, Weights, raw_batch, write_version


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return write_version(tmp_path_factory.mktemp("store"))


def test_the_steps_in_a_row_give_the_truth(version: Version) -> None:
    arrays: Tensors = ensemble_tensors(raw_batch(ROWS))
    steps: list[Step] = [TransformStep(version), EmbeddingStep(version), DenseStep(version)]
    for step in steps:
        arrays |= step(**{name: arrays[name] for name in step.inputs})
    np.testing.assert_allclose(arrays["scores"], Weights(0).scores(ROWS), rtol=0, atol=1e-6)


def test_its_models_import_the_steps_from_here(version: Version, tmp_path: Path) -> None:
    name = write_python_ensemble(version, name="python", repository=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        name,
        *(f"{name}.{step}" for step in ("dense", "embedding", "transform")),
    ]
    for step in ("transform", "embedding"):
        code = (tmp_path / f"{name}.{step}" / "1" / "model.py").read_text()
        assert f"from benchmarks.support.python_ensemble.{step} import" in code
    assert (tmp_path / name / "config.pbtxt").read_text().count(f'model_name: "{name}.') == 3


def test_a_wrong_batch_is_refused(version: Version) -> None:
    with pytest.raises(InvalidTensorsError, match="lengths add up to 5, there are 4 ids"):
        EmbeddingStep(version)(ids=np.zeros(4, np.int64), lengths=np.ones((5, 1), np.int32))
    wrong = ensemble_tensors(raw_batch(ROWS)) | {"text_sizes": np.array([1], np.int32)}
    with pytest.raises(InvalidTensorsError, match="expected as many as text_sizes add up to, 1"):
        TransformStep(version)(**wrong)
