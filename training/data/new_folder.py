"""A prepared dataset in the making: its folder appears whole or not at all."""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.format.files import flush
from rankhouse.training.data.prepared import DATASET_NAME, WORKFLOW_NAME
from rankhouse.training.errors import PreprocessError

# The split that the statistics and vocabularies are learnt from.
TRAIN_SPLIT = "train"

# What else lies beside the splits, some of it only in the making.
_TAKEN = (WORKFLOW_NAME, "vocabularies", "staged")


@dataclass(frozen=True)
class Progress:
    """Whom to tell how far the work is.

    Attributes:
        on_stage: Called with what is being done.
        on_rows: Called with the number of raw rows read since the last call.
    """

    on_stage: Callable[[str], None] = lambda stage: None
    on_rows: Callable[[int], None] = lambda num_rows: None


def check_split_names(names: Iterable[str]) -> None:
    """Checks that splits can have these names.

    Raises:
        PreprocessError: One cannot.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name in _TAKEN:
            raise PreprocessError(
                f"a split is named by letters, digits, '_' and '-', and none of {', '.join(_TAKEN)}; got {name!r}"
            )


def check_splits(names: Iterable[str]) -> None:
    """Checks the splits of a new dataset.

    Raises:
        PreprocessError: One has an impossible name, or there is none to learn from.
    """
    if TRAIN_SPLIT not in names:
        raise PreprocessError(f"the splits are {', '.join(names)}; one must be {TRAIN_SPLIT!r}, to fit on")
    check_split_names(names)


@contextmanager
def new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a hidden folder to fill, which becomes `folder` at the end, or goes if that fails.

    A dataset that is replaced lies aside, as `.<name>.replaced`, until the new one is on the disk under its name. If
    the process dies in between, the next call puts it back.

    Raises:
        PreprocessError: What is there is no prepared dataset, or is one that may not be replaced.
    """
    unfinished, replaced = (folder.with_name(f".{folder.name}.{state}") for state in ("unfinished", "replaced"))
    _settle(folder, replaced)
    _check_free(folder, overwrite)
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        for path in (*unfinished.rglob("*"), unfinished):
            flush(path)
        if folder.exists():
            folder.rename(replaced)
        unfinished.rename(folder)
        flush(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        _settle(folder, replaced)


def _settle(folder: Path, replaced: Path) -> None:
    """Puts a dataset that was moved aside back where no other has taken its place, and removes it where one has."""
    if replaced.exists() and _is_free(folder):
        replaced.rename(folder)
    elif replaced.exists() and (folder / DATASET_NAME).is_file():
        flush(folder.parent)
        shutil.rmtree(replaced)


def _check_free(folder: Path, overwrite: bool) -> None:
    if _is_free(folder):
        return
    if not (folder / DATASET_NAME).is_file():
        raise PreprocessError(f"{folder} is there and is no prepared dataset; give another folder or remove it")
    if not overwrite:
        raise PreprocessError(
            f"{folder} is a prepared dataset already; give another folder or replace it (--overwrite)"
        )


def _is_free(folder: Path) -> bool:
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
