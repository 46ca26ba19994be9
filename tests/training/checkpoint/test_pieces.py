"""Checkpoints go from any plan to any other: written and read as each rank would, without starting any."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.files import MANIFEST_NAME
from rankhouse.kernels.optimizer_settings import Adagrad, Adam, OptimizerSettings, RowwiseAdagrad
from rankhouse.training.checkpoint import files as checkpoint_files
from rankhouse.training.checkpoint import part as checkpoint_part
from rankhouse.training.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from rankhouse.training.checkpoint.files import TOUCHED, Checkpoint, find_damage
from rankhouse.training.errors import CheckpointError
from rankhouse.training.plan import Placement, Plan, ShardSpec
from rankhouse.training.ranks import Ranks
from tests.training.pretend_ranks import load_all, make_plan_by_hand, pretend, save_all
from tests.training.small_model import arrays, build, train

ALONE = Ranks(0, 1)
UNEVEN_COLUMNS = Placement(
    "user",
    "column_wise",
    (ShardSpec(0, 0, 40, 0, 1), ShardSpec(1, 0, 40, 1, 3), ShardSpec(1, 0, 40, 3, 4)),
)
UNEVEN_ROWS = Placement(
    "user", "row_wise", (ShardSpec(0, 0, 3, 0, 4), ShardSpec(1, 3, 3, 0, 4), ShardSpec(2, 3, 40, 0, 4)), "rows"
)
BY_ROWS = [
    make_plan_by_hand(4, {"user": "row_wise", "shop": "row_wise", "item": "row_wise"}),
    make_plan_by_hand(3, {"user": UNEVEN_ROWS, "shop": "data_parallel", "item": "row_wise"}),
    make_plan_by_hand(2, {"user": "table_wise", "shop": "row_wise", "item": "row_wise"}),
]
BY_BOTH = [
    make_plan_by_hand(4, {"user": "column_wise", "shop": "data_parallel", "item": "row_wise"}),
    make_plan_by_hand(3, {"user": UNEVEN_ROWS, "shop": "column_wise", "item": "column_wise"}),
    make_plan_by_hand(2, {"user": UNEVEN_COLUMNS, "shop": "row_wise", "item": "table_wise"}),
    make_plan_by_hand(4, {"user": "row_wise", "shop": "table_wise", "item": "column_wise"}),
]


@pytest.fixture(autouse=True, scope="module")
def small_files() -> Iterator[None]:
    """Cuts tables into several files, and what is put together from them into several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_part, "_FILE_BYTES", 112)
        patch.setattr(checkpoint_part, "_BLOCK_BYTES", 48)
        patch.setattr(checkpoint_files, "_BLOCK_BYTES", 48)
        yield


@pytest.mark.parametrize(
    ("plans", "settings"), [([*BY_ROWS, *BY_BOTH[1:3]], RowwiseAdagrad()), (BY_BOTH, Adam(kind="exact"))]
)
def test_any_plan_loads_what_any_other_saved(tmp_path: Path, plans: list[Plan], settings: OptimizerSettings) -> None:
    """From one rank to four, three, two and back: the same bits everywhere, and in the steps that follow."""
    state = build(ALONE, settings=settings)
    train(state, ALONE, 0, 5)
    path = save_checkpoint(tmp_path, state, ranks=ALONE, step=0, document={})
    expected = arrays(path)
    for number, plan in enumerate(plans, 1):
        path = save_all(tmp_path, load_all(path, plan, settings), number)
        found = arrays(path)
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values, err_msg=f"{number}: {name}")
        assert find_damage(path) == []
    again = build(ALONE, seed=9, settings=settings)
    load_checkpoint(path, again, ranks=ALONE)
    assert train(again, ALONE, 5, 10) == train(state, ALONE, 5, 10)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("saved")
    state = build(ALONE)
    train(state, ALONE, 0, 5)
    whole = save_checkpoint(root / "whole", state, ranks=ALONE, step=5, document={})
    save_all(root / "sliced", load_all(whole, BY_BOTH[2], Adagrad()), 5)
    return root


@pytest.fixture
def whole(saved: Path) -> Path:
    """A checkpoint of one rank."""
    return saved / "whole" / "step-00000005"


@pytest.fixture
def sliced(saved: Path, tmp_path: Path) -> Path:
    """A checkpoint of two ranks with the same content; "user" has three slices of columns, each in files of 7 rows."""
    return shutil.copytree(saved / "sliced" / "step-00000005", tmp_path / "sliced" / "step-00000005")


