"""Turns a Keras model with embedding layers into one whose tables are spread over the ranks, and back.

    with placeholder_tables():  # where tables are larger than one process: they take no memory yet
        model = make_my_model()
    model = distributed_model(model, ranks=ranks)
    model.compile(distributed_optimizer(tf_keras.optimizers.Adam(), ranks=ranks), loss="binary_crossentropy")
    model.fit(...)
    save_standalone(model, "folder")  # a Keras model of Keras' own layers

All embedding layers of a model become one `DistributedEmbedding`, so a step exchanges ids and rows once, whatever
their number.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
import tf_keras

from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import EmbeddingError
from rankhouse.training.plan import Plan
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.keyed_layer import KeyedEmbedding
from rankhouse.training.tables.keyed_tables import KeyedRows
from rankhouse.training.tables.specs import Input, spec_of
from rankhouse.training.tables.variable_rows import write_rows


@dataclass(frozen=True)
class _Call:
    """One use of an embedding layer in a model: the tensor of its ids, and that of the rows."""

    layer: tf_keras.layers.Embedding
    ids: Any
    rows: Any


@dataclass(frozen=True)
class _Conversion:
    """What a converted model was made of."""

    original: tf_keras.Model
    embedding: DistributedEmbedding
    layers: tuple[tf_keras.layers.Embedding, ...]


# What marks a layer whose table is not there yet.
_PLACEHOLDER = "rankhouse_placeholder"

# By converted model. Not attributes of it: Keras would count the original's variables as the model's.
_conversions: WeakKeyDictionary[tf_keras.Model, _Conversion] = WeakKeyDictionary()


@contextmanager
def placeholder_tables() -> Iterator[None]:
    """Within it, Keras' embedding layers get a table of one row: models are described, and cost no memory.

    Such a model only serves to be given to `distributed_model`, which draws the initial values of its tables from
    (seed, table, row), so that they are the same on any number of ranks.
    """

    def build(layer: tf_keras.layers.Embedding, input_shape: Any = None) -> None:
        layer.embeddings = layer.add_weight(name="embeddings", shape=(1, layer.output_dim), initializer="zeros")
        setattr(layer, _PLACEHOLDER, True)
        layer.built = True

    keras_build = tf_keras.layers.Embedding.build
    tf_keras.layers.Embedding.build = build
    try:
        yield
    finally:
        tf_keras.layers.Embedding.build = keras_build


def distributed_model(
    model: tf_keras.Model, *, ranks: Ranks | None = None, plan: Plan | None = None, seed: int = 0
) -> tf_keras.Model:
    """Returns a model that computes the same with its embedding tables spread over the ranks; collective.

    Dense layers, and tables that are there already, start with the values of rank 0, tables of `placeholder_tables`
    with values of their own. Both models share the dense layers.

    Args:
        model: A functional or sequential Keras model; its `tf_keras.layers.Embedding` layers lie in it itself, not in a
            model inside it. One whose ids are not known beforehand is a `KeyedEmbedding`.
        ranks: The ranks that train together; by default this process alone.
        plan: Who holds which table; by default as of `DistributedEmbedding`.
        seed: Selects the initial values of placeholder tables.

    Returns:
        A functional model of the same inputs and outputs; compile it with a `distributed_optimizer`.

    Raises:
        EmbeddingError: The model is of another kind, has no embedding layer, or one that cannot be spread.
        PlanError: The tables cannot be placed.
    """
    ranks = ranks or Ranks(0, 1)
    calls = _embedding_calls(model)
    layers = tuple(dict.fromkeys(call.layer for call in calls))
    embedding = DistributedEmbedding(
        [spec_of(layer) for layer in layers],
        inputs=[Input(f"{call.layer.name}#{number}", call.layer.name, None) for number, call in enumerate(calls)],
        ranks=ranks,
        plan=plan,
        seed=seed,
        name=f"{model.name}_tables",
    )
    rows = embedding([_ids_of(call) for call in calls])
    shaped = [_shaped_like(row, call.rows) for row, call in zip(rows, calls, strict=True)]
    converted = _replaced(model, calls, shaped, name=f"distributed_{model.name}")
    _conversions[converted] = _Conversion(model, embedding, layers)
    _take_over_values(layers, embedding, _dense_variables(model), ranks)
    return converted


def save_standalone(model: tf_keras.Model, path: Path | str) -> None:
    """Saves a converted model as one of Keras' own layers, with whole tables; collective.

    `tf_keras.models.load_model` and TensorFlow Serving read it without Rankhouse. A table that learns its keys has the
    known ones, behind Keras' IntegerLookup; others give zeros, as in evaluation. Rank 0 writes, and needs memory for
    all tables; for larger ones export a version. The optimizer's state is left out: checkpoints have it.

    Args:
        model: What `distributed_model` returned.
        path: The folder of the SavedModel, or a file that ends in .keras or, without tables that learn keys, .h5.

    Raises:
        EmbeddingError: The model was not made by `distributed_model`, or rank 0 could not save it; raised on every
            rank.
    """
    conversion = _conversions.get(model)
    if conversion is None:
        raise EmbeddingError(f"model {model.name!r} was not made by distributed_model; save it by its own `save`")
    ranks, failure = conversion.embedding.ranks, None
    tables = conversion.embedding.get_weights(all_ranks=False)
    if ranks.rank == 0:
        try:
            _standalone(conversion, tables, path).save(path)
        # Whatever it is: the other ranks wait to hear of it.
        except Exception as exc:
            failure = exc
    said = ranks.exchange_json(failure and (str(failure) or type(failure).__name__), name="save_standalone")[0]
    if said:
        raise EmbeddingError(
            f"{path}: rank 0 could not save model {model.name!r} ({said}); give a path that it can write, and memory "
            "and disk for all tables"
        ) from failure


def _standalone(conversion: _Conversion, tables: Sequence[Any], path: Path | str) -> tf_keras.Model:
    standalone = tf_keras.models.clone_model(conversion.original)
    table_of, learnt = dict(zip(conversion.layers, tables, strict=True)), {}
    for layer, copy in zip(conversion.original.layers, standalone.layers, strict=True):
        if isinstance(layer, KeyedEmbedding):
            learnt[copy] = table_of[layer]
        else:
            copy.set_weights([table_of[layer]] if layer in table_of else layer.get_weights())
    if Path(path).suffix in (".keras", ".h5") and any(layer.dtype == "bfloat16" for layer in standalone.layers):
        raise EmbeddingError("Keras writes no bfloat16 into .keras and .h5 files; take a folder")
    if learnt and Path(path).suffix == ".h5":
        raise EmbeddingError("Keras leaves keys out of .h5 files; take .keras, or a folder")
    return _with_lookups(standalone, learnt) if learnt else standalone


def _with_lookups(model: tf_keras.Model, learnt: Mapping[tf_keras.layers.Embedding, KeyedRows]) -> tf_keras.Model:
    """Puts a lookup of known keys and a table of their rows in the place of layers that describe them."""
    calls = [call for call in _embedding_calls(model) if call.layer in learnt]
    pairs = {layer: _lookup_and_table(layer, table) for layer, table in learnt.items()}
    rows = []
    for call in calls:
        lookup, embedding = pairs[call.layer]
        rows.append(embedding(lookup(tf.cast(call.ids, tf.int64))))
    for layer, table in learnt.items():
        unknown = np.zeros((1, layer.output_dim), np.float32)
        pairs[layer][1].set_weights(
            [np.concatenate([unknown, table.rows]) if len(table.keys) else unknown.repeat(2, 0)]
        )
    return _replaced(model, calls, rows, name=model.name)


def _lookup_and_table(layer: tf_keras.layers.Embedding, table: KeyedRows) -> tuple[Any, Any]:
    # Keras refuses to look for no key at all: 0, with zeros, stands for none.
    keys = table.keys if len(table.keys) else np.zeros(1, np.int64)
    known = set(keys.tolist())
    # What stands for unknown ones must not be a key itself.
    unknown = next(number for number in range(-1, -len(known) - 2, -1) if number not in known)
    lookup = tf_keras.layers.IntegerLookup(oov_token=unknown, name=f"{layer.name}_keys")
    lookup.set_vocabulary(keys)
    rows = tf_keras.layers.Embedding(
        len(keys) + 1, layer.output_dim, name=f"{layer.name}_rows", dtype=layer.dtype_policy
    )
    return lookup, rows


def _embedding_calls(model: tf_keras.Model) -> list[_Call]:
    if not getattr(model, "_is_graph_network", False):
        raise EmbeddingError(
            f"model {model.name!r} is neither functional nor a sequential one with an input shape; make it one, or use "
            "DistributedEmbedding in its own code"
        )
    for layer in model.layers:
        inner = layer.submodules if isinstance(layer, tf_keras.Model) else ()
        if any(isinstance(module, tf_keras.layers.Embedding) for module in inner):
            raise EmbeddingError(
                f"model {model.name!r} has the model {layer.name!r} in it, with embedding layers of its own; call "
                f"distributed_model with {layer.name!r}, or put its layers into the outer model"
            )
    nodes = [node for depth in sorted(model._nodes_by_depth, reverse=True) for node in model._nodes_by_depth[depth]]
    calls = [
        _Call(node.layer, node.input_tensors, node.outputs)
        for node in nodes
        if isinstance(node.layer, tf_keras.layers.Embedding)
    ]
    if not calls:
        raise EmbeddingError(f"model {model.name!r} has no tf_keras.layers.Embedding; there is nothing to spread")
    _check_ids(model, calls)
    return calls


def _check_ids(model: tf_keras.Model, calls: Sequence[_Call]) -> None:
    """Refuses ids that are computed from rows: all tables are looked up at once, before there is any row."""
    for call in calls:
        for other in calls:
            if _behind([call.ids], [other.rows]):
                raise EmbeddingError(
                    f"model {model.name!r} computes ids of {call.layer.name!r} from rows of {other.layer.name!r}, but "
                    "all tables are looked up in one exchange; use two DistributedEmbedding layers in the model's own "
                    "code"
                )


def _replaced(model: tf_keras.Model, calls: Sequence[_Call], rows: Sequence[Any], *, name: str) -> tf_keras.Model:
    """Returns the model with the rows of its embedding layers' calls replaced; they may be outputs themselves."""
    ends = [*model.inputs, *[call.rows for call in calls]]
    found = {id(end): value for end, value in zip(ends, [*model.inputs, *rows], strict=True)}
    computed = [output for output in model.outputs if id(output) not in found]
    if computed:
        needed = _behind(computed, ends)
        rest = tf_keras.Model(needed, computed, name=model.name)
        values = tf.nest.flatten(rest([found[id(end)] for end in needed]))
        found |= {id(output): value for output, value in zip(computed, values, strict=True)}
    outputs = [found[id(output)] for output in model.outputs]
    return tf_keras.Model(model.inputs, outputs, name=name)


