from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import InvalidModelNameError
from rankhouse.serving.model_repository import ensemble_name, write_models


def test_a_version_gets_models_of_its_own_names(version: Version, tmp_path: Path) -> None:
    name = write_models(version, repository=tmp_path)
    assert name == f"small.{version.name}"
    steps = [f"{name}.{step}" for step in ("dense", "embedding", "transform")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, *steps]
    for folder in tmp_path.iterdir():
        assert f'name: "{folder.name}"' in (folder / "config.pbtxt").read_text()


def test_steps_know_their_version_and_the_ensemble_its_steps(version: Version, tmp_path: Path) -> None:
    name = write_models(version, repository=tmp_path)
    config = (tmp_path / f"{name}.embedding" / "config.pbtxt").read_text()
    assert f'parameters {{ key: "version" value: {{ string_value: "{version.name}" }} }}' in config
    assert f'parameters {{ key: "store" value: {{ string_value: "{version.store.resolve()}" }} }}' in config
    assert f'output {{ name: "embeddings" data_type: TYPE_FP32 dims: [-1, {version.embeddings_dim}] }}' in config
    ensemble = (tmp_path / name / "config.pbtxt").read_text()
    assert ensemble.count(f'model_name: "{name}.') == 3


def test_writing_again_changes_nothing_else(version: Version, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    name = write_models(version, repository=tmp_path)
    (tmp_path / name / "leftover").touch()
    assert write_models(version, repository=tmp_path) == name
    assert not (tmp_path / name / "leftover").exists()
    assert (tmp_path / "other").is_dir()


@pytest.mark.parametrize("model", ["", "a.b", "../up", "a/b", "a b", "-a", "modèle", 'a"b'])
def test_a_name_that_cannot_be_a_folder_is_refused(model: str) -> None:
    with pytest.raises(InvalidModelNameError, match="use letters, digits, _ and -"):
        ensemble_name(model, "000001-00000000")
