"""HPS's `ps.json`: the models and tables that it names, and every setting that it holds."""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankhouse.embedding_cache.errors import HpsError
from rankhouse.embedding_cache.format.errors import ContentError, ManifestError
from rankhouse.embedding_cache.format.files import read_json
from rankhouse.embedding_cache.format.version_record import check_model_name
from rankhouse.embedding_cache.hps.fields import KINDS, PARTS, Field, is_of_kind

# The lists of a model that have an entry for each table.
_PER_TABLE = (
    *("sparse_files", "embedding_vecsize_per_table", "default_value_for_each_table"),
    "maxnum_catfeature_query_per_table_per_sample",
)
_SECRETS = ("password",)
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class HpsTable:
    """A table as `ps.json` describes it.

    Attributes:
        name: Its name.
        folder: Where its files `key` and `emb_vector` lie.
        dim: D, its width.
        default: What all columns are for an unknown key.
        keys_per_sample: The most keys that a sample has.
        place: Where its folder stands in the file, for messages.
    """

    name: str
    folder: Path
    dim: int
    default: float
    keys_per_sample: int
    place: str


@dataclass(frozen=True)
class HpsModel:
    """A model as `ps.json` describes it.

    Attributes:
        name: Its name.
        tables: Its tables.
    """

    name: str
    tables: tuple[HpsTable, ...]


@dataclass(frozen=True)
class Setting:
    """A field that the file has, in one or several models.

    Attributes:
        name: The field, below the part that it stands in: `volatile_db.type`, `models.gpucacheper`.
        value: Its value as JSON; where models differ, each with its name before it. Passwords are not shown.
        field: What it means.
    """

    name: str
    value: str
    field: Field


@dataclass(frozen=True)
class PsJson:
    """What a `ps.json` says.

    Attributes:
        path: The file.
        has_long_keys: Whether keys have 64 bits, or 32.
        models: Its models.
        settings: Every field that it has.
    """

    path: Path
    has_long_keys: bool
    models: tuple[HpsModel, ...]
    settings: tuple[Setting, ...]

    def chosen(self, name: str | None) -> tuple[HpsModel, ...]:
        """The model of a name; all for None.

        Raises:
            HpsError: There is none of this name.
        """
        found = tuple(model for model in self.models if name in (None, model.name))
        if not found:
            known = ", ".join(model.name for model in self.models)
            raise HpsError(f"{self.path}: has no model {name!r}; it has {known}")
        return found


def read_ps_json(path: Path | str) -> PsJson:
    """Reads a `ps.json`; none of the files that it names is looked at.

    Raises:
        HpsError: It is missing or no JSON object, or a field is missing, unknown, of the wrong type, or contradicts
            another.
    """
    path = Path(path)
    try:
        document = read_json(path, path.read_bytes())
    except OSError as exc:
        raise HpsError(f"{path}: cannot be read ({exc.strerror}); give the configuration file of HPS, ps.json") from exc
    except ManifestError as exc:
        raise HpsError(str(exc)) from exc
    _check_part(path, "", document)
    for part in ("volatile_db", "persistent_db", "update_source"):
        _check_part(path, part, document.get(part, {}))
    entries = _required(path, "", document, "models")
    has_long_keys = _required(path, "", document, "supportlonglong")
    models = tuple(_model(path, index, entry, has_long_keys) for index, entry in enumerate(entries))
    _refuse_twice(path, "models", [model.name for model in models])
    return PsJson(path, has_long_keys, models, _settings(document, [model.name for model in models]))


def _check_part(path: Path, part: str, values: Mapping[str, Any], *, index: int | None = None) -> None:
    """Checks that a part of the file has no unknown field, and that each value is of its field's type."""
    for name, value in values.items():
        place = _place(part, name, index)
        field = PARTS[part].get(name)
        if field is None:
            hint = _hint(part, name)
            raise HpsError(f"{path}: {place} is no field of HPS; {hint}, or leave it out of a copy of the file")
        if not is_of_kind(value, field.kind):
            raise HpsError(f"{path}: {place} is {_shown(name, value)}; expected {KINDS[field.kind]}")


