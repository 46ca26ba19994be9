"""The feature spec: what the columns of raw logs are and how they become the model's input."""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from rankhouse.embedding_cache.format.feature import RawType
from rankhouse.training.errors import FeatureSpecError

SPECS = Path(__file__).parent / "specs"

# Reserved rows of each table (padding, missing, unknown) and one value.
_SMALLEST_MAX_SIZE = 4
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class ContinuousFeature:
    """A number that enters the model as one column of `dense`; the steps are done in the order of the fields.

    Attributes:
        name: The column in raw logs.
        dtype: "int64" or "float64".
        fill: The number that stands for a missing value.
        clip_min: Smaller numbers become this one; None leaves them.
        clip_max: Larger numbers become this one; None leaves them.
        log: Whether log(1 + x) is taken. Needs a clip_min above -1.
        normalize: Whether the mean is subtracted and the standard deviation divided by.
    """

    name: str
    dtype: RawType = "float64"
    fill: float = 0.0
    clip_min: float | None = None
    clip_max: float | None = None
    log: bool = False
    normalize: bool = True

    kind: Literal["continuous"] = dataclasses.field(default="continuous", init=False)
    is_list: bool = dataclasses.field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.dtype not in ("int64", "float64"):
            raise FeatureSpecError(f"a continuous feature has dtype int64 or float64, not {self.dtype!r}")
        if self.log and (self.clip_min is None or self.clip_min <= -1):
            raise FeatureSpecError(
                f"log: true needs a clip_min above -1, because log(1 + x) of less is no number; it is {self.clip_min}"
            )
        if self.clip_min is not None and self.clip_max is not None and self.clip_min > self.clip_max:
            raise FeatureSpecError(f"clip_min {self.clip_min} is above clip_max {self.clip_max}")


@dataclass(frozen=True)
class CategoricalFeature:
    """A value, or a list of values, that is looked up in an embedding table.

    Attributes:
        name: The column in raw logs.
        dtype: "text" or "int64".
        is_list: Whether a row holds a list of values (multi-hot).
        combiner: How the rows of a list are pooled: "mean" or "sum".
        table: The table, named by the first feature that uses it.
        dim: The width of the table.
        frequency_threshold: Values seen less often in the fitted data are unknown ones; 0 keeps all.
        max_size: Most rows of the table, of which 3 are reserved; the rarest values are unknown ones. 0 is no limit.
        vocabulary: "fitted": values get their rows from what preprocessing has seen. "learnt": the table learns its
            keys while it is trained; values are handed through as they are, any int64.
    """

    name: str
    dtype: RawType = "text"
    is_list: bool = False
    combiner: str = "mean"
    table: str = ""
    dim: int = 16
    frequency_threshold: int = 0
    max_size: int = 0
    vocabulary: str = "fitted"

    kind: Literal["categorical"] = dataclasses.field(default="categorical", init=False)

    def __post_init__(self) -> None:
        if not self.table:
            object.__setattr__(self, "table", self.name)
        if self.dtype not in ("int64", "text"):
            raise FeatureSpecError(f"a categorical feature has dtype text or int64, not {self.dtype!r}")
        if self.combiner not in ("mean", "sum"):
            raise FeatureSpecError(f"combiner is mean or sum, not {self.combiner!r}")
        if self.dim < 1:
            raise FeatureSpecError(f"dim is 1 or more, not {self.dim}")
        if self.frequency_threshold < 0:
            raise FeatureSpecError(f"frequency_threshold is 0 or more, not {self.frequency_threshold}")
        if self.max_size != 0 and self.max_size < _SMALLEST_MAX_SIZE:
            raise FeatureSpecError(
                f"max_size is 0 (no limit) or at least {_SMALLEST_MAX_SIZE} (3 rows are reserved), not {self.max_size}"
            )
        if self.vocabulary not in ("fitted", "learnt"):
            raise FeatureSpecError(f"vocabulary is fitted or learnt, not {self.vocabulary!r}")
        if self.is_learnt:
            self._check_learnt()

    def _check_learnt(self) -> None:
        if self.dtype != "int64":
            raise FeatureSpecError(
                "vocabulary: learnt takes integers (dtype: int64); hash texts to 64 bits before, or leave it out"
            )
        for key in ("frequency_threshold", "max_size"):
            if getattr(self, key):
                raise FeatureSpecError(
                    f"vocabulary: learnt has no {key}; recipes have min_steps and capacity, in model.vocabularies"
                )

    @property
    def is_learnt(self) -> bool:
        """Whether its table learns its keys while it is trained."""
        return self.vocabulary == "learnt"


AnyFeature = ContinuousFeature | CategoricalFeature

