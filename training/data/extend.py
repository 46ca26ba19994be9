"""A new day of raw logs as a prepared dataset that extends another: what was fitted stays, vocabularies grow.

Statistics are the parent's and an id once given never moves, so that training goes on from the parent's checkpoints:
rows come at the tables' ends, and in the places of values that made way. Needs no NVTabular.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import feather

from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.vocabulary import Vocabularies
from rankhouse.training.data.arrow_transform import write_split
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.fit import first_difference
from rankhouse.training.data.growth import Growth, grown
from rankhouse.training.data.new_folder import TRAIN_SPLIT, Progress, check_splits, new_folder
from rankhouse.training.data.prepared import SPEC_NAME, PreparedDataset, TableInfo
from rankhouse.training.data.raw_parts import read_parts, sample
from rankhouse.training.data.usage import save_usage, usage_of
from rankhouse.training.data.value_counts import ValueCounter
from rankhouse.training.errors import PreprocessError


def extend(
    parent: Path | str,
    folder: Path | str,
    paths: Mapping[str, Path | str],
    *,
    spec: FeatureSpec | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PreparedDataset:
    """Makes a prepared dataset of a new day. The folder appears only when everything is in it.

    Args:
        parent: The prepared dataset to extend; it stays as it is.
        folder: The folder to make.
        paths: For each split the raw files; vocabularies learn from "train" alone.
        spec: What the columns are: the parent's spec, which is also what None means; only its timestamp may be another.
        overwrite: Whether a prepared dataset that is already there is replaced.
        progress: Whom to tell.

    Returns:
        The dataset. It has one layer of vocabularies more than the parent, whose layers it shares.

    Raises:
        DatasetError, CorruptFileError: The parent is no prepared dataset, or damaged.
        RawFileError: A raw file is missing or wrong.
        PreprocessError: The folder is in the way, or the feature spec is another than the parent's.
    """
    known, folder, progress = PreparedDataset.open(parent), Path(folder), progress or Progress()
    spec = spec or known.spec
    if difference := _difference(spec, known.spec):
        raise PreprocessError(
            f"{parent} was made with another feature spec: {difference}; extend it with its own, or prepare anew"
        )
    check_splits(paths)
    if folder.resolve() == known.path.resolve():
        raise PreprocessError(f"{folder} is the dataset to extend, which stays; give another folder")
    known.verify_layers()
    with new_folder(folder, overwrite=overwrite) as unfinished:
        staged = unfinished / "staged"
        progress.on_stage(f"reading the rows of {TRAIN_SPLIT}")
        fitted = known.transform()
        growth = _grow(known, fitted.vocabularies, _staged(paths[TRAIN_SPLIT], spec, staged, progress))
        changes = {name: each.change for name, each in growth.items()}
        transform = CompiledTransform(fitted.features, fitted.vocabularies.extended(changes))
        transform.save(unfinished, shared=known.layers)
        save_usage(unfinished, {name: each.usage for name, each in growth.items()})
        splits = {}
        for name, path in paths.items():
            sample(unfinished / name, path, spec)
            parts = _read_staged(staged) if name == TRAIN_SPLIT else read_parts(path, spec)
            splits[name] = write_split(unfinished, name, parts, spec, transform, progress)
        staged.rmdir()
        spec.save(unfinished / SPEC_NAME)
        tables = {
            name: TableInfo(transform.vocabularies.num_rows[name], table.dim) for name, table in known.tables.items()
        }
        PreparedDataset(unfinished, spec, splits, tables, known.layer_records).commit()
    return PreparedDataset.open(folder)


def _difference(spec: FeatureSpec, parent: FeatureSpec) -> str:
    """Says where a spec differs from the parent's; empty where it does not."""
    for key in ("name", "label"):
        if getattr(spec, key) != getattr(parent, key):
            return f"{key} is {getattr(spec, key)!r}, was {getattr(parent, key)!r}"
    return first_difference(spec.features, parent.features)


def _staged(path: Path | str, spec: FeatureSpec, folder: Path, progress: Progress) -> Iterator[pa.Table]:
    """Reads raw logs, and leaves them in `folder` as Arrow files, which are read back much faster than texts."""
    folder.mkdir()
    for index, table in enumerate(read_parts(path, spec)):
        feather.write_feather(table, folder / f"part-{index:05d}.arrow", compression="lz4")
        progress.on_rows(table.num_rows)
        yield table


def _read_staged(folder: Path) -> Iterator[pa.Table]:
    """Reads staged raw logs, and removes them."""
    for file in sorted(folder.iterdir()):
        yield feather.read_table(file, memory_map=False)
        file.unlink()


def _grow(known: PreparedDataset, vocabularies: Vocabularies, parts: Iterator[pa.Table]) -> dict[str, Growth]:
    # Keys that are learnt in training are no values of a vocabulary: their tables have nothing that grows.
    counters = {name: ValueCounter(features) for name, features in known.spec.tables.items()}
    counted = [counters[name] for name in known.spec.fitted_tables]
    for table in parts:
        for counter in counted:
            counter.add(table)
    usage = usage_of(known)
    return {
        name: grown(
            vocabularies,
            name,
            counters[name].counts(),
            usage[name],
            frequency_threshold=features[0].frequency_threshold,
            max_size=features[0].max_size,
        )
        for name, features in known.spec.tables.items()
    }
