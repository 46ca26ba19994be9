"""The Keras layer `Embedding` over the pooled lookup.

Importing this module loads the TensorFlow ops, so that SavedModels with the layer can be loaded after it.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.kernels import library, tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.tf_ops.native import TRAINED_TYPES, ops

ops()


@tf_keras.saving.register_keras_serializable("rankhouse")
class Embedding(tf_keras.layers.Layer):  # type: ignore[misc]
    """A table of rows that ids select, with or without pooling; made like `tf_keras.layers.Embedding`.

    Without a combiner it is that layer: ids of any shape give their rows, shape(ids) + [D]. With one it pools the rows
    of each bag into one: ids [..., k], RaggedTensor [B, None] or SparseTensor [B, k] give [..., D], an empty bag zeros.
    Called with a pair, the second value has a factor for each id, in the first one's form.

    An id that is not in [0, input_dim) is an error that names it, unless `out_of_range` says otherwise. The table lies
    in the main memory, in the layer's variable dtype: float32, float16 or bfloat16. The result has its compute dtype.
    The gradient is a tf.IndexedSlices of float32 with increasing ids, each once, the same bits in every run. Keras'
    optimizers take it for tables of float32 only; `tf_ops.apply`, or the layers and optimizers of `rankhouse.training`,
    train the others.

    Example:
        model = tf_keras.Sequential([Embedding(100_000, 16, combiner="mean"), tf_keras.layers.Dense(1)])
        model.compile("adagrad", "mse")
        model.fit(tf.ragged.constant([[1, 2], [], [7]], tf.int64), labels)
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        *,
        mask_zero: bool = False,
        combiner: str | None = None,
        out_of_range: str | int = "error",
        weighting: str = "tensorflow",
        **kwargs: Any,
    ) -> None:
        """Describes the layer; its table is made on the first call.

        Args:
            input_dim: R, the number of rows.
            output_dim: D, the width of a row.
            embeddings_initializer: A Keras initializer of [R, D], its name or its configuration.
            embeddings_regularizer: A Keras regularizer of the whole table; it makes the gradient dense.
            activity_regularizer: A Keras regularizer of the result.
            embeddings_constraint: A Keras constraint, which the optimizer applies to the whole table.
            mask_zero: Id 0 is padding. Without a combiner the layer hands on a mask, as Keras' does; with one it
                leaves padding out of the bags.
            combiner: None, "sum", "mean" or "sqrtn".
            out_of_range: What an id that is not a row becomes: "error", "zero" (a row of zeros), "clip" (the first or
                last row), or the number of a row.
            weighting: What "mean" and "sqrtn" divide by where there are weights: "tensorflow" (the sum of the weights,
                or the root of the sum of their squares) or "fbgemm" (the number of ids, or its root).
            kwargs: Those of a Keras layer.

        Raises:
            ArgumentError: A setting is out of its range.
        """
        # Ids must not be cast to the layer's dtype, which holds few of them exactly.
        super().__init__(activity_regularizer=activity_regularizer, **{**kwargs, "autocast": False})
        _check_settings(input_dim, output_dim, combiner, out_of_range, weighting)
        if self.variable_dtype not in TRAINED_TYPES:
            raise ArgumentError(
                f"layer {self.name!r} has variables of {self.variable_dtype}: expected float32, float16 or bfloat16"
            )
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = tf_keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = tf_keras.regularizers.get(embeddings_regularizer)
        self.embeddings_constraint = tf_keras.constraints.get(embeddings_constraint)
        self.mask_zero = mask_zero
        self.combiner = combiner
        self.out_of_range = out_of_range
        self.weighting = weighting
        self.supports_masking = mask_zero

    def build(self, input_shape: Any = None) -> None:
        """Makes the table."""
        with tf.device("CPU:0"):
            self.embeddings = self.add_weight(
                name="embeddings",
                shape=(self.input_dim, self.output_dim),
                initializer=self.embeddings_initializer,
                regularizer=self.embeddings_regularizer,
                constraint=self.embeddings_constraint,
                experimental_autocast=False,
            )
        if tf.executing_eagerly():
            tf_ops.advise_huge_pages(self.embeddings)
        self.built = True

    def call(self, inputs: Any) -> tf.Tensor | tf.RaggedTensor:
        """Looks ids up.

        Args:
            inputs: Ids, or a pair (ids, weights). Ids are integers, or floats that hold every row's number exactly.

        Raises:
            ArgumentError: The form, dtype or rank of ids or weights is wrong.
            tf.errors.InvalidArgumentError: An id is not a row.
        """
        ids, weights = self._unpack(inputs)
        rows = self._rows_of(ids) if self.combiner is None else self._pool(ids, weights)
        return rows if self.compute_dtype == "float32" else tf.cast(rows, self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Says which ids are no padding, where `mask_zero` is set and nothing is pooled."""
        if not self.mask_zero or self.combiner is not None:
            return None
        return tf.not_equal(inputs, 0)

    def compute_output_shape(self, input_shape: Any) -> tf.TensorShape:
        """Returns the shape of the result for ids, or ids and weights, of a shape."""
        is_pair = isinstance(input_shape, list | tuple) and not all(
            d is None or isinstance(d, int) for d in input_shape
        )
        shape = tf.TensorShape(input_shape[0] if is_pair else input_shape)
        return (shape if self.combiner is None else shape[:-1]).concatenate(self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": tf_keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": tf_keras.regularizers.serialize(self.embeddings_regularizer),
            "activity_regularizer": tf_keras.regularizers.serialize(self.activity_regularizer),
            "embeddings_constraint": tf_keras.constraints.serialize(self.embeddings_constraint),
            "mask_zero": self.mask_zero,
            "combiner": self.combiner,
            "out_of_range": self.out_of_range,
            "weighting": self.weighting,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Embedding":
        """Makes the layer that a configuration describes, also one of `tf_keras.layers.Embedding`."""
        # Keras' layer checks with it the shapes of its results alone.
        return cls(**{name: value for name, value in config.items() if name != "input_length"})

    def _unpack(self, inputs: Any) -> tuple[Any, Any]:
        is_pair = isinstance(inputs, list | tuple)
        if is_pair and len(inputs) != 2:
            raise ArgumentError(f"layer {self.name!r} was given {len(inputs)} inputs: expected ids, or ids and weights")
        ids, weights = inputs if is_pair else (inputs, None)
        if weights is not None and self.combiner is None:
            raise ArgumentError(f"layer {self.name!r} was given weights, but has no combiner that they could weight")
        if weights is not None and _form(weights) != _form(ids):
            raise ArgumentError(f"ids are a {_form(ids)} and weights a {_form(weights)}: expected the same")
        return self._integers(ids), weights

    def _integers(self, ids: Any) -> Any:
        if not isinstance(ids, tf.RaggedTensor | tf.SparseTensor):
            ids = tf.convert_to_tensor(ids)
        if ids.dtype in (tf.int32, tf.int64):
            return ids
        exact = _EXACT_INTEGERS.get(ids.dtype)
        if exact is not None and self.input_dim > exact:
            raise ArgumentError(
                f"ids of layer {self.name!r} are {ids.dtype.name}, which holds integers up to {exact} exactly, but "
                f"input_dim is {self.input_dim}: give them as int64, as with Input(..., dtype='int64')"
            )
        return tf.cast(ids, tf.int64)

    def _rows_of(self, ids: Any) -> tf.Tensor | tf.RaggedTensor:
        if isinstance(ids, tf.RaggedTensor):
            return ids.with_flat_values(self._rows_of(ids.flat_values))
        if isinstance(ids, tf.SparseTensor):
            if self.mask_zero:
                raise ArgumentError(f"layer {self.name!r} has mask_zero, which a SparseTensor cannot have")
            ids = tf.sparse.to_dense(ids)  # Keras' layer gives row 0 where there is no value, too
        rows = self._lookup(tf.reshape(ids, [-1]), FixedHotness((1,)))
        return _reshape(rows, tf.shape(ids), ids.shape)

    def _pool(self, ids: Any, weights: Any) -> tf.Tensor:
        if isinstance(ids, tf.RaggedTensor):
            flat, offsets = tf_ops.from_ragged(ids)
            weights = None if weights is None else _same_rows(ids.row_splits, weights.row_splits, weights.values)
        elif isinstance(ids, tf.SparseTensor):
            flat, offsets = tf_ops.from_sparse(ids)
            weights = None if weights is None else _same_rows(ids.indices, weights.indices, weights.values)
        else:
            if ids.shape.rank is None or ids.shape.rank < 2:
                raise ArgumentError(
                    f"layer {self.name!r} pools the last axis of ids, but they have shape {ids.shape}: expected "
                    "[..., k]; for one id each give [B, 1], or no combiner"
                )
            if weights is not None and not ids.shape.is_compatible_with(tf.convert_to_tensor(weights).shape):
                raise ArgumentError(f"ids have shape {ids.shape} and weights {weights.shape}: expected the same")
            flat, offsets = tf.reshape(ids, [-1]), _dense_bags(ids)
            weights = None if weights is None else tf.reshape(weights, [-1])
        if self.mask_zero:
            if isinstance(offsets, FixedHotness):
                offsets = tf.range(0, tf.size(flat, out_type=tf.int64) + 1, offsets.per_feature[0])
            flat, offsets, weights = _without_padding(flat, offsets, weights)
        rows = self._lookup(flat, offsets, None if weights is None else tf.cast(weights, tf.float32))
        if isinstance(ids, tf.Tensor):
            return _reshape(rows, tf.shape(ids)[:-1], ids.shape[:-1])
        return rows

    def _lookup(self, ids: tf.Tensor, offsets: Any, weights: tf.Tensor | None = None) -> tf.Tensor:
        return tf_ops.pooled_lookup(
            [self.embeddings],
            ids,
            offsets,
            feature_tables=[0],
            combiners=[self.combiner or "none"],
            weights=weights,
            weighting=self.weighting,
            out_of_range=self.out_of_range,
        )


# Up to where floating-point numbers hold all integers.
_EXACT_INTEGERS = {tf.float64: 2**53, tf.float32: 2**24, tf.float16: 2**11, tf.bfloat16: 2**8}


def _check_settings(
    input_dim: int, output_dim: int, combiner: str | None, out_of_range: str | int, weighting: str
) -> None:
    for name, value in (("input_dim", input_dim), ("output_dim", output_dim)):
        if not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name} is {value!r}: expected an integer, at least 1")
    if combiner not in (None, "sum", "mean", "sqrtn"):
        raise ArgumentError(f"combiner is {combiner!r}: expected None, 'sum', 'mean' or 'sqrtn'")
    if weighting not in library.WEIGHTINGS:
        raise ArgumentError(f"weighting is {weighting!r}: expected one of {sorted(library.WEIGHTINGS)}")
    is_row = isinstance(out_of_range, int) and 0 <= out_of_range < input_dim
    if out_of_range not in library.OUT_OF_RANGE and not is_row:
        raise ArgumentError(
            f"out_of_range is {out_of_range!r}: expected one of {sorted(library.OUT_OF_RANGE)} "
            f"or a row below {input_dim}"
        )


def _form(tensor: Any) -> str:
    return type(tensor).__name__ if isinstance(tensor, tf.RaggedTensor | tf.SparseTensor) else "dense tensor"


def _dense_bags(ids: tf.Tensor) -> FixedHotness | tf.Tensor:
    """The bags of ids [..., k], one after the other."""
    if ids.shape[-1]:
        return FixedHotness((ids.shape[-1],))
    shape = tf.shape(ids, out_type=tf.int64)
    return tf.range(tf.reduce_prod(shape[:-1]) + 1) * shape[-1]


def _same_rows(ids: tf.Tensor, weights: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns `values` once it is sure that the two tensors, which say where values belong, are equal."""
    check = tf.debugging.assert_equal(
        tf.cast(ids, tf.int64), tf.cast(weights, tf.int64), "ids and weights lie in different places: expected the same"
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(values)


def _without_padding(
    ids: tf.Tensor, offsets: tf.Tensor, weights: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
    """Leaves out ids that are 0."""
    is_id = tf.not_equal(ids, 0)
    ids_before = tf.concat([[0], tf.cumsum(tf.cast(is_id, tf.int64))], axis=0)
    weights = None if weights is None else tf.boolean_mask(weights, is_id)
    return tf.boolean_mask(ids, is_id), tf.gather(ids_before, offsets), weights


def _reshape(rows: tf.Tensor, shape: tf.Tensor, known_shape: tf.TensorShape) -> tf.Tensor:
    """Gives rows [N, D] the shape `shape` + [D]."""
    dim = rows.shape[-1]
    rows = tf.reshape(rows, tf.concat([shape, [dim]], axis=0))
    rows.set_shape(known_shape.concatenate(dim))
    return rows
