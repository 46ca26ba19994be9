"""Row-wise Adagrad on slices of columns is that of whole rows, on any number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.training.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.errors import OptimizerError
from rankhouse.training.ranks import Ranks
from tests.training.launching import run_on_ranks
from tests.training.row_wise_slices import NUM_STEPS, SETTINGS, TABLES, build, numbers, tables, train, train_all

ALONE = Ranks(0, 1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("row_wise_slices")


@pytest.fixture(scope="module")
def whole(directory: Path) -> dict[str, dict[str, np.ndarray]]:
    """Whole tables after training, which is the kernels' alone; the plain one leaves a checkpoint."""
    found = {}
    for settings in SETTINGS:
        state = build(ALONE, settings, sliced=False)
        train(state, range(NUM_STEPS))
        slots = {name.split("/")[0]: values for name, values in numbers(state)}
        found[settings] = {**dict(tables(state)), **{f"slots/{name}": values for name, values in slots.items()}}
        if settings == "plain":
            save_checkpoint(directory / "whole", state, ranks=ALONE, step=NUM_STEPS, document={})
            np.savez(directory / "whole.npz", **slots)
    return found


@pytest.fixture(scope="module")
def alone(directory: Path, whole: dict[str, Any]) -> dict[str, Any]:
    return train_all(ALONE, directory)


@pytest.fixture(scope="module")
def together(directory: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    return run_on_ranks(train_all, directory, num_ranks=3)


def check_against_whole(arrays: Any, whole: dict[str, dict[str, np.ndarray]]) -> None:
    for name in arrays.files:
        layer, _, what = name.partition("/")
        expected = whole[layer.split("_")[0]]
        if layer.endswith("_1"):
            continue  # With other ids.
        parts = what.split("/")
        key = "/".join(parts[:2]) if parts[0] == "slots" else what
        np.testing.assert_allclose(arrays[name], expected[key], rtol=2e-6, atol=2e-7, err_msg=name)


def test_slices_on_one_rank_are_a_whole_table(
    alone: dict[str, Any], whole: dict[str, dict[str, np.ndarray]], directory: Path
) -> None:
    check_against_whole(np.load(directory / "1-0.npz"), whole)
    assert alone["bytes"] == 0


@pytest.mark.horovod
def test_slices_on_three_ranks_are_a_whole_table(
    together: list[dict[str, Any]], whole: dict[str, dict[str, np.ndarray]], directory: Path
) -> None:
    for rank in range(3):
        check_against_whole(np.load(directory / f"3-{rank}.npz"), whole)


@pytest.mark.horovod
def test_slices_that_owners_pool_have_the_bits_of_one_rank(together: list[dict[str, Any]], directory: Path) -> None:
    one = np.load(directory / "1-0.npz")
    for rank in range(3):
        many = np.load(directory / f"3-{rank}.npz")
        for name in many.files:
            what = name.split("/", 1)[1]
            if "rows" in what:
                np.testing.assert_allclose(many[name], one[name], rtol=2e-6, atol=2e-7, err_msg=name)
            else:
                assert np.array_equal(many[name], one[name]), name


@pytest.mark.horovod
def test_sums_travel_and_are_counted(together: list[dict[str, Any]]) -> None:
    sent = [answer["bytes"] for answer in together]
    assert min(sent) > 0


def test_a_whole_table_loads_into_slices_on_one_rank(alone: dict[str, Any]) -> None:
    assert alone["loaded"] == [True] * 8


@pytest.mark.horovod
def test_a_whole_table_loads_into_slices(together: list[dict[str, Any]]) -> None:
    assert [answer["loaded"] for answer in together] == [[True] * 3, [True] * 3, [True] * 2]


@pytest.mark.horovod
def test_slices_load_into_a_whole_table_and_each_row_is_written_once(
    together: list[dict[str, Any]], directory: Path
) -> None:
    (path,) = (directory / "3").glob("step-*")
    state = build(ALONE, "plain", sliced=False)
    load_checkpoint(path, state, ranks=ALONE)
    trained = np.load(directory / "3-0.npz")
    for name, values in numbers(state):
        assert np.array_equal(values, trained[f"plain_4/slots/{name}"]), name
    written = [file for file in Checkpoint.open(path).files if ".accumulator." in file]
    assert sorted(written) == [f"tables/{name}.accumulator.0-{TABLES[name][0]}.safetensors" for name in sorted(TABLES)]


def test_refuses_some_of_the_slices_alone() -> None:
    state = build(ALONE, "plain", sliced=True, names=("pooled",))
    pairs = [(tf.zeros(variable.shape), variable) for variable in state.optimizer.variables]
    with pytest.raises(OptimizerError, match="2 of the 3 slices of table 'pooled' have a gradient; update them all"):
        state.optimizer.apply_gradients(pairs[:2])
    state.optimizer.apply_gradients(pairs)