def _hint(part: str, name: str) -> str:
    if places := [f"in {other}" if other else "at the top of the file" for other in PARTS if name in PARTS[other]]:
        return f"it belongs {' or '.join(places)}"
    near = difflib.get_close_matches(name, PARTS[part], n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(PARTS[part])}"


def _model(path: Path, index: int, entry: Mapping[str, Any], has_long_keys: bool) -> HpsModel:
    _check_part(path, "models", entry, index=index)
    name = _required(path, "models", entry, "model", index)
    try:
        check_model_name(name)
    except ContentError as exc:
        raise HpsError(f"{path}: {_place('models', 'model', index)}: {exc}") from exc
    if entry.get("i64_input_key", has_long_keys) != has_long_keys:
        raise HpsError(
            f"{path}: {_place('models', 'i64_input_key', index)} gives model {name!r} keys of another width than "
            f"supportlonglong = {_shown('', has_long_keys)} does; HPS has one width for all models: make them agree"
        )
    columns = {field: _required(path, "models", entry, field, index) for field in _PER_TABLE}
    num_tables = len(columns["sparse_files"])
    if not num_tables:
        raise HpsError(f"{path}: {_place('models', 'sparse_files', index)} is empty; expected a folder for each table")
    columns["embedding_table_names"] = entry.get(
        "embedding_table_names", [f"sparse_embedding{table}" for table in range(num_tables)]
    )
    for field, values in columns.items():
        if len(values) != num_tables:
            raise HpsError(
                f"{path}: {_place('models', field, index)} has {len(values)} entries, sparse_files {num_tables}; "
                "expected one for each table"
            )
    _refuse_twice(path, _place("models", "embedding_table_names", index), columns["embedding_table_names"])
    return HpsModel(name, tuple(_table(path, index, number, columns) for number in range(num_tables)))


def _table(path: Path, index: int, number: int, columns: Mapping[str, Sequence[Any]]) -> HpsTable:
    folder, default = columns["sparse_files"][number], columns["default_value_for_each_table"][number]
    place = f"{_place('models', 'sparse_files', index)}[{number}]"
    if "://" in folder:
        raise HpsError(
            f"{path}: {place} is {folder!r}; copy the folder to this machine and name it in a copy of the file"
        )
    if abs(default) > float(np.finfo(np.float32).max):
        raise HpsError(
            f"{path}: {_place('models', 'default_value_for_each_table', index)}[{number}] is {default}; expected a "
            "number that float32 holds"
        )
    return HpsTable(
        name=columns["embedding_table_names"][number],
        folder=path.parent / folder,
        dim=columns["embedding_vecsize_per_table"][number],
        default=float(default),
        keys_per_sample=columns["maxnum_catfeature_query_per_table_per_sample"][number],
        place=place,
    )


def _required(path: Path, part: str, values: Mapping[str, Any], name: str, index: int | None = None) -> Any:
    if name not in values:
        raise HpsError(f"{path}: has no {_place(part, name, index)}; HPS needs it too: {PARTS[part][name].there}")
    return values[name]


def _refuse_twice(path: Path, place: str, names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise HpsError(f"{path}: {place} has the name {twice[0]!r} twice; give each a name of its own")


def _settings(document: Mapping[str, Any], models: Sequence[str]) -> tuple[Setting, ...]:
    settings = []
    for part, fields in PARTS.items():
        entries = {"": [document], "models": document["models"]}.get(part, [document.get(part, {})])
        for name, field in fields.items():
            named = zip(models, entries, strict=False)  # Other parts than models have one entry.
            found = {model: _brief(_shown(name, entry[name])) for model, entry in named if name in entry}
            if found and field.kind not in ("object", "objects"):
                values = list(found.values())
                agree = len(entries) == len(values) and len(set(values)) == 1
                shown = values[0] if agree else ", ".join(f"{model}: {value}" for model, value in found.items())
                settings.append(Setting(f"{part}.{name}".lstrip("."), shown, field))
    return tuple(settings)


def _place(part: str, name: str, index: int | None) -> str:
    number = "" if index is None else f"[{index}]"
    return f"{part}{number}.{name}" if part else name


def _brief(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 4] + " ..."


def _shown(name: str, value: Any) -> str:
    return '"..."' if name in _SECRETS else json.dumps(value)
