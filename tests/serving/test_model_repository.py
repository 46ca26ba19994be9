import re
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving import model_repository
from rankhouse.serving.errors import InvalidModelNameError
from rankhouse.serving.model_repository import ensemble_name, remove_models, write_models, written_versions


def test_a_version_gets_models_of_its_own_names(version: Version, tmp_path: Path) -> None:
    name = write_models(version, repository=tmp_path)
    assert name == f"small.{version.name}"
    steps = [f"{name}.{step}" for step in ("dense", "features")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, *steps]
    for folder in tmp_path.iterdir():
        assert f'name: "{folder.name}"' in (folder / "config.pbtxt").read_text()


def test_the_models_of_one_version_are_removed(version: Version, tmp_path: Path) -> None:
    (tmp_path / "small.000009-00000000").mkdir()
    (tmp_path / "small.other").mkdir()
    write_models(version, repository=tmp_path)
    assert written_versions("small", tmp_path) == sorted([version.name, "000009-00000000"])
    remove_models("small", version.name, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.000009-00000000", "small.other"]
    remove_models("small", version.name, tmp_path)


def test_steps_know_their_version_and_the_ensemble_its_steps(version: Version, tmp_path: Path) -> None:
    name = write_models(version, repository=tmp_path)
    config = (tmp_path / f"{name}.features" / "config.pbtxt").read_text()
    assert 'backend: "rankhouse"' in config
    assert f'parameters {{ key: "version" value: {{ string_value: "{version.name}" }} }}' in config
    assert f'parameters {{ key: "store" value: {{ string_value: "{version.store.resolve()}" }} }}' in config
    assert f'output {{ name: "embeddings" data_type: TYPE_FP32 dims: [-1, {version.embeddings_dim}] }}' in config
    ensemble = (tmp_path / name / "config.pbtxt").read_text()
    assert ensemble.count(f'model_name: "{name}.') == 2
    # What no step takes comes out.
    assert re.findall(r'^output { name: "(\w+)"', ensemble, re.MULTILINE) == ["degraded", "unknown", "scores"]


def test_the_dense_part_runs_in_onnx_runtime_where_the_server_has_its_backend(version: Version, tmp_path: Path) -> None:
    backends, repository = tmp_path / "backends", tmp_path / "models"
    (backends / "onnxruntime").mkdir(parents=True)
    (backends / "onnxruntime" / "libtriton_onnxruntime.so").touch()
    name = write_models(version, repository=repository, backends=backends)
    config = (repository / f"{name}.dense" / "config.pbtxt").read_text()
    assert 'backend: "onnxruntime"' in config
    assert 'parameters { key: "intra_op_thread_count" value: { string_value: "1" } }' in config
    assert (repository / f"{name}.dense" / "1" / "model.onnx").read_bytes() == version.dense_path.read_bytes()


@pytest.mark.parametrize("has_folder", [True, False])
def test_it_runs_in_our_backend_where_not(version: Version, tmp_path: Path, has_folder: bool) -> None:
    backends, repository = tmp_path / "backends", tmp_path / "models"
    (backends / "python").mkdir(parents=True)
    name = write_models(version, repository=repository, backends=backends if has_folder else None)
    config = (repository / f"{name}.dense" / "config.pbtxt").read_text()
    assert 'backend: "rankhouse"' in config
    assert 'key: "step" value: { string_value: "dense" }' in config
    assert re.search(r'key: "onnxruntime" value: { string_value: "/.*/libonnxruntime.so', config)


def test_it_runs_in_python_where_onnx_runtime_has_no_library_apart(
    version: Version, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_repository.importlib.util, "find_spec", lambda name: None)
    name = write_models(version, repository=tmp_path)
    assert 'backend: "python"' in (tmp_path / f"{name}.dense" / "config.pbtxt").read_text()
    assert "DenseStep" in (tmp_path / f"{name}.dense" / "1" / "model.py").read_text()


def test_embeddings_are_looked_up_on_a_gpu_where_one_is_named(version: Version, tmp_path: Path) -> None:
    name = write_models(version, repository=tmp_path, device=2)
    configs = {step: (tmp_path / f"{name}.{step}" / "config.pbtxt").read_text() for step in ("features", "dense")}
    assert "instance_group [ { kind: KIND_GPU gpus: [ 2 ] count: 4 } ]" in configs["features"]
    assert "instance_group [ { kind: KIND_CPU count: 4 } ]" in configs["dense"]


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