def _behind(outputs: Sequence[Any], ends: Sequence[Any]) -> list[Any]:
    """Returns those of the tensors `ends` that a search from the outputs, which goes no further than them, meets."""
    stops, seen, waiting = {id(end) for end in ends}, set(), [*outputs]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in seen and id(tensor) not in stops:
            waiting += tensor.node.keras_inputs
        seen.add(id(tensor))
    return [end for end in ends if id(end) in seen]


def _ids_of(call: _Call) -> Any:
    """Returns integers of at most two dimensions: Keras' layer casts what is none, and takes ids [B, a, b, ...]."""
    if isinstance(call.layer, KeyedEmbedding) and not call.ids.dtype.is_integer:
        raise EmbeddingError(
            f"keys of the layer {call.layer.name!r} are {call.ids.dtype.name}, which cannot tell large ones apart; "
            'give the model an input of integers first, such as tf_keras.Input((3,), dtype="int64")'
        )
    ids = call.ids if call.ids.dtype.is_integer else tf.cast(call.ids, tf.int32)
    if ids.shape.rank is None or ids.shape.rank <= 2:
        return ids
    return tf_keras.layers.Flatten()(ids)


def _shaped_like(rows: Any, wanted: Any) -> Any:
    if rows.dtype != wanted.dtype:  # Those of a layer with a dtype or policy of its own.
        rows = tf.cast(rows, wanted.dtype)
    if wanted.shape.rank == rows.shape.rank:
        return rows
    return tf_keras.layers.Reshape(wanted.shape[1:])(rows)


def _dense_variables(model: tf_keras.Model) -> list[tf.Variable]:
    return [
        variable
        for layer in model.layers
        if not isinstance(layer, tf_keras.layers.Embedding)
        for variable in layer.variables
    ]


def _take_over_values(
    layers: Sequence[tf_keras.layers.Embedding],
    embedding: DistributedEmbedding,
    dense: Sequence[tf.Variable],
    ranks: Ranks,
) -> None:
    """Gives every rank the values that rank 0 has."""
    for number, variable in enumerate(dense):
        variable.assign(ranks.broadcast(variable, name=f"{embedding.name}_dense_{number}"))
    for number, layer in enumerate(layers):
        if hasattr(layer, _PLACEHOLDER) or isinstance(layer, KeyedEmbedding):
            continue
        table = ranks.broadcast(tf.cast(layer.embeddings, tf.float32), name=f"{embedding.name}_table_{number}")
        for shard in embedding.shards:
            if shard.table == layer.name:
                rows = table[shard.row_start : shard.row_stop, shard.column_start : shard.column_stop]
                write_rows(shard.variable, 0, rows.numpy())
