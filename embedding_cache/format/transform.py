"""The compiled transform: a fitted preprocessing workflow as plain data, and the code that applies it.

`transform.json` holds the features and their steps, `transform.safetensors` the vocabularies; what they have learnt
since lies in layers, a file each. Applied to raw rows it gives what NVTabular's workflow gives, to the bit: each step
is done in the dtype and order in which NVTabular does it.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ManifestError, TransformError
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature, Kind, RawType
from rankhouse.embedding_cache.format.files import FORMAT_VERSION, check_format, check_keys, read_json, write_durably
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.tensors import read_tensors, write_tensors
from rankhouse.embedding_cache.format.text_index import Texts
from rankhouse.embedding_cache.format.vocabulary import MISSING_ID, UNKNOWN_ID, Vocabularies

JSON_NAME = "transform.json"
TENSORS_NAME = "transform.safetensors"

_KINDS, _DTYPES = get_args(Kind), get_args(RawType)


@dataclass(frozen=True)
class TransformedBatch:
    """What the model takes (ARCHITECTURE.md, "A batch").

    Attributes:
        dense: float32 [B, num_dense].
        ids: int64 [N], feature-major.
        lengths: int32 [F, B], ids per bag.
        num_unknown: int64 [batches], how many values of each batch that was given stand in no vocabulary.
    """

    dense: npt.NDArray[Any]
    ids: npt.NDArray[Any]
    lengths: npt.NDArray[Any]
    num_unknown: npt.NDArray[Any]


class CompiledTransform:
    """Turns raw rows into the model's input. Immutable; any thread may use it.

    Args:
        features: All features, continuous and categorical, in the order of the feature spec.
        vocabularies: The vocabularies of all tables.

    Raises:
        TransformError: A feature lacks its steps or its table a vocabulary.
    """

    def __init__(self, features: Sequence[Feature], vocabularies: Vocabularies) -> None:
        _check(features, vocabularies)
        self.features = tuple(features)
        self.vocabularies = vocabularies
        self._dense = [feature for feature in features if feature.kind == "continuous"]
        self._categorical = [feature for feature in features if feature.kind == "categorical"]
        self._ints = [feature for feature in self._categorical if feature.dtype == "int64"]
        self._texts = [feature for feature in self._categorical if feature.dtype == "text"]
        self._text_tables = np.array(
            [vocabularies.text_tables.index(str(feature.table)) for feature in self._texts], dtype=np.int64
        )

    @property
    def num_dense(self) -> int:
        """The number of continuous features."""
        return len(self._dense)

    @property
    def categorical(self) -> tuple[Feature, ...]:
        """The categorical features in the order of `lengths`."""
        return tuple(self._categorical)

    def apply(self, raw: RawBatch) -> TransformedBatch:
        """Transforms a batch.

        Raises:
            TransformError: The batch has another number of features, or a single-valued feature has several values.
        """
        for name, array, features in (
            ("float_values", raw.float_values, self._dense),
            ("int_lengths", raw.int_lengths, self._ints),
            ("text_lengths", raw.text_lengths, self._texts),
        ):
            if array.shape[1] != len(features):
                raise TransformError(
                    f"{name} has {array.shape[1]} columns; this model has {len(features)} such features"
                )
        bags = {
            **_bags(self._ints, raw.int_lengths, self._int_ids(raw)),
            **_bags(self._texts, raw.text_lengths, self._text_ids(raw)),
        }
        ids_of = [bags[feature.name][0] for feature in self._categorical]
        ids = np.concatenate(ids_of) if ids_of else np.empty(0, dtype=np.int64)
        lengths = [bags[feature.name][1] for feature in self._categorical]
        return TransformedBatch(
            dense=self._dense_of(raw.float_values),
            ids=ids,
            lengths=np.stack(lengths) if lengths else np.empty((0, raw.num_rows), dtype=np.int32),
            num_unknown=np.array([np.count_nonzero(ids == UNKNOWN_ID)], dtype=np.int64),
        )

    def _dense_of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        dense = np.empty(values.shape, dtype=np.float32)
        for index, feature in enumerate(self._dense):
            assert feature.steps is not None
            dense[:, index] = stepped(np.ascontiguousarray(values[:, index]), feature.steps)
        return dense

    def _int_ids(self, raw: RawBatch) -> npt.NDArray[np.int64]:
        column_of = _columns_of_values(raw.int_lengths)
        ids = np.empty(len(raw.int_values), dtype=np.int64)
        for column, feature in enumerate(self._ints):
            chosen = column_of == column
            ids[chosen] = self.vocabularies.find_ints(str(feature.table), raw.int_values[chosen])
        return ids

    def _text_ids(self, raw: RawBatch) -> npt.NDArray[np.int64]:
        # All texts of all features in one pass, because the passes cost more than the texts.
        table_of = self._text_tables[_columns_of_values(raw.text_lengths)]
        return self.vocabularies.find_texts(Texts.of(raw.text_values.tolist(), table_of))

    def save(self, directory: Path | str, *, shared: Sequence[Path] = ()) -> None:
        """Writes `transform.json` and a tensor file for each layer into a directory that exists.

        Args:
            directory: The directory.
            shared: Files of the first layers, which are linked, or copied where that cannot be, and not written anew.
        """
        directory = Path(directory)
        names = [layer_name(number) for number in range(len(self.vocabularies.layers))]
        document = {
            "format": "rankhouse.transform",
            "format_version": FORMAT_VERSION,
            "features": [dataclasses.asdict(feature) for feature in self.features],
            "vocabularies": self.vocabularies.document(),
        }
        if len(names) > 1:
            document["layers"] = names
        for source, name in zip(shared, names, strict=False):
            _link(source, directory / name)
        for name, layer in list(zip(names, self.vocabularies.layers, strict=True))[len(shared) :]:
            write_tensors(directory / name, layer.tensors())
        write_durably(directory / JSON_NAME, json.dumps(document, indent=1, allow_nan=False).encode() + b"\n")

    @classmethod
    def load(cls, directory: Path | str, layers: Sequence[Path] | None = None) -> "CompiledTransform":
        """Opens what `save` wrote; the vocabularies are mapped into memory, not read.

        Args:
            directory: The folder of `transform.json`.
            layers: The tensor file of each layer, the oldest first, where they lie elsewhere, as a version's do.

        Raises:
            TransformError: `transform.json` is missing or contradicts itself or the layers.
            ManifestError: `transform.json` is malformed, of another kind, or made by a newer release.
            CorruptFileError: A layer's file is missing or malformed.
        """
        path = Path(directory) / JSON_NAME
        try:
            document = _read_document(path)
            paths = _layer_files(path, document)
            if layers is not None and "layers" in document and len(layers) != len(paths):
                raise TransformError(f"{path}: has {len(paths)} layers of vocabularies, was given {len(layers)}")
            tensors = [read_tensors(layer) for layer in (paths if layers is None else layers)]
            features = [Feature.parse(entry) for entry in document["features"]]
            return cls(features, Vocabularies.from_parts(document["vocabularies"], tensors))
        except (OSError, KeyError, TypeError) as exc:
            raise TransformError(f"{path}: is no compiled transform ({type(exc).__name__}: {exc})") from exc


def layer_name(number: int) -> str:
    """The file's name of a layer in a folder, from 0: `transform.safetensors`, `transform.1.safetensors` and so on."""
    return TENSORS_NAME if number == 0 else f"transform.{number}.safetensors"


