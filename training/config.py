"""The configuration of a training run: small frozen dataclasses, read from a recipe (YAML).

A recipe names only what differs from the defaults below. `load_recipe` reads one, `override` applies
`optimizer.learning_rate=0.02`, and `Config.to_yaml` writes the resolved whole, which `parse_config` reads back.
"""

import dataclasses
import difflib
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.optimizer_settings import RULES, OptimizerSettings
from rankhouse.training.data.lanes import NUM_LANES
from rankhouse.training.errors import ConfigError
from rankhouse.training.exchange.wire_format import MAX_RELATIVE_ERROR, WireDtype
from rankhouse.training.plan import DATA_PARALLEL_THRESHOLD_ROWS, Device, Exchange, Mode
from rankhouse.training.tables.row_dtypes import RowDtype

# A recipe's word for a plan that is made by cost at the start of training.
AUTO_PLAN = "auto"

RECIPES = Path(__file__).parent / "recipes"

Section = TypeVar("Section")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the samples come from.

    Attributes:
        path: Folder of the prepared dataset.
        train_split: Split to learn from.
        valid_split: Held-out split, for the AUC.
        shuffle: Visit each lane's rows in a new order every epoch.
        num_lanes: Parts of a split that are read side by side; there can be at most as many ranks.
    """

    path: str = ""
    train_split: str = "train"
    valid_split: str = "valid"
    shuffle: bool = True
    num_lanes: int = NUM_LANES

    def __post_init__(self) -> None:
        _check(self.num_lanes >= 1, "data.num_lanes", self.num_lanes, "at least 1")


@dataclass(frozen=True, kw_only=True)
class KeysConfig:
    """How a table learns its keys: one whose features say `vocabulary: learnt` in the feature spec.

    Attributes:
        capacity: The most keys that have a row at a time.
        min_steps: In how many steps of training a key must be seen to get a row; until then it is an unknown one.
        when_full: What happens when all rows are taken: "error": training ends; "unknown": new keys stay unknown;
            "oldest", "rarest": the key goes that was seen last the longest ago, or in the fewest steps.
        max_candidates: Most keys remembered that have no row yet; 0: as many as rows.
    """

    capacity: int
    min_steps: int = 1
    when_full: Literal["error", "unknown", "oldest", "rarest"] = "error"
    max_candidates: int = 0

    def check(self, key: str) -> None:
        """Raises ConfigError, naming `key` ("model.vocabularies.item"), where a number is out of its range."""
        for name, least in (("capacity", 1), ("min_steps", 1), ("max_candidates", 0)):
            _check(getattr(self, name) >= least, f"{key}.{name}", getattr(self, name), f"{least} or more")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The dense part of DLRM, and the tables that learn their keys. The embedding width comes from the dataset.

    Attributes:
        bottom_mlp: Widths of the hidden layers over the continuous features; a layer of the embedding width follows.
        top_mlp: Widths of the hidden layers over the interactions; a layer of width 1, the logit, follows.
        vocabularies: For each table that learns its keys, by name, how.
    """

    bottom_mlp: tuple[int, ...] = (64, 32)
    top_mlp: tuple[int, ...] = (128, 64)
    vocabularies: Mapping[str, KeysConfig] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("bottom_mlp", "top_mlp"):
            for width in getattr(self, name):
                _check(width >= 1, f"model.{name}", width, "widths of at least 1")
        for table, keys in self.vocabularies.items():
            keys.check(f"model.vocabularies.{table}")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to learn.

    Attributes:
        batch_size: Samples per step, over all ranks together.
        epochs: Passes over the training split.
        max_steps: Steps after which training ends although epochs are left; 0 is no such limit.
        seed: Of initial values and of the order of the samples.
        log_every_steps: Steps between two lines of metrics.
        eval_every_steps: Steps between two evaluations of the AUC; 0 evaluates only at the end.
        auc_by: A categorical feature with one value in each sample, such as the user: evaluations also report the mean
            of the AUCs within its values (GAUC); samples whose value is missing or unknown are left out. Empty is none.
        checkpoint_every_steps: Steps between two checkpoints; 0 saves only at the end.
        keep_checkpoints: Newest checkpoints that stay on disk.
        checkpoint_memory_share: How much of the machine's free memory copies of the tables may take, from 0 to 1: of
            what fits, training waits for the copy alone, and the checkpoint is written while it goes on. 0 waits for
            all that is written.
        continue_from: Folder of the checkpoint, of another run, from which this one goes on; empty is none.
        precision: What the dense layers multiply in: "mixed_bfloat16" is about twice as fast where the processor has
            such products (AMX, AVX512-BF16, tensor cores). Weights, sums and what is exported are float32 either way.
    """

    batch_size: int = 2048
    epochs: int = 1
    max_steps: int = 0
    seed: int = 1
    log_every_steps: int = 10
    eval_every_steps: int = 1000
    auc_by: str = ""
    checkpoint_every_steps: int = 1000
    keep_checkpoints: int = 2
    checkpoint_memory_share: float = 0.5
    continue_from: str = ""
    precision: Literal["float32", "mixed_bfloat16"] = "float32"

    def num_steps(self, num_rows: int) -> int:
        """Returns the steps of a whole run on a training split of so many rows."""
        steps = self.epochs * -(-num_rows // self.batch_size)
        return min(steps, self.max_steps) if self.max_steps else steps

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "log_every_steps", "keep_checkpoints"):
            _check(getattr(self, name) >= 1, f"training.{name}", getattr(self, name), "at least 1")
        for name in ("max_steps", "seed", "eval_every_steps", "checkpoint_every_steps"):
            _check(getattr(self, name) >= 0, f"training.{name}", getattr(self, name), "at least 0")
        share = self.checkpoint_memory_share
        _check(0 <= share <= 1, "training.checkpoint_memory_share", share, "a number from 0 to 1")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients move tables and dense layers alike. The formulas: rankhouse.kernels.optimizer_settings.

    A setting that the rule does not have must stay at its default.

    Attributes:
        rule: The formula.
        kind: What momentum and Adam do with rows of tables that a step does not touch: "lazy" leaves them, "dense"
            moves them as the definition says, "exact" does so to rounding at the cost of touched rows.
        learning_rate: After the warm-up, and before it falls.
        warmup_steps: Steps over which the learning rate grows to its value in a straight line; 0 is no warm-up.
        decay_first_step: The first step in which it falls.
        decay_steps: Steps after which it has fallen to 0; 0 is no fall.
        decay_power: 1 falls in a straight line, more faster at first.
        clip_global_norm: Gradients are made smaller together where the root of the sum of all their squares, over all
            ranks, is above this; 0 is no limit.
        weight_decay: How strongly dense layers, and the rows that a step touches, are pulled to 0.
        decoupled: Whether that happens beside the formula (w -= learning rate * weight_decay * w), or through the
            gradient (g += weight_decay * w).
        initial_accumulator_value: Where the accumulators of Adagrad and FTRL start. The gradient of a row is divided by
            the batch size, so Keras' 0.1 would drown it: rows would hardly move in the first passes.
        epsilon: Keeps divisors away from 0.
        momentum: How much of the last move is made again.
        nesterov: Momentum that looks ahead.
        beta_1: How slowly the mean of gradients changes (Adam, Adamax).
        beta_2: How slowly the mean of their squares changes, or their maximum (Adam, Adamax).
        rho: How slowly the mean of squares changes (RMSprop, Adadelta).
        learning_rate_power: Of FTRL, at most 0.
        l1_regularization_strength: Of FTRL.
        l2_regularization_strength: Of FTRL.
        l2_shrinkage_regularization_strength: Of FTRL.
        beta: Of FTRL.
    """

    rule: Literal["adagrad", "sgd", "momentum", "rowwise_adagrad", "adam", "ftrl", "rmsprop", "adadelta", "adamax"] = (
        "adagrad"
    )
    kind: Literal["lazy", "dense", "exact"] = "lazy"
    learning_rate: float = 0.03
    warmup_steps: int = 0
    decay_first_step: int = 0
    decay_steps: int = 0
    decay_power: float = 2.0
    clip_global_norm: float = 0.0
    weight_decay: float = 0.0
    decoupled: bool = False
    initial_accumulator_value: float = 1e-6
    epsilon: float = 1e-7
    momentum: float = 0.9
    nesterov: bool = False
    beta_1: float = 0.9
    beta_2: float = 0.999
    rho: float = 0.9
    learning_rate_power: float = -0.5
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "decay_power"):
            value = getattr(self, name)
            _check(0 < value < math.inf, f"optimizer.{name}", value, "a number above 0")
        for name in ("warmup_steps", "decay_first_step", "decay_steps"):
            _check(getattr(self, name) >= 0, f"optimizer.{name}", getattr(self, name), "at least 0")
        norm = self.clip_global_norm
        _check(0 <= norm < math.inf, "optimizer.clip_global_norm", norm, "a number of at least 0")
        self._check_unused()
        self.settings()

    def settings(self) -> OptimizerSettings:
        """Returns the rule with its settings.

        Raises:
            ConfigError: One is out of its range.
        """
        rule = RULES[self.rule]
        try:
            return rule(**{name: getattr(self, name) for name in _names(rule)})
        except ArgumentError as exc:
            raise ConfigError(f"optimizer: {exc}") from exc

    def _check_unused(self) -> None:
        """Refuses settings that would change nothing."""
        used = _names(RULES[self.rule])
        of_some_rule = {name for rule in RULES.values() for name in _names(rule)}
        for setting in dataclasses.fields(self):
            name, value = setting.name, getattr(self, setting.name)
            if name in of_some_rule and name not in used and value != setting.default:
                raise ConfigError(
                    f"optimizer.{name} is {value!r}, but {self.rule} has no such setting; leave it out, or take "
                    f"another rule (settings of {self.rule}: {', '.join(used)})"
                )