# Keys as written in the file, and the types that YAML gives for them. A bool is no number here.
_CONTINUOUS_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "kind": (str,),
    "dtype": (str,),
    "fill": (int, float),
    "clip_min": (int, float),
    "clip_max": (int, float),
    "log": (bool,),
    "normalize": (bool,),
}
_CATEGORICAL_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "kind": (str,),
    "dtype": (str,),
    "list": (bool,),
    "combiner": (str,),
    "table": (str,),
    "dim": (int,),
    "frequency_threshold": (int,),
    "max_size": (int,),
    "vocabulary": (str,),
}
_SPEC_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "label": (str,),
    "timestamp": (str,),
    "features": (list,),
}
# What belongs to a table stands at the feature that names it, so that sharers cannot contradict each other.
_TABLE_KEYS = ("dim", "frequency_threshold", "max_size", "vocabulary")


@dataclass(frozen=True)
class FeatureSpec:
    """The features of a data set.

    Attributes:
        name: The data set's name.
        label: The column of labels, 0 or 1.
        features: All features; `dense` and `ids` hold theirs in this order.
        timestamp: The column of times at which rows happened, which is no input of the model; empty if there is none.
    """

    name: str
    label: str
    features: tuple[AnyFeature, ...]
    timestamp: str = ""

    def __post_init__(self) -> None:
        if not self.features:
            raise FeatureSpecError(f"feature spec {self.name!r} has no features")
        seen = {self.label}
        for name in self.raw_columns:
            if not _NAME.fullmatch(name):
                raise FeatureSpecError(f"{name!r} is no column name: letters, digits, '_', '.', '-', no digit first")
        for name in self.raw_columns[1:]:
            if name in seen:
                raise FeatureSpecError(f"two columns have the name {name!r}")
            seen.add(name)
        for feature in self.categorical:
            self._check_table(feature)

    def _check_table(self, feature: CategoricalFeature) -> None:
        owner = next((other for other in self.categorical if other.name == feature.table), None)
        if owner is None or owner.table != owner.name:
            owners = [other.name for other in self.categorical if other.table == other.name]
            raise FeatureSpecError(
                f"feature {feature.name!r}: table {feature.table!r} is no table; {nearest_hint(feature.table, owners)}"
            )
        if owner.dtype != feature.dtype:
            raise FeatureSpecError(
                f"feature {feature.name!r} of {feature.dtype} cannot share the table of {owner.name!r} of {owner.dtype}"
            )
        for key in _TABLE_KEYS:
            if getattr(feature, key) != getattr(owner, key):
                raise FeatureSpecError(
                    f"feature {feature.name!r} shares the table of {owner.name!r}: {key} is set there, and only there"
                )

    @property
    def continuous(self) -> tuple[ContinuousFeature, ...]:
        """The features that make `dense`, in its order."""
        return tuple(feature for feature in self.features if isinstance(feature, ContinuousFeature))

    @property
    def categorical(self) -> tuple[CategoricalFeature, ...]:
        """The features that make `ids`, in its order."""
        return tuple(feature for feature in self.features if isinstance(feature, CategoricalFeature))

    @property
    def tables(self) -> dict[str, tuple[CategoricalFeature, ...]]:
        """For each table the features that use it, its owner among them, in the order of the spec."""
        tables: dict[str, list[CategoricalFeature]] = {}
        for feature in self.categorical:
            tables.setdefault(feature.table, []).append(feature)
        return {name: tuple(features) for name, features in tables.items()}

    @property
    def fitted_tables(self) -> dict[str, tuple[CategoricalFeature, ...]]:
        """Those of `tables` whose rows belong to the values that preprocessing has seen."""
        return {name: features for name, features in self.tables.items() if not features[0].is_learnt}

    @property
    def learnt_tables(self) -> tuple[str, ...]:
        """The tables that learn their keys while they are trained, in the order of the spec."""
        return tuple(name for name, features in self.tables.items() if features[0].is_learnt)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of prepared rows: the label and all features."""
        return (self.label, *(feature.name for feature in self.features))

    @property
    def raw_columns(self) -> tuple[str, ...]:
        """The columns of a raw file without header: the label, all features, and the timestamp if there is one."""
        return (*self.columns, self.timestamp) if self.timestamp else self.columns

    def with_frequency_threshold(self, threshold: int) -> "FeatureSpec":
        """The same spec with one frequency threshold for all tables that preprocessing fits."""
        fitted = [each for features in self.fitted_tables.values() for each in features]
        changed = {each.name: dataclasses.replace(each, frequency_threshold=threshold) for each in fitted}
        return dataclasses.replace(self, features=tuple(changed.get(each.name, each) for each in self.features))

    @classmethod
    def load(cls, name: Path | str) -> "FeatureSpec":
        """Reads a feature spec.

        Args:
            name: The path of a YAML file, or the name of a shipped spec: `criteo`.

        Raises:
            FeatureSpecError: The file is missing or wrong; the message names the file, the feature and the key.
        """
        shipped = SPECS / f"{name}.yaml"
        path = shipped if shipped.is_file() and not Path(name).is_file() else Path(name)
        if not path.is_file():
            known = ", ".join(sorted(path.stem for path in SPECS.glob("*.yaml")))
            raise FeatureSpecError(f"there is no feature spec {str(name)!r}: give a YAML file, or one of {known}")
        try:
            document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
            return cls.from_document(document)
        except (OSError, UnicodeDecodeError, yaml.YAMLError, FeatureSpecError) as exc:
            raise FeatureSpecError(f"{path}: {exc}") from exc

    @classmethod
    def from_document(cls, document: Any) -> "FeatureSpec":
        """Makes a spec from what YAML gave.

        Raises:
            FeatureSpecError: A key is unknown or missing, or a value is of the wrong type or impossible.
        """
        _check_keys("the feature spec", document, _SPEC_KEYS, required=("name", "label", "features"))
        features = _features(document["features"])
        return cls(document["name"], document["label"], features, document.get("timestamp", ""))

    def document(self) -> dict[str, Any]:
        """The spec as it stands in YAML, with every key written out."""
        timestamp = {"timestamp": self.timestamp} if self.timestamp else {}
        features = [_entry(feature) for feature in self.features]
        return {"name": self.name, "label": self.label, **timestamp, "features": features}

    def save(self, path: Path | str) -> None:
        """Writes a YAML file that `load` reads."""
        *keys, (_, features) = self.document().items()
        lines = [*(f"{key}: {value}" for key, value in keys), "features:"]
        for entry in features:
            text = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1000).strip()
            lines.append(f"  - {text}")
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _features(entries: Sequence[Any]) -> tuple[AnyFeature, ...]:
    features: list[AnyFeature] = []
    owners: dict[str, CategoricalFeature] = {}
    # Owners first, because a sharer may stand before its table's owner.
    for sharing in (False, True):
        for index, entry in enumerate(entries):
            if _shares(entry) == sharing:
                feature = _feature(index, entry, owners)
                if isinstance(feature, CategoricalFeature) and not sharing:
                    owners[feature.name] = feature
                features.append(feature)
    order = {entry["name"]: index for index, entry in enumerate(entries)}
    return tuple(sorted(features, key=lambda feature: order[feature.name]))


def _shares(entry: Any) -> bool:
    return isinstance(entry, dict) and entry.get("table", entry.get("name")) != entry.get("name")


def _feature(index: int, entry: Any, owners: Mapping[str, CategoricalFeature]) -> AnyFeature:
    place = f"feature {index + 1}"
    if isinstance(entry, dict) and isinstance(entry.get("name"), str):
        place = f"feature {entry['name']!r}"
    kind = entry.get("kind") if isinstance(entry, dict) else None
    if kind not in ("continuous", "categorical"):
        raise FeatureSpecError(f"{place}: kind is continuous or categorical, not {kind!r}")
    keys = _CONTINUOUS_KEYS if kind == "continuous" else _CATEGORICAL_KEYS
    _check_keys(place, entry, keys, required=("name",))
    values = {("is_list" if key == "list" else key): value for key, value in entry.items() if key != "kind"}
    try:
        if kind == "continuous":
            return ContinuousFeature(**values)
        if _shares(entry) and entry["table"] in owners:
            owner = owners[entry["table"]]
            values = {key: getattr(owner, key) for key in _TABLE_KEYS} | values
        return CategoricalFeature(**values)
    except FeatureSpecError as exc:
        raise FeatureSpecError(f"{place}: {exc}") from exc


def _entry(feature: AnyFeature) -> dict[str, Any]:
    values = dataclasses.asdict(feature)
    entry = {"name": values.pop("name"), "kind": values.pop("kind")}
    is_list = values.pop("is_list")
    if isinstance(feature, CategoricalFeature):
        entry["list"] = is_list
        if not feature.is_learnt:
            del values["vocabulary"]  # Which releases that have no other do not know.
        if feature.table != feature.name:
            values = {key: value for key, value in values.items() if key not in _TABLE_KEYS}
    return entry | {key: value for key, value in values.items() if value is not None}


def _check_keys(place: str, entry: Any, keys: Mapping[str, tuple[type, ...]], *, required: Sequence[str]) -> None:
    if not isinstance(entry, dict):
        raise FeatureSpecError(f"{place}: expected keys and values, found {type(entry).__name__}")
    for key, value in entry.items():
        if key not in keys:
            raise FeatureSpecError(f"{place}: unknown key {key!r}; {nearest_hint(str(key), keys)}")
        if not isinstance(value, keys[key]) or (isinstance(value, bool) and bool not in keys[key]):
            expected = " or ".join(kind.__name__ for kind in keys[key])
            raise FeatureSpecError(f"{place}: {key} is {expected}, not {type(value).__name__} {value!r}")
    for key in required:
        if key not in entry:
            raise FeatureSpecError(f"{place}: the key {key!r} is missing")


def nearest_hint(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """Says which known name is meant, or which there are."""
    nearest = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(known)}"
