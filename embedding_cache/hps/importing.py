"""Models of HPS become versions: the same rows under the same keys, exact lookups, all of one version.

Every table of every model is read and checked before anything is written. A key becomes a value of the compiled
transform's vocabulary, with ids from 3 on in the order of keys; so a table gives the same files whatever the order of
HPS's, and a model that comes in again shares what did not change. Each version proves itself before it appears: known
keys must give their rows, unknown ones the default, through the version's own transform and engine.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.errors import HpsError
from rankhouse.embedding_cache.format.content import VersionContent
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.progress import ByteProgress
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent
from rankhouse.embedding_cache.format.row_types import RowType, decode, encoded, row_type_of
from rankhouse.embedding_cache.format.text_index import TextIndex
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import Origin
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, IntIndex, Layer, Vocabularies
from rankhouse.embedding_cache.hps.ps_json import HpsModel, PsJson
from rankhouse.embedding_cache.hps.table_files import TableFiles, open_table

Floats = npt.NDArray[np.float32]

COMBINERS = ("sum", "mean", "concat")

# The largest difference between two scores that is put down to rounding.
TOLERANCE = 1e-5

_NUM_REQUESTS, _CANDIDATES_PER_REQUEST = 4, 16
_MOST_KEYS = 4  # Of a bag in a golden request.
_SEED = 0


class DensePart(Protocol):
    """The dense part of a model, an ONNX file that can be run."""

    @property
    def path(self) -> Path:
        """The file."""
        ...

    @property
    def widths(self) -> Mapping[str, int]:
        """The width of each input, `dense` and `embeddings`."""
        ...

    def scores(self, dense: Floats, embeddings: Floats) -> Floats:
        """Maps float32 [B, num_dense] and float32 [B, E] to scores, float32 [B]."""
        ...


@dataclass(frozen=True)
class ImportOptions:
    """How models are taken over.

    Attributes:
        row_type: How rows are stored: "float32", "float16", "bfloat16" or "int8".
        combiner: What becomes of a sample's keys of a table, which HPS hands to the dense part as they are. "sum" and
            "mean" pool them: one list feature, of the table's name. "concat" keeps them apart, as HPS does: as many
            single-valued features as the table has keys in a sample, `<table>_0`, `<table>_1` and so on.
        dense: The dense part; None where the version is not to be served.

    Raises:
        ContentError: The row type is unknown.
        HpsError: The combiner is unknown.
    """

    row_type: str = "float32"
    combiner: str = "sum"
    dense: DensePart | None = None

    def __post_init__(self) -> None:
        row_type_of(self.row_type)
        if self.combiner not in COMBINERS:
            raise HpsError(f"{self.combiner!r} is no combiner; expected one of {', '.join(COMBINERS)}")


def import_hps(
    ps_json: PsJson,
    *,
    store: Path | str,
    model: str | None = None,
    options: ImportOptions | None = None,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Version, ...]:
    """Writes a version for each model.

    Args:
        ps_json: What to take over.
        store: The version store's folder, made where it is missing.
        model: The only model to take over; None is all.
        options: How.
        on_bytes: Called while rows are checked and written, with the bytes so far and in all.

    Returns:
        The versions, in the order of the models.

    Raises:
        HpsError: There is no such model, its files are missing or contradict `ps.json` or each other, or the dense part
            does not fit; nothing was written. Or a version would not give what the files hold; it was not written.
    """
    options = options or ImportOptions()
    row_type = row_type_of(options.row_type)
    models = ps_json.chosen(model)
    if options.dense is not None and len(models) > 1:
        names = ", ".join(model.name for model in models)
        raise HpsError(f"{ps_json.path}: has the models {names}; choose the one that the dense part belongs to")
    sources = [
        _Source(model, tuple(open_table(table, has_long_keys=ps_json.has_long_keys) for table in model.tables), options)
        for model in models
    ]
    tables = [table for source in sources for table in source.tables]
    total = sum(table.rows.nbytes + 4 * table.num_rows * table.table.dim for table in tables)
    progress = ByteProgress(on_bytes, total=total)
    for source in sources:
        source.check()
        for table in source.tables:
            for num_bytes in table.check_values(row_type):
                progress.add(num_bytes)
    return tuple(_write(source, VersionStore(store), row_type, progress) for source in sources)


@dataclass(frozen=True)
class _Source:
    """A model with its files opened."""

    model: HpsModel
    tables: tuple[TableFiles, ...]
    options: ImportOptions

    def features(self) -> tuple[Feature, ...]:
        """All features, continuous ones first."""
        num_dense = 0 if self.options.dense is None else self.options.dense.widths["dense"]
        return (
            *(Feature(f"dense_{number}", "continuous", "float64", steps=DenseSteps()) for number in range(num_dense)),
            *(feature for table in self.tables for feature in self._features_of(table)),
        )

    def _features_of(self, table: TableFiles) -> Iterator[Feature]:
        name, dim, combiner = table.table.name, table.table.dim, self.options.combiner
        if combiner != "concat":
            yield Feature(name, "categorical", "int64", is_list=True, table=name, dim=dim, combiner=combiner)
            return
        for number in range(table.table.keys_per_sample):
            yield Feature(f"{name}_{number}", "categorical", "int64", table=name, dim=dim, combiner="sum")

    def transform(self) -> CompiledTransform:
        """The compiled transform, whose vocabularies are the keys."""
        layer = Layer(
            ints={
                table.table.name: IntIndex(table.keys, np.arange(FIRST_KNOWN_ID, table.num_rows))
                for table in self.tables
            },
            texts=TextIndex.build({}),
            text_ids=None,
            freed={},
        )
        num_rows = {table.table.name: table.num_rows for table in self.tables}
        return CompiledTransform(self.features(), Vocabularies(num_rows, (), (layer,)))

    def check(self) -> None:
        """Checks the names of the features, and their width against the one that the dense part takes.

        Raises:
            HpsError: A name stands twice, or the widths differ.
        """
        names = [feature.name for feature in self.features()]
        if twice := [name for name in names if names.count(name) > 1]:
            raise HpsError(
                f"model {self.model.name!r} would have two features {twice[0]!r}; name its tables otherwise, by "
                "embedding_table_names in a copy of ps.json"
            )
        dense = self.options.dense
        if dense is None:
            return
        dims = [feature.dim or 0 for feature in self.features() if feature.kind == "categorical"]
        if dense.widths["embeddings"] != sum(dims):
            apart = sum(table.table.dim * table.table.keys_per_sample for table in self.tables)
            fits_apart = self.options.combiner != "concat" and dense.widths["embeddings"] == apart
            hint = "it fits the combiner concat" if fits_apart else "is it this model's dense part?"
            raise HpsError(
                f"{dense.path}: takes embeddings of width {dense.widths['embeddings']}, the {len(dims)} features of "
                f"model {self.model.name!r} are {sum(dims)} wide in all; {hint}"
            )


def _write(source: _Source, store: VersionStore, row_type: RowType, progress: ByteProgress) -> Version:
    dense = source.options.dense
    transform = source.transform()
    samples = _Samples(source, row_type)
    with tempfile.TemporaryDirectory(prefix="rankhouse-import-") as folder:
        transform.save(folder)
        content = VersionContent(
            model=source.model.name,
            dense=None if dense is None else dense.path,
            transform=Path(folder),
            num_dense=transform.num_dense,
            tables=[
                TableContent(
                    table.table.name,
                    table.num_rows,
                    table.table.dim,
                    progress.watch(table.blocks(scratch=store.path)),
                    dtype=row_type.name,
                )
                for table in source.tables
            ],
            features=[
                FeatureContent(feature.name, str(feature.table), str(feature.combiner))
                for feature in transform.categorical
            ],
            golden=() if dense is None else samples.golden(dense),
            origin=Origin("import"),
        )
        return store.write(content, check=samples.check)


class _Samples:
    """Requests of known and unknown keys, and what HPS's files give for them without a version."""

    def __init__(self, source: _Source, row_type: RowType) -> None:
        self._source, self._row_type = source, row_type
        self._features = source.features()
        self._tables = {table.table.name: table for table in source.tables}
        random = np.random.default_rng(_SEED)
        num_rows = _NUM_REQUESTS * _CANDIDATES_PER_REQUEST
        columns = {feature.name: self._column(feature, num_rows, random) for feature in self._features}
        self._rows: list[dict[str, Any]] = [
            {name: column[number] for name, column in columns.items()} for number in range(num_rows)
        ]

    def golden(self, dense: DensePart) -> list[GoldenRequest]:
        """The requests with the scores that the dense part gives them.

        Raises:
            HpsError: A score is not finite.
        """
        continuous = [feature.name for feature in self._features if feature.kind == "continuous"]
        values = np.array([[row[name] for name in continuous] for row in self._rows], np.float32)
        scores = dense.scores(values.reshape(len(self._rows), len(continuous)), self._embeddings())
        if not np.isfinite(scores).all():
            raise HpsError(f"{dense.path}: gives scores that are no finite numbers; is it this model's dense part?")
        return [
            GoldenRequest({"context": {}, "candidates": self._rows[begin:end]}, tuple(scores[begin:end].tolist()))
            for begin in range(0, len(self._rows), _CANDIDATES_PER_REQUEST)
            for end in [begin + _CANDIDATES_PER_REQUEST]
        ]

    def check(self, version: Version) -> None:
        """Looks known and unknown keys up in a version, and scores its golden requests, by its own parts.

        Raises:
            HpsError: A row or a score is another than the files give.
        """
        transform = version.transform()
        for feature in transform.categorical:
            table = str(feature.table)
            keys = self._keys(feature)
            rows = version.rows(table, transform.vocabularies.find_ints(table, keys))
            wrong = (rows != self._stored(table, keys)).any(axis=1)
            if wrong.any():
                raise HpsError(
                    f"table {table!r} of model {version.model!r} gives key {keys[wrong][0]} another row than the files "
                    "do; did they change during the import?"
                )
        dense = self._source.options.dense
        if dense is None:
            return
        batch = transform.apply(RawBatch.from_rows(transform.features, self._rows))
        with Engine().open(version.store, version.name, verify=False) as opened:
            found = dense.scores(batch.dense, opened.lookup(batch.ids, batch.lengths))
        expected = np.concatenate([golden.scores for golden in version.golden()])
        # Written so that a NaN is refused.
        if not (np.abs(found - expected) <= TOLERANCE).all():
            worst = int(np.argmax(np.abs(found - expected)))
            raise HpsError(
                f"model {version.model!r} scores {found[worst]:.7f} where HPS's files and {dense.path} give "
                f"{expected[worst]:.7f}; expected at most {TOLERANCE:g} between them. The row: {self._rows[worst]}"
            )

    def _column(self, feature: Feature, num_rows: int, random: np.random.Generator) -> list[Any]:
        """Values of one feature: short numbers; or keys, one in eight of them made up and so, most likely, unknown."""
        if feature.kind == "continuous":
            return [round(value, 3) for value in random.standard_normal(num_rows).tolist()]
        keys = self._tables[str(feature.table)].keys
        counts = random.integers(0, _MOST_KEYS, num_rows, endpoint=True) if feature.is_list else np.ones(num_rows, int)
        known = keys[random.integers(0, len(keys), counts.sum())]
        made_up = random.integers(0, 2**31, len(known))
        values = np.where(random.random(len(known)) < 1 / 8, made_up, known).tolist()
        ends = np.cumsum(counts).tolist()
        bags = [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return bags if feature.is_list else [bag[0] for bag in bags]

    def _keys(self, feature: Feature) -> npt.NDArray[np.int64]:
        values = [row[feature.name] for row in self._rows]
        return np.array(list(chain.from_iterable(values)) if feature.is_list else values, np.int64)

    def _embeddings(self) -> Floats:
        """float32 [B, E]: the rows of each bag, pooled by NumPy."""
        columns = []
        for feature in self._features:
            if feature.kind == "categorical":
                bags = [row[feature.name] if feature.is_list else [row[feature.name]] for row in self._rows]
                columns.append(np.stack([self._pooled(feature, bag) for bag in bags]))
        return np.concatenate(columns, axis=1)

    def _pooled(self, feature: Feature, keys: Sequence[int]) -> Floats:
        pooled: Floats = self._stored(str(feature.table), np.array(keys, np.int64)).sum(axis=0, dtype=np.float32)
        return pooled / np.float32(len(keys)) if feature.combiner == "mean" and keys else pooled

    def _stored(self, table: str, keys: npt.NDArray[np.int64]) -> Floats:
        """The rows of keys, float32 [n, D], as the row type holds them."""
        rows = self._tables[table].find(keys)
        return decode(next(encoded([rows], self._row_type, table=table, row_of=lambda place: place)))