def layer_files(directory: Path | str) -> tuple[Path, ...]:
    """The tensor files of the layers of a compiled transform in a folder, the oldest first; they need not be there.

    Raises:
        TransformError: `transform.json` is missing.
        ManifestError: `transform.json` is malformed, of another kind, or made by a newer release.
    """
    path = Path(directory) / JSON_NAME
    try:
        return _layer_files(path, _read_document(path))
    except OSError as exc:
        raise TransformError(f"{path}: is no compiled transform ({type(exc).__name__}: {exc})") from exc


def read_features(directory: Path | str) -> tuple[Feature, ...]:
    """Reads the features of a compiled transform in a folder; its vocabularies are not looked at.

    Raises:
        TransformError: `transform.json` is missing or has no features.
        ManifestError: `transform.json` is malformed, of another kind, or made by a newer release.
    """
    path = Path(directory) / JSON_NAME
    try:
        return tuple(map(Feature.parse, _read_document(path)["features"]))
    except (OSError, KeyError, TypeError) as exc:
        raise TransformError(f"{path}: is no compiled transform ({type(exc).__name__}: {exc})") from exc


def _read_document(path: Path) -> dict[str, Any]:
    document = read_json(path, path.read_bytes())
    check_format(path, document, "transform")
    check_keys(path, document, ("format", "format_version", "features", "vocabularies", "layers"))
    return document


