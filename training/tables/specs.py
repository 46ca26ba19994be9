"""What a DistributedEmbedding is made of: its tables, and the inputs that look rows up in them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import tf_keras

from rankhouse.training.errors import EmbeddingError
from rankhouse.training.plan import TableSpec
from rankhouse.training.tables.distributions import distribution_of
from rankhouse.training.tables.row_dtypes import ROW_DTYPES, RowDtype, row_dtype_of

COMBINERS = ("sum", "mean", "sqrtn")
WHEN_FULL = ("error", "unknown", "oldest", "rarest")


@dataclass(frozen=True)
class VocabularySettings:
    """How a table learns the keys that it is looked up by.

    Attributes:
        min_steps: A key gets a row in the step of training that is the `min_steps`th in which it is seen, however often
            in each, and by whichever rank; until then it gives zeros, and learns nothing.
        when_full: What happens when a key would get a row and all are taken: "error": training ends with an error that
            names the table; "unknown": the key gives zeros; "oldest": the key goes that was last seen the longest ago;
            "rarest": the one that was seen in the fewest steps. Keys of the step itself never go.
        max_candidates: Most keys remembered that have no row yet; beyond, the oldest are forgotten. 0: as many as rows.
    """

    min_steps: int = 1
    when_full: str = "error"
    max_candidates: int = 0

    def __post_init__(self) -> None:
        if self.when_full not in WHEN_FULL:
            raise EmbeddingError(
                f"a vocabulary has when_full = {self.when_full!r}; expected one of {', '.join(WHEN_FULL)}"
            )
        for field, least in (("min_steps", 1), ("max_candidates", 0)):
            value = getattr(self, field)
            if not isinstance(value, int) or value < least:
                raise EmbeddingError(f"a vocabulary has {field} = {value!r}; expected an integer, at least {least}")


@dataclass(frozen=True)
class EmbeddingSpec:
    """One embedding table, in the words of Keras' Embedding layer.

    Attributes:
        input_dim: Number of rows; with a vocabulary the most keys that have one at a time.
        output_dim: Width of a row.
        name: Unique name of the table.
        combiner: How an input's rows are pooled unless the input says otherwise: "sum", "mean" or "sqrtn"; None: they
            are not, each id gives a row.
        embeddings_initializer: A Keras initializer, its name or its configuration; None is uniform in
            ±1/sqrt(input_dim). The values are the same on any number of ranks (`initial_values.py`).
        vocabulary: Settings of a table that is looked up by any int64 keys, and learns them in
            training; a key that it does not know gives zeros. None: ids are 0 to input_dim - 1.
        dtype: What rows are held in: "float32", "bfloat16" or "float16". What they give, their gradients and what an
            optimizer keeps beside them are float32; an update rounds stochastically, so that what is small counts too.
    """

    input_dim: int
    output_dim: int
    name: str
    combiner: str | None = "sum"
    embeddings_initializer: Any = None
    vocabulary: VocabularySettings | None = None
    dtype: RowDtype = "float32"

    def __post_init__(self) -> None:
        if not self.name:
            raise EmbeddingError("an embedding table has an empty name; expected a unique one")
        for field in ("input_dim", "output_dim"):
            value = getattr(self, field)
            if not isinstance(value, int) or value < 1:
                raise EmbeddingError(f"table {self.name!r} has {field} = {value!r}; expected an integer, at least 1")
        if self.dtype not in ROW_DTYPES:
            raise EmbeddingError(
                f"table {self.name!r} has rows of dtype {self.dtype!r}; expected one of {', '.join(ROW_DTYPES)}"
            )
        _check_combiner(f"table {self.name!r}", self.combiner)
        # Keras accepts names and configurations where it wants an initializer; from here on it is one.
        object.__setattr__(self, "embeddings_initializer", tf_keras.initializers.get(self.embeddings_initializer))
        initializer = self.embeddings_initializer
        if self.vocabulary and not distribution_of(initializer, num_rows=self.input_dim, dim=self.output_dim):
            raise EmbeddingError(
                f"table {self.name!r} has a vocabulary, so its rows are drawn by key, which {initializer!r} cannot do; "
                "take one of Keras' initializers without a seed, such as 'uniform' or 'glorot_normal'"
            )

    def table_spec(self, lookups_per_sample: float = 1.0) -> TableSpec:
        """Returns the table as a plan sees it."""
        return TableSpec(self.name, self.input_dim, self.output_dim, lookups_per_sample, dtype=self.dtype)


@dataclass(frozen=True)
class Input:
    """One categorical input: where it looks its rows up and how it pools them.

    Attributes:
        name: Unique name, for messages.
        table: Name of its table; several inputs may share one.
        combiner: "sum", "mean" or "sqrtn"; None: rows are not pooled.
    """

    name: str
    table: str
    combiner: str | None = "sum"

    def __post_init__(self) -> None:
        _check_combiner(f"input {self.name!r}", self.combiner)


def spec_of(embedding: Any) -> EmbeddingSpec:
    """Reads the table that a Keras Embedding layer, a mapping or a spec describes.

    Raises:
        EmbeddingError: It is something else, has a setting that a distributed table cannot have, or an unknown key.
    """
    if isinstance(embedding, EmbeddingSpec):
        return embedding
    if isinstance(embedding, Mapping):
        return _spec_of_mapping(embedding)
    if isinstance(embedding, tf_keras.layers.Embedding):
        return _spec_of_layer(embedding)
    raise EmbeddingError(
        f"cannot make an embedding table of {embedding!r}; "
        "expected a tf_keras Embedding layer, an EmbeddingSpec or a mapping"
    )


def whole_table_setting(layer: Any) -> str | None:
    """Returns what of a Keras Embedding layer needs its whole table at every step: a regularizer or a constraint.

    A regularizer whose factors are 0, as libraries of models make them, does nothing and is none.
    """
    regularizer = layer.embeddings_regularizer
    factors = [getattr(regularizer, name) for name in ("l1", "l2") if hasattr(regularizer, name)]
    if regularizer is not None and not (factors and all(float(factor) == 0 for factor in factors)):
        return "embeddings_regularizer"
    return "embeddings_constraint" if layer.embeddings_constraint is not None else None


def resolve_inputs(
    specs: Sequence[EmbeddingSpec], inputs: Sequence[Any] | None, input_table_map: Sequence[int] | None
) -> tuple[Input, ...]:
    """Works out the inputs: as given, or by table position, or one for each table in turn.

    Raises:
        EmbeddingError: Both were given, a table is unknown or out of range, or two inputs have one name.
    """
    if inputs is not None and input_table_map is not None:
        raise EmbeddingError("inputs and input_table_map were both given; they say the same thing, so give one")
    if inputs is not None:
        resolved = tuple(item if isinstance(item, Input) else Input(**item) for item in inputs)
    else:
        resolved = _inputs_of_map(specs, range(len(specs)) if input_table_map is None else input_table_map)
    names = [spec.name for spec in specs]
    for item in resolved:
        if item.table not in names:
            raise EmbeddingError(
                f"input {item.name!r} names the unknown table {item.table!r}{_nearest(item.table, names)}"
            )
    _check_unique("inputs", [item.name for item in resolved])
    _check_unique("tables", names)
    if not resolved:
        raise EmbeddingError("there are no inputs; expected at least one embedding table")
    return resolved


def _inputs_of_map(specs: Sequence[EmbeddingSpec], positions: Sequence[int]) -> tuple[Input, ...]:
    seen: Counter[int] = Counter()
    inputs = []
    for number, position in enumerate(positions):
        if not 0 <= position < len(specs):
            raise EmbeddingError(
                f"input_table_map[{number}] is {position}; expected the position of one of the {len(specs)} tables"
            )
        spec = specs[position]
        suffix = f"#{seen[position]}" if seen[position] else ""
        seen[position] += 1
        inputs.append(Input(spec.name + suffix, spec.name, spec.combiner))
    return tuple(inputs)


def _spec_of_mapping(embedding: Mapping[str, Any]) -> EmbeddingSpec:
    _check_keys("an embedding table", embedding, EmbeddingSpec)
    for key in ("input_dim", "output_dim", "name"):
        if key not in embedding:
            raise EmbeddingError(f"an embedding table lacks {key!r}: {dict(embedding)!r}")
    vocabulary = embedding.get("vocabulary")
    if isinstance(vocabulary, Mapping):
        _check_keys(f"the vocabulary of table {embedding['name']!r}", vocabulary, VocabularySettings)
        embedding = {**embedding, "vocabulary": VocabularySettings(**vocabulary)}
    return EmbeddingSpec(**embedding)


def _spec_of_layer(layer: Any) -> EmbeddingSpec:
    if layer.mask_zero:
        raise EmbeddingError(
            f"table {layer.name!r} has mask_zero; pooled lookups have no mask, leave padding out of the bags"
        )
    if setting := whole_table_setting(layer):
        raise EmbeddingError(
            f"table {layer.name!r} has an {setting}, which needs the whole table at every step, and no rank has it; "
            "leave it out (a regularizer's factor may be 0), or use weight decay of a trainer's optimizer"
        )
    combiner = getattr(layer, "combiner", "sum")  # Keras' own layers have none.
    vocabulary = getattr(layer, "vocabulary_settings", None)  # Of a KeyedEmbedding.
    initializer = layer.embeddings_initializer
    return EmbeddingSpec(
        *(layer.input_dim, layer.output_dim, layer.name, combiner, initializer, vocabulary), dtype=row_dtype_of(layer)
    )


def _check_keys(where: str, mapping: Mapping[str, Any], kind: Any) -> None:
    known = [field.name for field in fields(kind)]
    for key in mapping:
        if key not in known:
            raise EmbeddingError(f"unknown key {key!r} in {where}{_nearest(key, known)}")


def _check_combiner(where: str, combiner: str | None) -> None:
    if combiner is not None and combiner not in COMBINERS:
        raise EmbeddingError(f"{where} has the combiner {combiner!r}; expected one of {', '.join(COMBINERS)}, or None")


def _check_unique(what: str, names: Sequence[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise EmbeddingError(f"{count} {what} are named {name!r}; give each its own name")


def _nearest(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1, cutoff=0)
    return f"; did you mean {near[0]!r}?" if near else ""