@dataclass(frozen=True, kw_only=True)
class TableConfig:
    """What a recipe decides about a table, or about all whose names match a pattern; null is left to the plan.

    Attributes:
        mode: "data_parallel": on every rank. "table_wise": whole on one. "column_wise", "row_wise": cut over several.
        ranks: Who may hold it; of a table that lies whole on one rank, the first.
        num_slices: Into how many slices it is cut.
        exchange: How lookups travel: "pooled": its owner pools them. "rows": each different row once.
        wire_forward: In which format its rows travel.
        wire_backward: In which format their gradients do.
        device: "device": where lookups are computed. "host": in the host's memory, with some rows cached.
        cache_rows: How many rows of a table on the host are cached.
        host_folder: The folder in whose files a table on the host lies, mapped into memory; null: in memory.
        dtype: What its rows are held in while it trains; null: float32.
    """

    mode: Mode | None = None
    ranks: tuple[int, ...] | None = None
    num_slices: int | None = None
    exchange: Exchange | None = None
    wire_forward: WireDtype | None = None
    wire_backward: WireDtype | None = None
    device: Device | None = None
    cache_rows: int | None = None
    host_folder: str | None = None
    dtype: RowDtype | None = None


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How tables lie over the ranks.

    Attributes:
        plan: Who decides: empty, the rule of `data_parallel_threshold_rows`. "auto": what steps are predicted to cost
            on this hardware. Or the file of a plan, as `rankhouse plan --output` writes it.
        tables: What is decided about single tables already, by name or pattern (`"ad_*"`).
        hardware: What "auto" plans for: `a100`, `h100`, `h200`, `2-cores`, or the file of a profile that
            `rankhouse plan --calibrate` wrote; empty measures at the start of training.
        memory_gib: Memory that each rank may use, GiB; 0 is its part of what is free.
        auto_wire: In which format "auto" may let rows and gradients of a table travel where that is predicted to be
            faster; float32 allows nothing but what `wire_forward` and `wire_backward` say.
        data_parallel_threshold_rows: Tables with fewer rows are copied to every rank; larger ones have one owner each.
        wire_forward: In which format rows travel between ranks. Those narrower than float32 round them.
        wire_backward: In which format their gradients do.
        wire_max_error: The largest error of an element by rounding, relative to the largest of its row, that the first
            step may show; where it is larger, rows (or gradients) travel as float32, and the log says so.
        overlap: Whether the ids of the next batch travel while this one is computed. Results are the same, to the bit.
    """

    plan: str = ""
    tables: Mapping[str, TableConfig] = field(default_factory=dict)
    hardware: str = ""
    memory_gib: float = 0.0
    auto_wire: WireDtype = "float32"
    data_parallel_threshold_rows: int = DATA_PARALLEL_THRESHOLD_ROWS
    wire_forward: WireDtype = "float32"
    wire_backward: WireDtype = "float32"
    wire_max_error: float = MAX_RELATIVE_ERROR
    overlap: bool = True

    def __post_init__(self) -> None:
        threshold = self.data_parallel_threshold_rows
        _check(threshold >= 0, "parallel.data_parallel_threshold_rows", threshold, "at least 0")
        _check(self.wire_max_error >= 0, "parallel.wire_max_error", self.wire_max_error, "a number of at least 0")
        _check(0 <= self.memory_gib < math.inf, "parallel.memory_gib", self.memory_gib, "a number of at least 0")
        if self.plan != AUTO_PLAN:
            _check(not self.hardware, "parallel.hardware", self.hardware, "none without parallel.plan=auto")
            _check(self.auto_wire == "float32", "parallel.auto_wire", self.auto_wire, "none without parallel.plan=auto")
        if self.plan not in ("", AUTO_PLAN) and self.tables:
            raise ConfigError(
                f"parallel.plan is {self.plan!r}, a document that decides about every table, and parallel.tables names "
                f"{', '.join(self.tables)}; leave one of them out"
            )


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run's result depends on."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def to_yaml(self) -> str:
        """Returns the whole configuration, defaults included, as a recipe."""
        lines = []
        for section, values in _without_none(dataclasses.asdict(self)).items():
            lines.append(f"{section}:")
            lines += [f"  {key}: {_yaml_value(value)}" for key, value in values.items()]
        return "\n".join(lines) + "\n"


def load_recipe(recipe: str | Path, *, overrides: Sequence[str] = ()) -> Config:
    """Reads a recipe.

    Args:
        recipe: The name of a shipped recipe (`dlrm`), or the path of a file (`my/recipe.yaml`).
        overrides: Settings to change, each `section.key=value` with a YAML value.

    Raises:
        ConfigError: There is no such recipe, a key is unknown, or a value has the wrong type or range.
    """
    path = find_recipe(recipe)
    return parse_config(path.read_text(encoding="utf-8"), source=str(path), overrides=overrides)


def find_recipe(recipe: str | Path) -> Path:
    """Returns the file of a recipe given by name or path."""
    if (path := Path(recipe)).is_file():
        return path
    if (path := RECIPES / f"{recipe}.yaml").is_file():
        return path
    known = sorted(path.stem for path in RECIPES.glob("*.yaml"))
    raise ConfigError(f"there is no recipe {str(recipe)!r}: give the path of a YAML file, or one of {', '.join(known)}")


def parse_config(text: str, *, source: str, overrides: Sequence[str] = ()) -> Config:
    """Parses a recipe; `source` names it in errors.

    Raises:
        ConfigError: The text is no YAML mapping, a key is unknown, or a value has the wrong type or range.
    """
    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as exc:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(exc).split())}") from exc
    try:
        config = _section(Config, document, prefix="")
    except ConfigError as exc:
        raise ConfigError(f"{source}: {exc}") from exc
    return override(config, overrides)


def override(config: Config, settings: Sequence[str]) -> Config:
    """Returns the configuration with settings like `optimizer.learning_rate=0.02` changed.

    Raises:
        ConfigError: A setting is not of this form, or its key or value is wrong.
    """
    document = _without_none(dataclasses.asdict(config))
    for setting in settings:
        key, equals, value = setting.partition("=")
        section, dot, name = key.strip().partition(".")
        if not equals or not dot:
            sections = [name for name, keys in document.items() if equals and key.strip() in keys]
            example = f"{sections[0]}.{setting}" if sections else "optimizer.learning_rate=0.02"
            raise ConfigError(f"--set {setting}: expected section.key=value, such as {example}")
        try:
            document.setdefault(section, {})[name] = yaml.safe_load(value)
        except yaml.YAMLError as exc:
            raise ConfigError(f"--set {setting}: {value!r} is not a YAML value") from exc
    return _section(Config, document, prefix="")


def _section(cls: type[Section], document: object, *, prefix: str) -> Section:
    """Builds a dataclass from a mapping; keys and types are checked, the ranges by the class itself."""
    hints = typing.get_type_hints(cls)
    if not isinstance(document, Mapping):
        where, keys = prefix.rstrip(".") or "a recipe", ", ".join(hints)
        raise ConfigError(f"{where} must be a mapping of keys to values, not {document!r}; its keys are {keys}")
    for key in document:
        if key not in hints:
            raise ConfigError(f"unknown key {prefix}{key}; {_nearest(str(key), hints, prefix)}")
    values = {key: _value(hints[key], value, key=f"{prefix}{key}") for key, value in document.items()}
    for each in dataclasses.fields(typing.cast("Any", cls)):
        if each.default is each.default_factory is dataclasses.MISSING and each.name not in values:
            raise ConfigError(f"{prefix}{each.name} is missing; expected a value, as it has no default")
    return cls(**values)


def _value(expected: Any, value: object, *, key: str) -> Any:
    """Checks a value against a field's type. YAML reads 1e-3 as text and 1 as an integer: both are numbers here."""
    if dataclasses.is_dataclass(expected):
        return _section(typing.cast("type[Any]", expected), value, prefix=f"{key}.")
    if typing.get_origin(expected) is Mapping:
        return _by_name(typing.get_args(expected)[1], value, key=key)
    if typing.get_origin(expected) in (typing.Union, types.UnionType):  # Of a type and None.
        return None if value is None else _value(typing.get_args(expected)[0], value, key=key)
    if typing.get_origin(expected) is Literal:
        choices = typing.get_args(expected)
        _check(value in choices, key, value, f"one of {', '.join(map(repr, choices))}")
        return value
    if isinstance(expected, types.GenericAlias):
        _check(isinstance(value, Sequence) and not isinstance(value, str), key, value, "a list of integers")
        return tuple(_value(int, item, key=key) for item in typing.cast("Sequence[object]", value))
    if expected is float and isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    if expected is str and value is None:  # What YAML reads where nothing stands behind the key.
        return ""
    names = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
    _check(type(value) is expected, key, value, names[expected])
    return value


