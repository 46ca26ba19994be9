"""The rules of ARCHITECTURE.md that code can check: directions, cycles, one importing place for each system, sizes."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("cli", "embedding_cache", "kernels", "serving", "training")

# Who may import whom; the longest matching prefix decides.
ALLOWED = {
    "rankhouse.kernels": {"rankhouse.kernels"},
    "rankhouse.embedding_cache.format": {"rankhouse.embedding_cache.format"},
    # Rows in files are rows of the kernels, which convert them; the rest of the package is NumPy alone.
    "rankhouse.embedding_cache.format.row_types": {"rankhouse.embedding_cache.format", "rankhouse.kernels"},
    "rankhouse.embedding_cache": {"rankhouse.embedding_cache", "rankhouse.kernels"},
    "rankhouse.training": {"rankhouse.training", "rankhouse.kernels", "rankhouse.embedding_cache.format"},
    # The exporter looks its own version up before it commits it, as serving will.
    "rankhouse.training.export": {"rankhouse.training", "rankhouse.kernels", "rankhouse.embedding_cache"},
    "rankhouse.serving": {"rankhouse.serving", "rankhouse.embedding_cache", "rankhouse.kernels"},
    # Decisions are pure: what decides knows no server, no Triton and no protocol.
    "rankhouse.serving.analysis": {
        *("rankhouse.serving.analysis", "rankhouse.serving.errors", "rankhouse.embedding_cache.format"),
    },
    "rankhouse.serving.control": {
        *("rankhouse.serving.control", "rankhouse.serving.analysis.spec", "rankhouse.serving.errors"),
        "rankhouse.embedding_cache.format",
    },
    "rankhouse.serving.refresh": {
        *("rankhouse.serving.refresh", "rankhouse.serving.control", "rankhouse.serving.errors"),
        *("rankhouse.serving.golden", "rankhouse.serving.model_repository", "rankhouse.serving.triton_client"),
        "rankhouse.serving.processes",
        "rankhouse.embedding_cache",
    },
    "rankhouse.serving.admin": {
        *("rankhouse.serving.admin", "rankhouse.serving.control", "rankhouse.serving.analysis"),
        *("rankhouse.serving.errors", "rankhouse.serving.processes", "rankhouse.embedding_cache"),
        # Both ports say in the same way what went wrong.
        *("rankhouse.serving.gateway.envelope", "rankhouse.serving.gateway.problems"),
        "rankhouse.serving.gateway.json_bodies",
        "rankhouse.serving.gateway.schemas",
    },
    "rankhouse.cli": {"rankhouse"},
}

# Each outside system has one importing place.
IMPORTERS = {
    "tensorflow": {
        *("rankhouse.training", "rankhouse.kernels.tf_ops"),
        *("rankhouse.kernels.layers", "rankhouse.kernels.vocabulary_layer"),
    },
    "tf_keras": {"rankhouse.training", "rankhouse.kernels.layers", "rankhouse.kernels.vocabulary_layer"},
    "horovod": {"rankhouse.training.ranks", "rankhouse.training.runs.launch"},
    "nvtabular": {"rankhouse.training.data.preprocess"},
    "merlin": {"rankhouse.training.data.preprocess"},
    "dask": {"rankhouse.training.data.preprocess"},
    "distributed": {"rankhouse.training.data.preprocess"},
    "tf2onnx": {"rankhouse.training.export.onnx_export"},
    "onnxruntime": {"rankhouse.training.export.onnx_export", "rankhouse.serving.triton_models"},
    "tritonclient": {"rankhouse.serving.triton_client"},
    "triton_python_backend_utils": {"rankhouse.serving.triton_models"},
    "fastapi": {"rankhouse.serving.gateway", "rankhouse.serving.admin"},
    "uvicorn": {"rankhouse.serving.gateway"},
    "safetensors": {"rankhouse.embedding_cache.format.tensors"},
    "redis": {"rankhouse.serving.control.redis_state_store"},
    "fsspec": {"rankhouse.embedding_cache.format.object_storage"},
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(("rankhouse", *(parts[:-1] if parts[-1] == "__init__" else parts))), path


MODULES = dict(modules())


def within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """Returns (module, at top level) for each import of a file; `from a import b` is a.b where that is a module."""
    return list(find_imports(path))


def find_imports(path: Path) -> Iterator[tuple[str, bool]]:
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield (submodule if submodule in MODULES else str(node.module)), id(node) in top


def test_our_packages_are_found() -> None:
    assert {name.split(".")[1] for name in MODULES} == set(PACKAGES)


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_directions(module: str) -> None:
    rule = max((prefix for prefix in ALLOWED if within(module, prefix)), key=len)
    for imported, _ in imports(MODULES[module]):
        if within(imported, "rankhouse"):
            assert any(within(imported, allowed) for allowed in ALLOWED[rule]), f"{module} must not import {imported}"


@pytest.mark.parametrize("system", IMPORTERS)
def test_each_outside_system_has_one_importing_place(system: str) -> None:
    for module, path in MODULES.items():
        if any(within(imported, system) for imported, _ in imports(path)):
            assert any(within(module, allowed) for allowed in IMPORTERS[system]), f"{module} must not import {system}"


def test_there_are_no_cycles() -> None:
    graph = {
        module: {name for name, at_top in imports(path) if at_top and name in MODULES and name != module}
        for module, path in MODULES.items()
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, f"cycle: {' -> '.join((*trail, module))}"
        if module not in done:
            for imported in sorted(graph[module]):
                visit(imported, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("module", MODULES)
def test_files_and_functions_stay_small(module: str) -> None:
    source = MODULES[module].read_text()
    assert source.count("\n") <= 500, f"{module} has over 500 lines: split it by noun"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= 70, f"{module}.{node.name} has {lines} lines: over 70"


@pytest.mark.parametrize("word", ["utils", "helpers", "common"])
def test_no_module_is_named_after_nothing(word: str) -> None:
    assert not [module for module in MODULES if module.rsplit(".", 1)[-1] == word]


@pytest.mark.parametrize("module", [name for name in MODULES if name.endswith(".errors")])
def test_error_trees_are_drawn_in_their_docstring(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    drawn = ast.get_docstring(tree) or ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            assert node.name in drawn, f"{module}: {node.name} is missing in the drawing"


def test_no_pickle_is_read() -> None:
    for module, path in MODULES.items():
        for imported, _ in imports(path):
            assert imported.split(".")[0] not in {"pickle", "cloudpickle", "dill", "joblib", "shelve"}, module
