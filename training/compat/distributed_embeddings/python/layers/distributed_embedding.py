"""`DistributedEmbedding`: a list of embedding layers, spread over the ranks by a `DistEmbeddingStrategy`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tf_keras

from rankhouse.kernels import layers
from rankhouse.training import distributed_embedding
from rankhouse.training.compat.distributed_embeddings.python.layers.global_batch import local_batch
from rankhouse.training.compat.distributed_embeddings.python.layers.strategy import DistEmbeddingStrategy
from rankhouse.training.compat.distributed_embeddings.python.layers.world import world
from rankhouse.training.errors import CompatError, EmbeddingError
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.tables.row_dtypes import row_dtype_of
from rankhouse.training.tables.specs import EmbeddingSpec, whole_table_setting


@tf_keras.saving.register_keras_serializable("distributed_embeddings")
class DistributedEmbedding(tf_keras.layers.Layer):  # type: ignore[misc]
    """A list of embedding layers, spread over the ranks.

    Called with a list of one tensor of ids for each input, it returns a list of what the layers would return: an input
    without a combiner has the shape of its ids and then the width, as with Keras, on any number of ranks. Ids may be
    dense [B] or [B, k], ragged or sparse; batches may be of different sizes on the ranks, or empty.

    The layers give their sizes, combiners and initializers; they are not built. Initial values depend on `seed`, the
    name, the row and the column alone.

    Attributes:
        strategy: The `DistEmbeddingStrategy`.
        world_size: The number of ranks.
        rank: This one.
        tables: What does the work, once built: `rankhouse.training.distributed_embedding.DistributedEmbedding`.
    """

    def __init__(
        self,
        embeddings: Sequence[Any],
        strategy: str = "basic",
        column_slice_threshold: int | None = None,
        row_slice_threshold: int | None = None,
        dp_input: bool = True,
        input_table_map: Sequence[int] | None = None,
        data_parallel_threshold: int | None = None,
        gpu_embedding_size: int | None = None,
        *,
        seed: int = 0,
        wire: WireFormat | None = None,
        **kwargs: Any,
    ) -> None:
        """Deals the tables out; they are made by the first call.

        Args:
            embeddings: `tf_keras.layers.Embedding`, or `Embedding` of this library.
            strategy: "basic", "memory_balanced" or "memory_optimized"; see `DistEmbeddingStrategy`, as for thresholds.
            column_slice_threshold: Tables of more elements are cut by columns.
            row_slice_threshold: Tables of as many elements or more are cut by rows.
            dp_input: Whether inputs come by sample, [local batch] of all inputs. Otherwise they come by table: [global
                batch] of the inputs in `strategy.input_ids_list[rank]`, in that order, and no table is data-parallel or
                cut by rows. The outputs are by sample either way.
            input_table_map: The table of each input; by default one for each table, in turn.
            data_parallel_threshold: Tables of as many elements or fewer lie on every rank.
            gpu_embedding_size: How many elements of a rank's tables shall lie on its GPU. Tables lie in main memory
                here, so those beyond it are what all are: offloaded.
            seed: Selects the initial values.
            wire: How rows and their gradients travel between ranks; by default in the layer's compute dtype.
            kwargs: Those of a Keras layer.

        Raises:
            CompatError: The strategy is unknown, a layer is none that can be spread, or with dp_input=False there are
                fewer slices than ranks (also a ValueError).
        """
        super().__init__(**{**kwargs, "autocast": False})
        self.world_size, self.rank = world().size, world().rank
        self.dp_input = dp_input
        self.seed = seed
        self.wire = wire or _wire_of(self.compute_dtype)
        self._specs = _specs_of(embeddings, pooled=not dp_input)
        self._mask_zero = [bool(embedding.mask_zero) for embedding in embeddings]
        options: dict[str, Any] = {
            "strategy": strategy,
            "input_table_map": input_table_map,
            "column_slice_threshold": column_slice_threshold,
            "row_slice_threshold": row_slice_threshold,
            "data_parallel_threshold": data_parallel_threshold,
            "gpu_embedding_size": gpu_embedding_size,
        }
        layers_of_tables = [tf_keras.layers.serialize(embedding) for embedding in embeddings]
        self._made_with = {"embeddings": layers_of_tables, "dp_input": dp_input, "seed": seed, **options}
        if not dp_input or self.world_size == 1:
            options |= {"row_slice_threshold": None, "data_parallel_threshold": None}
        self.strategy = DistEmbeddingStrategy(embeddings, self.world_size, **options)
        for threshold in ("column_slice_threshold", "row_slice_threshold", "data_parallel_threshold"):
            setattr(self, threshold, getattr(self.strategy, threshold))
        self.gpu_embedding_size = gpu_embedding_size
        if not dp_input:
            self._check_every_rank_is_asked()

    def build(self, input_shape: Any = None) -> None:
        """Makes the tables that this rank holds; collective."""
        plan = self.strategy.make_plan([spec.name for spec in self._specs])
        table_map = self.strategy.input_table_map
        self.tables = distributed_embedding.DistributedEmbedding(
            self._specs,
            input_table_map=table_map,
            ranks=world(),
            plan=plan,
            seed=self.seed,
            wire=self.wire,
            name=self.name,
        )
        for variable in self.tables.owned_variables:
            variable.de_local = True
        self.built = True

    def call(self, inputs: Sequence[Any], weights: Sequence[Any] | None = None) -> list[Any]:
        """Looks ids up.

        Args:
            inputs: One tensor of integers for each input; floating-point ones are cast.
            weights: None, or for each input a factor for each id, in the form of the ids, or None; by sample only.

        Returns:
            One tensor for each input, of this rank's samples, in the layer's compute dtype.

        Raises:
            CompatError: With dp_input=False, the global batch is not divisible by the number of ranks.
            EmbeddingError: The number of tensors, a shape or a dtype is wrong.
            tf.errors.InvalidArgumentError: An id is not a row of its table.
        """
        outputs: list[Any] = self._look_up(inputs, weights)
        return outputs

    # Nothing here branches on tensors by Python's `if`; to look for it would take seconds in each graph.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _look_up(self, inputs: Sequence[Any], weights: Sequence[Any] | None) -> list[Any]:
        given = self._given_inputs
        if not isinstance(inputs, list | tuple) or len(inputs) != len(given):
            found = f"{len(inputs)} inputs" if isinstance(inputs, list | tuple) else f"a {type(inputs).__name__}"
            raise CompatError(
                f"{self.name!r} was given {found}: expected a list of {len(given)}, the inputs {given} on this rank"
            )
        ids = [self._prepare(*item) for item in zip(given, inputs, strict=True)]
        if self.dp_input:
            outputs = self.tables(ids, weights)
        else:
            if weights is not None:
                raise CompatError(f"{self.name!r} was given weights, which inputs by table do not have")
            self._check_pooled(ids)
            flat, lengths = local_batch(
                ids, self.strategy.input_ids_list, ranks=world(), name=f"{self.name}_global_batch"
            )
            widths = [self._specs[table].output_dim for table in self.strategy.input_table_map]
            outputs = tf.split(self.tables.lookup(flat, lengths), widths, axis=1)
        return [tf.cast(output, self.compute_dtype) for output in outputs]

    def set_weights(self, weights: Sequence[Any], chunk: int = 134217728, use_lock: bool = False) -> None:
        """Gives the tables values; every rank, after the layer was built.

        Args:
            weights: For each embedding layer the whole table, [rows, width]: an array, or the path of a `.npy` file,
                of which each rank reads what it holds.
            chunk: Most elements that are copied at once.
            use_lock: Whether one rank after the other does it.

        Raises:
            CompatError: The layer is not built, or these are not its tables (also a ValueError).
        """
        self._check_built("set_weights")
        failure: EmbeddingError | None = None
        for turn in range(self.world_size):
            if turn == self.rank:
                try:
                    self.tables.set_weights(weights, block_bytes=4 * chunk)
                except EmbeddingError as exc:
                    failure = exc  # Raised when all had their turns: the others wait for this rank.
            if use_lock:
                world().barrier(name=f"{self.name}_set_weights")
        if failure is not None:
            raise CompatError(f"set_weights of {self.name!r}: {failure}") from failure

    def get_weights(self, all_ranks: bool = False) -> list[npt.NDArray[np.float32]]:
        """Returns the whole tables in the order of the embedding layers; collective, after the layer was built.

        Args:
            all_ranks: Whether all ranks get them; otherwise rank 0 does, and the others get an empty list.

        Raises:
            CompatError: The layer is not built (also a ValueError).
        """
        self._check_built("get_weights")
        weights: list[npt.NDArray[np.float32]] = self.tables.get_weights(all_ranks=all_ranks)
        return weights

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer."""
        return {**super().get_config(), **self._made_with}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "DistributedEmbedding":
        """Makes the layer that `get_config` describes."""
        embeddings = [tf_keras.layers.deserialize(embedding) for embedding in config["embeddings"]]
        return cls(**{**config, "embeddings": embeddings})

    def compute_mask(self, inputs: Sequence[Any], mask: Any = None) -> list[Any] | None:
        """Says for each input which ids are no padding, where its layer has `mask_zero` and does not pool."""
        tables = [self.strategy.input_table_map[number] for number in self._given_inputs]
        masked = [self._mask_zero[table] and self._specs[table].combiner is None for table in tables]
        if not self.dp_input or not any(masked):
            return None
        return [tf.not_equal(ids, 0) if is_masked else None for ids, is_masked in zip(inputs, masked, strict=True)]

    @property
    def _given_inputs(self) -> list[int]:
        """The inputs that the layer is called with on this rank."""
        if self.dp_input:
            return list(range(len(self.strategy.input_table_map)))
        return self.strategy.input_ids_list[self.rank]

    def _prepare(self, number: int, tensor: Any) -> Any:
        """Returns ids as integers, those that pool without their padding."""
        ids = _integers(tensor)
        table = self.strategy.input_table_map[number]
        pools = self.strategy.global_configs[table].get("combiner") is not None
        return _without_padding(ids) if pools and self._mask_zero[table] else ids

    def _check_built(self, method: str) -> None:
        if not self.built:
            raise CompatError(f"{method} of {self.name!r} before it has tables: call the layer or its build() first")

    def _check_every_rank_is_asked(self) -> None:
        if not all(self.strategy.input_ids_list):
            raise CompatError(
                f"with dp_input=False every rank must hold a table, but of {self.world_size} ranks "
                f"{self.strategy.input_ids_list.index([])} holds none: lower column_slice_threshold, use fewer ranks, "
                "or dp_input=True"
            )

    def _check_pooled(self, ids: Sequence[Any]) -> None:
        """Without a combiner there is one id for each sample, as lengths travel here and shapes do not."""
        for number, tensor in zip(self._given_inputs, ids, strict=True):
            config = self.strategy.global_configs[self.strategy.input_table_map[number]]
            single = isinstance(tensor, tf.Tensor) and (tensor.shape.rank == 1 or tensor.shape[-1] == 1)
            if config.get("combiner") is None and not single:
                raise CompatError(
                    f"input {number} has several ids for each sample, and its table no combiner: expected [batch] or "
                    "[batch, 1] with dp_input=False; give the table a combiner, or use dp_input=True"
                )


