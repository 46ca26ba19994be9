"""Embedding tables spread over the ranks, behind a Keras layer.

How a lookup travels, for the tables that lie whole on one rank (table-wise):

    each rank     sends every owner one message: its batch size, the lengths and the ids of the owner's inputs
    each owner    pools the rows for the global batch at once, and sends every rank the part of its samples
    each rank     puts the columns into the order of its inputs

Two exchanges forward and one backward, whatever the number of tables: an exchange costs milliseconds on Gloo, a copy
microseconds. Data-parallel tables are looked up where they are. On one rank nothing is exchanged.

Shapes: F inputs, B samples on this rank, G samples on all ranks, N ids, E summed widths of the inputs, R ranks.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.kernels import tf_ops
from rankhouse.training.embedding_specs import EmbeddingSpec, Input, resolve_inputs, spec_of
from rankhouse.training.errors import EmbeddingError
from rankhouse.training.initializers import table_key, uniform_row_blocks
from rankhouse.training.owned_variables import mark_owned
from rankhouse.training.plan import Plan, ShardSpec, TableSpec, check_plan, make_plan
from rankhouse.training.ranks import Ranks
from rankhouse.training.shared_gradients import sum_gradients
from rankhouse.training.variable_rows import write_rows


@dataclass(frozen=True)
class TableShard:
    """A rectangle of one table that this rank holds: rows [row_start, row_stop), columns [column_start, column_stop).

    Attributes:
        table: The table's name.
        variable: float32 [rows, columns] of the rectangle.
        replicated: Whether every rank holds the same (data-parallel).
        row_start: Its first row in the table.
        row_stop: One behind its last row.
        column_start: Its first column in the table.
        column_stop: One behind its last column.
    """

    table: str
    variable: tf.Variable
    replicated: bool
    row_start: int
    row_stop: int
    column_start: int
    column_stop: int


class DistributedEmbedding(tf_keras.layers.Layer):  # type: ignore[misc]
    """A list of Keras embedding layers, spread over the ranks.

    The loss convention: each rank's loss is the sum over its own samples divided by the GLOBAL batch size, and
    gradients are summed over the ranks, nowhere divided. So batches may be uneven, or empty on some rank. Every rank
    calls the layer (and takes the gradient) the same number of times. One rank and N ranks train the same tables, to
    float rounding.

    Example:
        embedding = DistributedEmbedding([EmbeddingSpec(1000, 16, "item"), EmbeddingSpec(50, 16, "shop")], ranks=ranks)
        ...
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(embedding.sum_gradients(gradients, variables), variables))

    Attributes:
        inputs: The inputs, in the order of the outputs.
        plan: Who holds which table.
        shards: What this rank holds.
        output_dim: E, the summed widths of all inputs.
        before_lookup: Called with a table of this rank and the ids [n] that are about to be looked up in it, where it
            is set: by an optimizer whose rows lag behind.
    """

    def __init__(
        self,
        embeddings: Sequence[Any],
        *,
        inputs: Sequence[Any] | None = None,
        input_table_map: Sequence[int] | None = None,
        ranks: Ranks | None = None,
        plan: Plan | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        """Makes the tables that this rank holds, with their initial values.

        Args:
            embeddings: tf_keras Embedding layers, EmbeddingSpecs or mappings with a spec's keys: the tables.
            inputs: `Input`s; by default one for each table, in turn.
            input_table_map: Instead of `inputs`, the position of each input's table in `embeddings`.
            ranks: The ranks that train together; by default this process alone.
            plan: Who holds which table; by default `make_plan`'s.
            seed: Selects the initial values.
            kwargs: Those of a Keras layer.

        Raises:
            EmbeddingError: Tables, inputs and plan contradict each other.
            PlanError: The tables cannot be placed.
        """
        super().__init__(**kwargs)
        self.specs = tuple(spec_of(embedding) for embedding in embeddings)
        self.inputs = resolve_inputs(self.specs, inputs, input_table_map)
        self.ranks = ranks or Ranks(0, 1)
        self.plan = plan or make_plan(_table_specs(self.specs, self.inputs), num_ranks=self.ranks.size)
        self.seed = seed
        _check_plan(self.plan, self.specs, self.ranks)
        self._dims = {spec.name: spec.output_dim for spec in self.specs}
        self._widths = [self._dims[item.table] for item in self.inputs]
        self.output_dim = sum(self._widths)
        self._groups = _group_inputs(self.inputs, self.plan)
        self.shards = tuple(
            self._make_shard(spec, shard)
            for spec in self.specs
            for name, shard in self.plan.shards_of(self.ranks.rank)
            if name == spec.name
        )
        self._variables = {shard.table: shard.variable for shard in self.shards}
        self._nothing_owned = self._make_nothing_owned()
        for variable in self.owned_variables:
            mark_owned(variable)
        self.before_lookup: Callable[[tf.Variable, tf.Tensor], Any] | None = None

    @property
    def owned_variables(self) -> list[tf.Variable]:
        """The variables that only this rank holds; their gradients arrive summed over all ranks."""
        owned = [shard.variable for shard in self.shards if not shard.replicated]
        return owned if self._nothing_owned is None else [*owned, self._nothing_owned]

    def lookup(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Looks up and pools a packed batch.

        Args:
            ids: int64 [N], feature-major: all ids of input 0, sample by sample, then those of input 1, and so on.
            lengths: int32 or int64 [F, B], ids per bag; 0 is an empty bag and pools to zeros.

        Returns:
            float32 [B, E], the pooled rows of all inputs side by side.

        Raises:
            tf.errors.InvalidArgumentError: An id is not a row of its table. With several ranks the owner of the table
                finds it, and the message counts the owner's own inputs and tables, and the samples of all ranks.
        """
        everyone = range(len(self.inputs))
        if self.ranks.size == 1 or not any(self._groups[:-1]):
            return self._pool(everyone, ids, tf.cast(lengths, tf.int64))
        order = [number for group in self._groups for number in group]
        ids, lengths = _reorder_inputs(ids, tf.cast(lengths, tf.int64), order)
        columns = self._exchange(ids, lengths)
        at = dict(zip(order, columns, strict=True))
        return tf.concat([at[number] for number in everyone], axis=1)

    def call(self, inputs: Sequence[Any]) -> list[tf.Tensor]:
        """Looks up and pools one tensor for each input.

        Args:
            inputs: One tensor of integers for each input: [B], [B, k], or a RaggedTensor [B, None].

        Returns:
            One float32 [B, dim] for each input.

        Raises:
            EmbeddingError: The number of tensors, a shape or a dtype is wrong.
        """
        if not isinstance(inputs, list | tuple) or len(inputs) != len(self.inputs):
            count = len(inputs) if isinstance(inputs, list | tuple) else "one value that is not a list"
            raise EmbeddingError(f"{self.name!r} was given {count} of inputs; expected a list of {len(self.inputs)}")
        packed = [_pack(tensor, item.name) for tensor, item in zip(inputs, self.inputs, strict=True)]
        ids = tf.concat([ids for ids, _ in packed], axis=0)
        pooled = self.lookup(ids, tf.stack([lengths for _, lengths in packed]))
        outputs: list[tf.Tensor] = tf.split(pooled, self._widths, axis=1)
        return outputs

    def sum_gradients(self, gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
        """Sums gradients over the ranks, in one exchange, leaving those of owned tables as they are.

        Args:
            gradients: One for each variable: a dense tensor, IndexedSlices, or None.
            variables: Variables of this layer and any others, such as the dense layers'.

        Returns:
            The gradients to apply. On more than one rank those of data-parallel tables travel as dense tensors (the
            tables are small, and a dense sum has a fixed order and no negotiation of sizes), with a count of how often
            each row was touched; so that they come back as IndexedSlices of the rows that any rank touched.
        """
        owned = self.owned_variables
        return sum_gradients(gradients, variables, owned=owned, ranks=self.ranks, name=f"{self.name}_gradients")

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer, apart from the ranks and the plan, which belong to the run."""
        embeddings = [
            {**asdict(spec), "embeddings_initializer": tf_keras.initializers.serialize(spec.embeddings_initializer)}
            for spec in self.specs
        ]
        inputs = [asdict(item) for item in self.inputs]
        return {**super().get_config(), "embeddings": embeddings, "inputs": inputs, "seed": self.seed}

    def _make_shard(self, spec: EmbeddingSpec, shard: ShardSpec) -> TableShard:
        return TableShard(
            spec.name,
            self._make_table(spec),
            self.plan.placement(spec.name).mode == "data_parallel",
            shard.row_start,
            shard.row_stop,
            shard.column_start,
            shard.column_stop,
        )

    def _make_table(self, spec: EmbeddingSpec) -> tf.Variable:
        table = self.add_weight(
            spec.name, shape=(spec.input_dim, spec.output_dim), initializer="zeros", dtype=tf.float32
        )
        bound = _keyed_bound(spec)
        if bound is None:
            initial = spec.embeddings_initializer(table.shape, dtype=tf.float32)
            if self.plan.placement(spec.name).mode == "data_parallel":
                initial = self.ranks.broadcast(initial, name=f"{self.name}_{spec.name}_initial")
            table.assign(initial)
            return table
        key = table_key(self.seed, spec.name)
        for start, rows in uniform_row_blocks(key, bound=bound, num_rows=spec.input_dim, dim=spec.output_dim):
            write_rows(table, start, rows)
        return table

    def _make_nothing_owned(self) -> tf.Variable | None:
        """Gives a rank without a table of its own an empty variable, through which it joins the backward exchange.

        TensorFlow computes gradients only on the way to a variable, and the owners wait for those of every rank.
        """
        if not any(self._groups[:-1]) or any(not shard.replicated for shard in self.shards):
            return None
        return self.add_weight("nothing_owned", shape=(0,), initializer="zeros", dtype=tf.float32)

    def _exchange(self, ids: tf.Tensor, lengths_FB: tf.Tensor) -> list[tf.Tensor]:
        """Returns [B, dim] for each input in the order of the groups, in which the arguments are."""
        num_ranks, batch = self.ranks.size, tf.shape(lengths_FB, out_type=tf.int64)[1]
        counts = tf.stack([tf.reduce_sum(part) for part in tf.split(lengths_FB, _sizes(self._groups))])
        ids_of = tf.split(ids, counts)
        lengths_of = tf.split(lengths_FB, _sizes(self._groups))
        message, splits = _write_messages(batch, ids_of[:num_ranks], lengths_of[:num_ranks])
        received, received_splits = self.ranks.alltoall(message, splits, name=f"{self.name}_ids")
        own = self._groups[self.ranks.rank]
        batches_R, owner_ids, owner_lengths_FG = _read_messages(received, received_splits, num_ranks, len(own))
        if own:
            pooled = tf.reshape(self._pool(own, owner_ids, owner_lengths_FG), [-1])
        else:
            pooled = tf.convert_to_tensor(self._nothing_owned)
        # Without a table this is 0, but written so that TensorFlow cannot know: it would prune the exchange of the ids,
        # whose result nothing else needs here, and the other ranks would wait for it for ever. A control dependency
        # does not help.
        row = sum(self._widths[number] for number in own)
        splits = batches_R * row if own else tf.minimum(batches_R, 0)
        returned, _ = self.ranks.alltoall(pooled, tf.cast(splits, tf.int32), name=f"{self.name}_rows")
        rows_of = [sum(self._widths[number] for number in group) for group in self._groups[:num_ranks]]
        flat_of = tf.split(returned, [batch * row for row in rows_of])
        blocks = [tf.reshape(flat, [batch, row]) for flat, row in zip(flat_of, rows_of, strict=True)]
        if self._groups[-1]:
            blocks.append(self._pool(self._groups[-1], ids_of[-1], lengths_of[-1]))
        return [
            column for block, group in zip(blocks, self._groups, strict=False) for column in self._columns(block, group)
        ]

    def _columns(self, block: tf.Tensor, group: Sequence[int]) -> list[tf.Tensor]:
        return tf.split(block, [self._widths[number] for number in group], axis=1) if group else []

    def _pool(self, numbers: Sequence[int], ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Looks up the given inputs in the tables of this rank: ids [n], lengths int64 [f, b] -> [b, summed widths]."""
        names = list(dict.fromkeys(self.inputs[number].table for number in numbers))
        if self.before_lookup is not None:
            parts = tf.split(ids, tf.reduce_sum(lengths, axis=1), num=len(numbers))
            for name in names:
                own = [part for part, number in zip(parts, numbers, strict=True) if self.inputs[number].table == name]
                self.before_lookup(self._variables[name], tf.concat(own, axis=0))
        offsets = tf.concat([[0], tf.cumsum(tf.reshape(lengths, [-1]))], axis=0)
        return tf_ops.pooled_lookup(
            [self._variables[name] for name in names],
            ids,
            offsets,
            feature_tables=[names.index(self.inputs[number].table) for number in numbers],
            combiners=[self.inputs[number].combiner for number in numbers],
        )


def _group_inputs(inputs: Sequence[Input], plan: Plan) -> list[list[int]]:
    """Groups input positions by owner, ranks first; the last group is that of the data-parallel tables."""
    groups: list[list[int]] = [[] for _ in range(plan.num_ranks + 1)]
    for number, item in enumerate(inputs):
        placement = plan.placement(item.table)
        groups[-1 if placement.mode == "data_parallel" else placement.shards[0].rank].append(number)
    return groups


def _reorder_inputs(ids: tf.Tensor, lengths_FB: tf.Tensor, order: Sequence[int]) -> tuple[tf.Tensor, tf.Tensor]:
    if list(order) == list(range(len(order))):
        return ids, lengths_FB
    blocks = tf.RaggedTensor.from_row_lengths(ids, tf.reduce_sum(lengths_FB, axis=1), validate=False)
    return tf.gather(blocks, order).values, tf.gather(lengths_FB, order)


def _write_messages(
    batch: tf.Tensor, ids_of: Sequence[tf.Tensor], lengths_of: Sequence[tf.Tensor]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Puts one message for each owner into a row: the batch size, the lengths, the ids; and their sizes, int32 [R].

    Lengths travel as 64 bits although 32 would do: a second exchange for them would cost more than the bytes.
    """
    parts, sizes = [], []
    for ids, lengths in zip(ids_of, lengths_of, strict=True):
        flat = tf.reshape(lengths, [-1])
        parts += [batch[tf.newaxis], flat, ids]
        sizes.append(1 + tf.size(flat) + tf.size(ids))
    return tf.concat(parts, axis=0), tf.stack(sizes)


def _read_messages(
    received: tf.Tensor, splits: tf.Tensor, num_ranks: int, num_inputs: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Puts the messages of all ranks together: batch sizes [R], and ids [n] and lengths [F, G] of the global batch."""
    batches, lengths, ids = [], [], []
    for message in tf.split(received, splits, num=num_ranks):
        begin_ids = 1 + num_inputs * message[0]
        batches.append(message[0])
        lengths.append(tf.reshape(message[1:begin_ids], [num_inputs, message[0]]))
        ids.append(message[begin_ids:])
    # The ids lie rank by rank and input by input; the lookup wants them input by input and rank by rank.
    counts = tf.concat([tf.reduce_sum(part, axis=1) for part in lengths], axis=0)
    blocks = tf.RaggedTensor.from_row_lengths(tf.concat(ids, axis=0), counts, validate=False)
    turned = [rank * num_inputs + number for number in range(num_inputs) for rank in range(num_ranks)]
    ordered = tf.gather(blocks, tf.constant(turned, tf.int64)).values
    return tf.stack(batches), ordered, tf.concat(lengths, axis=1)


def _pack(tensor: Any, name: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids [n] and lengths [B] of one input."""
    if not tensor.dtype.is_integer:
        raise EmbeddingError(f"input {name!r} has dtype {tensor.dtype.name}; expected integer ids")
    if isinstance(tensor, tf.RaggedTensor):
        if tensor.shape.rank != 2 or tensor.ragged_rank != 1:
            raise EmbeddingError(f"input {name!r} is ragged of shape {tensor.shape}; expected [B, None]")
        return tf.cast(tensor.values, tf.int64), tf.cast(tensor.row_lengths(), tf.int64)
    if tensor.shape.rank not in (1, 2):
        raise EmbeddingError(f"input {name!r} has shape {tensor.shape}; expected [B] or [B, k]")
    shape = tf.shape(tensor, out_type=tf.int64)
    hotness = shape[1] if tensor.shape.rank == 2 else tf.constant(1, tf.int64)
    return tf.reshape(tf.cast(tensor, tf.int64), [-1]), tf.fill([shape[0]], hotness)


def _table_specs(specs: Sequence[EmbeddingSpec], inputs: Sequence[Input]) -> list[TableSpec]:
    lookups = [item.table for item in inputs]
    return [TableSpec(spec.name, spec.input_dim, spec.output_dim, float(lookups.count(spec.name))) for spec in specs]


def _check_plan(plan: Plan, specs: Sequence[EmbeddingSpec], ranks: Ranks) -> None:
    if plan.num_ranks != ranks.size:
        raise EmbeddingError(
            f"the plan is for {plan.num_ranks} ranks, but {ranks.size} train; make it for {ranks.size}"
        )
    check_plan(plan)
    for placement in plan.placements:
        if placement.mode not in ("data_parallel", "table_wise") or placement.exchange != "pooled":
            raise EmbeddingError(f"table {placement.table!r} is {placement.mode}, which this layer cannot look up yet")
    planned = {table.name: (table.num_rows, table.dim) for table in plan.tables}
    for spec in specs:
        if planned.get(spec.name) != (spec.input_dim, spec.output_dim):
            raise EmbeddingError(
                f"table {spec.name!r} has {spec.input_dim} rows of width {spec.output_dim}, but the plan has "
                f"{planned.get(spec.name, 'no such table')}; make the plan of the same tables"
            )


def _keyed_bound(spec: EmbeddingSpec) -> float | None:
    """Returns the bound of a table whose values are drawn by position; None where a Keras initializer makes them.

    Keras' unseeded uniform initializer, an Embedding layer's default, gets its own bound but our values: Keras' depend
    on the order in which variables are made, and so on the number of ranks.
    """
    initializer = spec.embeddings_initializer
    if initializer is None:
        return 1 / math.sqrt(spec.input_dim)
    uniform = isinstance(initializer, tf_keras.initializers.RandomUniform)
    if uniform and initializer.seed is None and initializer.minval == -initializer.maxval:
        return float(initializer.maxval)
    return None


def _sizes(groups: Sequence[Sequence[int]]) -> list[int]:
    return [len(group) for group in groups]