def _by_name(expected: Any, value: object, *, key: str) -> dict[str, Any]:
    """Checks a mapping whose keys are the user's own names."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{key} is {value!r}; expected a mapping such as {{item: {{mode: row_wise}}}}")
    return {str(name): _value(expected, item, key=f"{key}.{name}") for name, item in value.items()}


def _without_none(document: Any) -> Any:
    """Leaves out what says nothing, also in mappings within."""
    if not isinstance(document, Mapping):
        return document
    return {key: _without_none(value) for key, value in document.items() if value is not None}


def _names(rule: type[OptimizerSettings]) -> list[str]:
    return [setting.name for setting in dataclasses.fields(rule)]


def _check(correct: bool, key: str, value: object, expected: str) -> None:
    if not correct:
        raise ConfigError(f"{key} is {value!r}; expected {expected}")


def _nearest(key: str, known: Mapping[str, object], prefix: str) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if nearest:
        return f"did you mean {prefix}{nearest[0]}?"
    return f"known keys{f' of {prefix[:-1]}' if prefix else ''}: {', '.join(known)}"


def _yaml_value(value: Any) -> str:
    """Writes a value on one line."""
    plain = json.loads(json.dumps(value))  # Tuples become lists, also within mappings.
    text: str = yaml.safe_dump(plain, default_flow_style=True, width=math.inf)
    return text.removesuffix("...\n").strip()
