"""Tables on the host that learn their keys train as those held whole: to the bit, on one rank and on two."""

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from rankhouse.training.checkpoint.checkpoint import load_checkpoint
from rankhouse.training.ranks import Ranks
from tests.training.host_keys import (
    CACHED,
    CAPACITY,
    NUM_STEPS,
    TABLES,
    batch,
    build,
    make_step,
    same_tables,
    train_all,
)
from tests.training.launching import run_on_ranks

ALONE = Ranks(0, 1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("host_keys")


@pytest.fixture(scope="module")
def together(directory: Path) -> list[dict[str, Any]]:
    return run_on_ranks(train_all, directory, num_ranks=2)


def check(found: dict[str, Any]) -> None:
    assert {name for name, same in found.items() if name not in ("stats", "full") and same is not True} == set()
    assert found["full"] == [CAPACITY] * len(TABLES)


def test_one_rank_trains_saves_and_loads_as_with_tables_held_whole(directory: Path) -> None:
    found = train_all(ALONE, directory)
    check(found)
    assert found["stats"].keys() == TABLES.keys()
    for stats in found["stats"].values():
        assert stats["misses"] > CACHED
        assert stats["written_back"] > 0


@pytest.mark.horovod
def test_two_ranks_do_too(together: list[dict[str, Any]]) -> None:
    for found in together:
        check(found)


@pytest.mark.horovod
def test_what_two_ranks_saved_is_loaded_by_one(together: list[dict[str, Any]], directory: Path) -> None:
    states = []
    for name, cached in (("host", None), ("whole", 25)):
        states.append(build(ALONE, directory, cached=cached, seed=6))
        load_checkpoint(directory / f"{name}-2" / f"step-{NUM_STEPS:08}", states[-1], ranks=ALONE)
    assert same_tables(*states)


def test_more_keys_in_a_step_than_are_cached_are_refused(directory: Path) -> None:
    state = build(ALONE, directory, cached=5)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"different rows of table whole at once.*cache_rows are 5"
    ):
        make_step(state)(*batch(state.embedding, 0))