def test_some_rows_and_columns_are_read_alone(whole: Path, sliced: Path) -> None:
    opened = Checkpoint.open(sliced)
    expected = np.concatenate([block.rows for block in Checkpoint.open(whole).rows("user")])
    for rows, columns in [((0, 40), (0, 4)), ((5, 23), (1, 3)), ((6, 8), (0, 2)), ((3, 3), (0, 4)), ((39, 40), (2, 3))]:
        blocks = opened.rows("user", start=rows[0], stop=rows[1], column_start=columns[0], column_stop=columns[1])
        found = np.concatenate([np.empty((0, columns[1] - columns[0]), np.float32), *(each.rows for each in blocks)])
        np.testing.assert_array_equal(found, expected[slice(*rows), slice(*columns)])
    streamed = list(opened.stream("user", num_rows=4))
    np.testing.assert_array_equal(np.concatenate([block.rows for block in streamed]), expected)
    assert [block.start for block in streamed[:4]] == [0, 4, 7, 11]
    ids = np.array([39, 0, 17, 17])
    np.testing.assert_array_equal(opened.gather("user", ids), expected[ids])


def test_whole_rows_are_noted_as_older_releases_do(whole: Path) -> None:
    manifest = json.loads((whole / MANIFEST_NAME).read_text())
    assert {frozenset(item) for item in manifest["row_ranges"]} == {
        frozenset(("table", "array", "start", "stop", "file"))
    }


def test_a_row_was_written_when_its_last_slice_was(sliced: Path, tmp_path: Path) -> None:
    plan = BY_BOTH[2]
    states = load_all(sliced, plan, Adagrad())
    for number, shard in enumerate(states[1].embedding.shards):
        if shard.table == "user":
            steps = states[1].optimizer.touched_steps(shard.variable)
            steps.assign(np.where(np.arange(40) == 3 + number, 9, 5).astype(np.int32))
    opened = Checkpoint.open(save_all(tmp_path / "again", states, 6))
    written = np.concatenate([block.rows for block in opened.rows("user", TOUCHED)])
    assert sorted(np.flatnonzero(written == 9)) == opened.touched_since("user", 8).tolist()
    assert len(opened.touched_since("user", 8)) == 2


def test_a_rank_verifies_the_files_of_its_own_rows(sliced: Path) -> None:
    file = sliced / "tables/user.weights.35-40.columns-1-3.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)
    opened = Checkpoint.open(sliced)
    assert sum(len(block.rows) for block in opened.rows("user", stop=35)) == 35
    assert sum(len(block.rows) for block in opened.rows("user", column_start=3)) == 40
    for read in (opened.rows("user", start=30), opened.stream("user", num_rows=100)):
        with pytest.raises(CheckpointError, match=f"{file.name}: its content was altered"):
            list(read)


def test_all_damage_is_found_at_once(sliced: Path) -> None:
    flipped, missing, short = sorted((sliced / "tables").glob("user.weights.*"))[:3]
    content = bytearray(flipped.read_bytes())
    content[-1] ^= 1
    flipped.write_bytes(content)
    missing.unlink()
    short.write_bytes(short.read_bytes()[:-1])
    manifest = json.loads((sliced / MANIFEST_NAME).read_text())
    manifest["row_ranges"] = [
        item for item in manifest["row_ranges"] if (item["table"], item.get("column_stop")) != ("user", 3)
    ]
    (sliced / MANIFEST_NAME).write_text(json.dumps(manifest))
    damages = find_damage(sliced)
    for file, reason in ((flipped, "was altered"), (missing, "is missing"), (short, "was truncated")):
        assert any(f"{file.name}: " in message and reason in message for message in damages)
    assert any("rows 0 to 7 of table 'user' (weights), columns 0 to 4, are in none" in message for message in damages)
    assert len(damages) == 3 + 3
    (sliced / MANIFEST_NAME).write_text("{")
    assert len(find_damage(sliced)) == 1


def test_numbers_of_rows_that_each_slice_had_for_itself_are_not_put_together(tmp_path: Path) -> None:
    """Older releases saved such, where an optimizer was used that the layer refused."""
    settings = RowwiseAdagrad()
    path = save_all(tmp_path, pretend(BY_BOTH[2], settings), 1)
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    whole = [piece for piece in manifest["row_ranges"] if (piece["table"], piece["array"]) == ("user", "accumulator")]
    assert not any("column_start" in piece for piece in whole)
    others = [piece for piece in manifest["row_ranges"] if piece not in whole]
    slices = [
        {**piece, "column_start": at, "column_stop": to} for piece in whole for at, to in ((0, 1), (1, 3), (3, 4))
    ]
    (path / MANIFEST_NAME).write_text(json.dumps({**manifest, "row_ranges": others + slices}))
    assert sum(len(block.rows) for block in Checkpoint.open(path).rows("user", "accumulator", column_stop=1)) == 40
    with pytest.raises(CheckpointError, match="'accumulator' of table 'user' is one number for each row of 3 slices"):
        load_all(path, BY_BOTH[1], settings)
