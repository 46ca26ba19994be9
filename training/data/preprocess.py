"""Preprocessing with NVTabular: fits a workflow on one path, transforms others, compiles the fit into plain data.

The only module that imports NVTabular, Merlin and Dask, and the only one that reads a saved workflow back.
"""

import logging
import math
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.files import flush
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.vocabulary import MISSING_ID, Values, Vocabularies
from rankhouse.training.data.arrow_transform import ROW_GROUP_ROWS, known_values, write_split
from rankhouse.training.data.feature_spec import CategoricalFeature, ContinuousFeature, FeatureSpec
from rankhouse.training.data.new_folder import TRAIN_SPLIT, Progress, check_split_names, check_splits, new_folder
from rankhouse.training.data.prepared import SPEC_NAME, WORKFLOW_NAME, PreparedDataset, Split, SplitFile, TableInfo
from rankhouse.training.data.raw_parts import read_parts, sample
from rankhouse.training.data.staging import StagedSplit, hand_through, stage
from rankhouse.training.errors import PreprocessError


@contextmanager
def _without_tensorflow() -> Iterator[None]:
    """Imports Merlin without TensorFlow, which it would load only to share GPU memory with it.

    That would cost seconds and half a gigabyte in every worker.
    """
    hidden = "tensorflow" not in sys.modules
    if hidden:
        sys.modules["tensorflow"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["tensorflow"]


with _without_tensorflow(), warnings.catch_warnings():
    # They warn of each other's ages and of the missing GPU, on import and only there.
    warnings.simplefilter("ignore")
    import distributed
    import merlin.dag.executors
    import nvtabular
    from merlin.core.dispatch import list_val_dtype
    from merlin.io import Dataset
    from nvtabular import ColumnSelector, ops


def _list_dtype(column: pd.Series) -> np.dtype[Any]:
    """The dtype of a list column's values: texts, where all lists of a partition are empty. Merlin fails on those."""
    dtype: np.dtype[Any] = list_val_dtype(column) or np.dtype(object)
    return dtype


# Every worker imports this module, because the workflow's operators are of it.
merlin.dag.executors.list_val_dtype = _list_dtype


@dataclass(frozen=True)
class Workers:
    """Who does the work.

    Attributes:
        num_workers: Processes to start on this machine; 0 works in this process.
        scheduler: Address of a Dask scheduler to use instead, such as tcp://10.0.0.1:8786. Its workers need the same
            packages and see the same paths.
    """

    num_workers: int = 0
    scheduler: str = ""

    def __post_init__(self) -> None:
        if self.num_workers < 0 or (self.num_workers and self.scheduler):
            raise PreprocessError(
                f"give either a number of workers, 0 or more, or a scheduler; not {self.num_workers} and "
                f"{self.scheduler!r}"
            )

    @contextmanager
    def started(self) -> Iterator[None]:
        """Makes the workers those that NVTabular finds.

        Raises:
            PreprocessError: The scheduler does not answer.
        """
        if not self.num_workers and not self.scheduler:
            yield
            return
        try:
            with self._cluster() as cluster, distributed.Client(cluster):
                yield
        except OSError as exc:
            raise PreprocessError(f"the Dask scheduler {self.scheduler} does not answer: {exc}") from exc

    def _cluster(self) -> AbstractContextManager[Any]:
        if self.scheduler:
            return nullcontext(self.scheduler)
        cluster: AbstractContextManager[Any] = distributed.LocalCluster(
            n_workers=self.num_workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            # A worker that takes long to end is ended; nobody needs to read of it.
            silence_logs=logging.ERROR,
            # First of all this module, which knows how to import Merlin.
            preload=[__name__],
        )
        return cluster


def preprocess(
    folder: Path | str,
    spec: FeatureSpec,
    paths: Mapping[str, Path | str],
    *,
    workers: Workers | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PreparedDataset:
    """Makes a prepared dataset from raw logs. The folder appears only when everything is in it.

    Args:
        folder: The folder to make.
        spec: What the columns are and what becomes of them.
        paths: For each split the raw files; the workflow is fitted on "train".
        workers: Who does the work; by default this process.
        overwrite: Whether a prepared dataset that is already there is replaced.
        progress: Whom to tell.

    Raises:
        RawFileError: A raw file is missing or wrong.
        PreprocessError: The folder is in the way, or the workflow cannot be fitted.
    """
    folder, progress = Path(folder), progress or Progress()
    check_splits(paths)
    with new_folder(folder, overwrite=overwrite) as unfinished:
        with (workers or Workers()).started():
            graph = _Graph(spec, unfinished / "vocabularies")
            splits = {}
            # The fitted split first, whatever the order of the paths.
            for name in sorted(paths, key=lambda name: name != TRAIN_SPLIT):
                staged = _staged(name, paths[name], spec, unfinished, progress)
                if name == TRAIN_SPLIT:
                    progress.on_stage(f"fitting on {staged.num_rows:,} rows")
                    graph.fit(staged)
                splits[name] = _transform(graph.workflow, name, staged, unfinished, progress)
            compiled = graph.compiled()
            compiled.save(unfinished)
            graph.workflow.save(unfinished / WORKFLOW_NAME)
        shutil.rmtree(unfinished / "vocabularies", ignore_errors=True)
        spec.save(unfinished / SPEC_NAME)
        rows = compiled.vocabularies.num_rows
        tables = {name: TableInfo(rows[name], features[0].dim) for name, features in spec.tables.items()}
        PreparedDataset(unfinished, spec, splits, tables).commit()
    return PreparedDataset.open(folder)


def add_split(
    folder: Path | str,
    split: str,
    path: Path | str,
    *,
    workers: Workers | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> PreparedDataset:
    """Transforms more raw logs as those of a prepared dataset, as a later day's; values it does not know are unknown.

    Args:
        folder: The prepared dataset.
        split: The new split's name.
        path: Its raw files.
        workers: Who does the work; by default this process.
        overwrite: Whether a split of this name is replaced.
        progress: Whom to tell.

    Raises:
        DatasetError: The folder is no prepared dataset.
        RawFileError: A raw file is missing or wrong.
        PreprocessError: The name is taken, or is that of the fitted split.
    """
    progress = progress or Progress()
    dataset = PreparedDataset.open(folder)
    check_split_names([split])
    if split == TRAIN_SPLIT:
        raise PreprocessError(f"{folder}: the workflow was fitted on {split!r}, which stays; give another name")
    if split in dataset.splits and not overwrite:
        raise PreprocessError(f"{folder} has a split {split!r} already; give another name or replace it (--overwrite)")
    unfinished = dataset.path / f".{split}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        with (workers or Workers()).started():
            made = _added(dataset, split, path, unfinished, progress)
        _put(dataset, split, made, unfinished / split)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return PreparedDataset.open(folder)


def _put(dataset: PreparedDataset, name: str, split: Split, made: Path) -> None:
    """Moves a split's files into the dataset. One that it replaces stays until dataset.json, at once, names the new.

    So that both can lie there, they take turns in two folders; no split can have the second one's name.
    """
    old = dataset.split_folder(name) if name in dataset.splits else None
    folder = dataset.path / (f"{name}.2" if old is not None and old.name == name else name)
    for path in (*made.iterdir(), made):
        flush(path)
    shutil.rmtree(folder, ignore_errors=True)  # A process that died may have left it.
    made.rename(folder)
    flush(dataset.path)
    files = tuple(replace(file, name=f"{folder.name}/{Path(file.name).name}") for file in split.files)
    replace(dataset, splits={**dataset.splits, name: replace(split, files=files)}).commit()
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _added(dataset: PreparedDataset, name: str, path: Path | str, folder: Path, progress: Progress) -> Split:
    if dataset.is_extension:
        # NVTabular's workflow does not know its vocabularies.
        sample(folder / name, path, dataset.spec)
        parts = read_parts(path, dataset.spec)
        return write_split(folder, name, parts, dataset.spec, dataset.transform(), progress)
    workflow = nvtabular.Workflow.load(dataset.path / WORKFLOW_NAME)
    return _transform(workflow, name, _staged(name, path, dataset.spec, folder, progress), folder, progress)


def _staged(name: str, path: Path | str, spec: FeatureSpec, folder: Path, progress: Progress) -> StagedSplit:
    progress.on_stage(f"reading the rows of {name}")
    staged = stage(path, spec, folder / "staged" / name, progress.on_rows)
    sample(folder / name, path, spec)
    return staged


def _transform(workflow: nvtabular.Workflow, name: str, staged: StagedSplit, folder: Path, progress: Progress) -> Split:
    """Transforms staged rows into `folder/name`, removes what was staged, and says what there is now."""
    progress.on_stage(f"transforming {staged.num_rows:,} rows of {name}")
    output = folder / name
    names = [file.name for file in staged.files]
    with _translated(f"split {name!r} cannot be transformed"):
        workflow.transform(_dataset(staged)).to_parquet(str(output), output_files=names, row_group_size=ROW_GROUP_ROWS)
    for file in staged.files:
        hand_through(file, output / file.name, staged.spec, row_group_rows=ROW_GROUP_ROWS)
    shutil.rmtree(staged.files[0].parent)
    files = tuple(SplitFile(f"{name}/{file}", pq.read_metadata(output / file).num_rows) for file in names)
    split = staged.statistics.split(files)
    if split.num_rows != staged.num_rows:
        raise PreprocessError(f"split {name!r} has {staged.num_rows} raw and {split.num_rows} transformed rows")
    return split


def _dataset(staged: StagedSplit) -> Dataset:
    return Dataset([str(file) for file in staged.files], engine="parquet", cpu=True, row_groups_per_part=1)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """NVTabular raises whatever happened underneath; here it becomes the package's own error, with the cause."""
    try:
        with warnings.catch_warnings():
            # Merlin calls its CPU mode experimental; it is the one that the tests hold the compiled transform against.
            warnings.filterwarnings("ignore", message="Initializing an NVTabular Dataset in CPU mode")
            # NVTabular's pins are old: what its dependencies say of each other's future is for its authors.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    except Exception as exc:
        cause = exc.__cause__ or exc
        raise PreprocessError(f"{what}: {exc} ({type(cause).__name__}: {cause})") from exc


class _Categorify(ops.Categorify):  # type: ignore[misc]
    """NVTabular's Categorify, also where a partition has no value of a feature at all, which NVTabular fails on."""

    def transform(self, col_selector: ColumnSelector, df: pd.DataFrame) -> pd.DataFrame:
        void = [name for name in col_selector.names if not df[name].notna().any()]
        known = ColumnSelector([name for name in col_selector.names if name not in void])
        transformed = super().transform(known, df)
        for name in void:
            transformed[name] = np.full(len(df), MISSING_ID, dtype=np.int64)
        return transformed


class _Graph:
    """The workflow of a feature spec, with hands on the operators that are fitted."""

    def __init__(self, spec: FeatureSpec, vocabularies: Path) -> None:
        self._spec = spec
        self._categorify = _categorify(spec, vocabularies) if spec.fitted_tables else None
        self._normalize: dict[str, ops.Normalize] = {}
        nodes = ColumnSelector([spec.label])
        for steps, names in _alike(spec.continuous).items():
            nodes = nodes + self._dense_node(names, steps)
        if self._categorify is not None:
            groups = [[feature.name for feature in features] for features in spec.fitted_tables.values()]
            nodes = nodes + ([group if len(group) > 1 else group[0] for group in groups] >> self._categorify)
        self.workflow = nvtabular.Workflow(nodes)

    def _dense_node(self, names: list[str], like: ContinuousFeature) -> nvtabular.WorkflowNode:
        node = names >> ops.FillMissing(fill_val=like.fill)
        if like.clip_min is not None or like.clip_max is not None:
            node = node >> ops.Clip(min_value=like.clip_min, max_value=like.clip_max)
        if like.log:
            node = node >> ops.LogOp()
        if like.normalize:
            normalize = ops.Normalize(out_dtype=np.float32)
            self._normalize |= dict.fromkeys(names, normalize)
            return node >> normalize
        return node >> ops.LambdaOp(_float32, dtype=np.float32)

    def fit(self, staged: StagedSplit) -> None:
        """Fits on staged rows.

        Raises:
            PreprocessError: A feature has no value at all, or no finite mean.
        """
        for feature in self._spec.features:
            if staged.statistics.missing_rates[feature.name] == 1.0:
                raise PreprocessError(
                    f"feature {feature.name!r} has no value in any row; take it out of the feature spec"
                )
        with _translated("the workflow cannot be fitted"):
            self.workflow.fit(_dataset(staged))
        for name, operator in self._normalize.items():
            if not math.isfinite(operator.means[name]):
                raise PreprocessError(
                    f"feature {name!r} has the mean {operator.means[name]}; set clip_min and clip_max"
                )

    def compiled(self) -> CompiledTransform:
        """The fit as plain data."""
        vocabularies: dict[str, Values] = {table: np.empty(0, np.int64) for table in self._spec.learnt_tables}
        for table, features in self._spec.fitted_tables.items():
            assert self._categorify is not None
            storage = "_".join(feature.name for feature in features)
            vocabularies[table] = _known_values(self._categorify.categories[storage], storage, features[0].dtype)
        return CompiledTransform(
            [
                self._dense_feature(feature) if isinstance(feature, ContinuousFeature) else _table_feature(feature)
                for feature in self._spec.features
            ],
            Vocabularies.build({table: vocabularies[table] for table in self._spec.tables}),
        )

    def _dense_feature(self, feature: ContinuousFeature) -> Feature:
        mean = std = None
        if feature.normalize:
            operator = self._normalize[feature.name]
            mean, std = operator.means[feature.name], operator.stds[feature.name]
            # A single row has no standard deviation; NVTabular then treats it as 0.
            std = std if math.isfinite(std) else 0.0
        steps = DenseSteps(feature.fill, feature.clip_min, feature.clip_max, feature.log, mean, std)
        return Feature(feature.name, "continuous", feature.dtype, steps=steps)


def _float32(column: pd.Series) -> pd.Series:
    return column.astype(np.float32)


def _alike(features: tuple[ContinuousFeature, ...]) -> dict[ContinuousFeature, list[str]]:
    """Groups features that go through the same steps, because each operator costs a pass."""
    groups: dict[ContinuousFeature, list[str]] = {}
    for feature in features:
        groups.setdefault(replace(feature, name="", dtype="float64"), []).append(feature.name)
    return groups


def _categorify(spec: FeatureSpec, vocabularies: Path) -> _Categorify:
    thresholds, sizes = {}, {}
    for features in spec.fitted_tables.values():
        storage = "_".join(feature.name for feature in features)
        if len(features) > 1 and storage in spec.columns:
            raise PreprocessError(
                f"NVTabular calls the vocabulary of {features[0].table!r} {storage!r}; rename that column"
            )
        for name in (storage, *(feature.name for feature in features)):
            thresholds[name], sizes[name] = features[0].frequency_threshold, features[0].max_size
    operator = _Categorify(freq_threshold=thresholds, out_path=str(vocabularies), dtype=np.int64)
    # The constructor refuses both limits at once, for no reason: the fit applies the threshold, then the size.
    operator.max_size = sizes
    return operator


def _table_feature(feature: CategoricalFeature) -> Feature:
    return Feature(
        feature.name,
        "categorical",
        feature.dtype,
        is_list=feature.is_list,
        table=feature.table,
        dim=feature.dim,
        combiner=feature.combiner,
    )


def _known_values(path: str, column: str, dtype: str) -> Values:
    """Reads the vocabulary that NVTabular wrote: its rows stand in the order of their ids."""
    values = pq.read_table(path, columns=[column])[column].cast(pa.string()).drop_null()
    values = values.cast(pa.int64()) if dtype == "int64" else values
    return known_values(pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type))