def _specs_of(embeddings: Sequence[Any], *, pooled: bool) -> list[EmbeddingSpec]:
    """Returns the layers as tables with names of their own; `pooled`: one id of each sample, where none pools."""
    for embedding in embeddings:
        if not isinstance(embedding, tf_keras.layers.Embedding | layers.Embedding):
            if type(embedding).__module__.startswith("keras."):
                raise CompatError(
                    f"{embedding!r} is a layer of Keras 3, which Horovod does not support: start Python with "
                    "TF_USE_LEGACY_KERAS=1, so that tf.keras is tf_keras"
                )
            raise CompatError(
                f"cannot spread {embedding!r} over ranks: expected tf_keras.layers.Embedding or Embedding of this "
                "library, as the lookup of another layer is its own code"
            )
        if setting := whole_table_setting(embedding):
            raise CompatError(
                f"layer {embedding.name!r} has {setting}, which a table that lies on several ranks does not have; "
                "leave it out, or keep the layer outside of DistributedEmbedding"
            )
    counts = Counter(embedding.name for embedding in embeddings)
    specs = []
    for number, embedding in enumerate(embeddings):
        name = embedding.name if counts[embedding.name] == 1 else f"{embedding.name}_{number}"
        combiner = getattr(embedding, "combiner", None) or ("sum" if pooled else None)
        initializer = embedding.embeddings_initializer
        shape, dtype = (embedding.input_dim, embedding.output_dim), row_dtype_of(embedding)
        specs.append(EmbeddingSpec(*shape, name, combiner, initializer, dtype=dtype))
    return specs


def _wire_of(compute_dtype: str) -> WireFormat:
    if compute_dtype == "float16":
        return WireFormat(forward="float16", backward="float16")
    return WireFormat(forward="bfloat16", backward="bfloat16") if compute_dtype == "bfloat16" else WireFormat()


def _integers(tensor: Any) -> Any:
    if not isinstance(tensor, tf.RaggedTensor | tf.SparseTensor):
        tensor = tf.convert_to_tensor(tensor)
    return tensor if tensor.dtype.is_integer else tf.cast(tensor, tf.int64)


def _without_padding(ids: Any) -> Any:
    if isinstance(ids, tf.SparseTensor):
        return tf.sparse.retain(ids, ids.values != 0)
    return tf.ragged.boolean_mask(ids, ids != 0)
