from pathlib import Path

import pytest

from rankhouse.training.data.new_folder import new_folder
from rankhouse.training.data.prepared import DATASET_NAME
from rankhouse.training.errors import PreprocessError


def make(folder: Path, content: str) -> None:
    with new_folder(folder, overwrite=True) as unfinished:
        (unfinished / "train").mkdir()
        (unfinished / "train" / "part.parquet").write_text(content)
        (unfinished / DATASET_NAME).write_text(content)


def found_in(root: Path) -> dict[str, str]:
    """What each folder says that it is."""
    return {path.name: (path / DATASET_NAME).read_text() for path in root.iterdir()}


def test_a_dataset_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    for content in ("old", "new"):
        make(tmp_path / "data", content)
        assert found_in(tmp_path) == {"data": content}


def test_the_old_dataset_stays_where_the_new_one_fails(tmp_path: Path) -> None:
    make(tmp_path / "data", "old")
    with pytest.raises(RuntimeError, match="no more rows"), new_folder(tmp_path / "data", overwrite=True):
        raise RuntimeError("no more rows")
    assert found_in(tmp_path) == {"data": "old"}


@pytest.mark.parametrize("has_empty_folder", [False, True])
def test_what_a_process_died_over_is_put_back(tmp_path: Path, has_empty_folder: bool) -> None:
    make(tmp_path / "data", "old")
    (tmp_path / "data").rename(tmp_path / ".data.replaced")
    make(tmp_path / ".data.unfinished", "new")
    if has_empty_folder:
        (tmp_path / "data").mkdir()
    with (
        pytest.raises(PreprocessError, match="is a prepared dataset already"),
        new_folder(tmp_path / "data", overwrite=False),
    ):
        pass
    assert found_in(tmp_path) == {"data": "old", ".data.unfinished": "new"}
    make(tmp_path / "data", "newer")
    assert found_in(tmp_path) == {"data": "newer"}


def test_the_old_dataset_goes_where_a_process_died_after_the_new_one_was_there(tmp_path: Path) -> None:
    make(tmp_path / ".data.replaced", "old")
    make(tmp_path / "data", "new")
    assert found_in(tmp_path) == {"data": "new"}


def test_a_dataset_aside_is_kept_where_something_else_is_in_its_place(tmp_path: Path) -> None:
    make(tmp_path / ".data.replaced", "old")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / DATASET_NAME.upper()).write_text("foreign")
    with pytest.raises(PreprocessError, match="no prepared dataset"):
        make(tmp_path / "data", "new")
    assert (tmp_path / ".data.replaced" / DATASET_NAME).read_text() == "old"