def _layer_files(path: Path, document: Mapping[str, Any]) -> tuple[Path, ...]:
    names = document.get("layers", [TENSORS_NAME])
    expected = [layer_name(number) for number in range(len(names))] if isinstance(names, list) else None
    if not names or names != expected:
        raise ManifestError(f"{path}: expected the layers {expected or [TENSORS_NAME]}, found {names!r}")
    return tuple(path.parent / name for name in names)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        # Another file system, or one that knows no links.
        shutil.copyfile(source, target)


def _check(features: Sequence[Feature], vocabularies: Vocabularies) -> None:
    names = [feature.name for feature in features]
    for feature in features:
        if names.count(feature.name) > 1:
            raise TransformError(f"feature {feature.name!r} stands twice")
        if feature.kind not in _KINDS or feature.dtype not in _DTYPES:
            raise TransformError(
                f"feature {feature.name!r} has kind {feature.kind!r} and dtype {feature.dtype!r}; expected one of "
                f"{_KINDS} and of {_DTYPES}"
            )
        if feature.kind == "continuous":
            if feature.steps is None:
                raise TransformError(f"continuous feature {feature.name!r} has no steps")
        elif feature.table not in (vocabularies.int_tables if feature.dtype == "int64" else vocabularies.text_tables):
            raise TransformError(
                f"categorical feature {feature.name!r} has table {feature.table!r}, which has no vocabulary of "
                f"{feature.dtype}"
            )


def stepped(values: npt.NDArray[Any], steps: DenseSteps) -> npt.NDArray[Any]:
    """Does what FillMissing, Clip, LogOp and Normalize of NVTabular do to a column, in their dtypes.

    Args:
        values: float64 [n]; NaN is missing.
        steps: What to do.

    Returns:
        float32 [n].
    """
    values = np.where(np.isnan(values), steps.fill, values)
    if steps.clip_min is not None:
        values[values < steps.clip_min] = steps.clip_min
    if steps.clip_max is not None:
        values[values > steps.clip_max] = steps.clip_max
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if steps.log:
            values = np.log(values.astype(np.float32) + 1)
        # In the dtype of the values, whatever the numbers' types in JSON are.
        if steps.mean is not None:
            values = values - values.dtype.type(steps.mean)
            if steps.std is not None and steps.std > 0:
                values = values / values.dtype.type(steps.std)
        return values.astype(np.float32)


def _columns_of_values(lengths: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The column that each value belongs to: int64 [n], of lengths [B, F], the values standing sample by sample."""
    num_rows, num_columns = lengths.shape
    return np.repeat(np.tile(np.arange(num_columns), num_rows), lengths.ravel())


def _bags(
    features: Sequence[Feature], lengths: npt.NDArray[np.int32], ids: npt.NDArray[np.int64]
) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]]:
    """Turns ids [n] that stand sample by sample, with lengths [B, F], into each feature's ids and lengths [B].

    A single-valued feature has the id of a missing value where it has none; a list stays empty.
    """
    if not features:
        return {}
    is_single = np.array([not feature.is_list for feature in features])
    most = lengths.max(axis=0, initial=0)
    crowded = np.flatnonzero(is_single & (most > 1))
    if len(crowded):
        name, count = features[crowded[0]].name, most[crowded[0]]
        raise TransformError(f"feature {name!r} has {count} values in a row; it takes at most one")
    lengths_FB = np.where(is_single, 1, lengths).astype(np.int32).T
    begins_BF = (np.cumsum(lengths_FB) - lengths_FB.ravel()).reshape(lengths_FB.shape).T
    own_begins = np.cumsum(lengths) - lengths.ravel()
    places = np.repeat(begins_BF.ravel() - own_begins, lengths.ravel()) + np.arange(len(ids))
    placed = np.full(lengths_FB.sum(), MISSING_ID, dtype=np.int64)
    placed[places] = ids
    ends = np.cumsum(lengths_FB.sum(axis=1)).tolist()
    return {
        feature.name: (placed[begin:end], own)
        for feature, begin, end, own in zip(features, [0, *ends], ends, lengths_FB, strict=False)
    }
