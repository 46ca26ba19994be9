"""Embedding tables spread over the ranks, behind a Keras layer.

What lies where is the plan's (`plan.py`), which way a lookup goes the layout's (`exchange/layout.py`), and how it
travels `exchange/`. Data-parallel tables are looked up where they are. On one rank nothing is exchanged.

Shapes: F inputs, B samples on this rank, N ids, E summed widths of the inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.training.errors import EmbeddingError
from rankhouse.training.exchange.batch import Batch
from rankhouse.training.exchange.exchange import Exchange
from rankhouse.training.exchange.held_tables import HeldTables
from rankhouse.training.exchange.input_tensors import PackedInput, join_inputs, pack_input
from rankhouse.training.exchange.layout import Layouts
from rankhouse.training.exchange.sent_ids import SentIds
from rankhouse.training.exchange.unique_rows import UniqueIds
from rankhouse.training.exchange.wire_format import WireFormat, table_formats
from rankhouse.training.optimizers.shared_gradients import sum_gradients
from rankhouse.training.plan import Plan, ShardSpec, TableSpec, make_plan
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.column_slices import ColumnSlices
from rankhouse.training.tables.host_rows import HostRowsStats
from rankhouse.training.tables.initial_values import InitialValues
from rankhouse.training.tables.keras_saves import refuse_saved, refuse_variables, refuse_whole_reads, save_widened
from rankhouse.training.tables.learnt_rows import LearntRows
from rankhouse.training.tables.owned_variables import mark_owned, mark_shared
from rankhouse.training.tables.specs import EmbeddingSpec, Input, resolve_inputs, spec_of
from rankhouse.training.tables.table_shards import TableShard, check_copies, check_tables, host_stats, variable_rows
from rankhouse.training.tables.table_weights import BLOCK_BYTES, TableWeights
from rankhouse.training.tables.variable_rows import write_rows


class DistributedEmbedding(tf_keras.layers.Layer):  # type: ignore[misc]
    """A list of Keras embedding layers, spread over the ranks.

    The loss convention: each rank's loss is the sum over its own samples divided by the GLOBAL batch size, and
    gradients are summed over the ranks, nowhere divided. So batches may be uneven, or empty on some rank. Every rank
    calls the layer (and takes the gradient) the same number of times, with inputs of the same kinds. One rank and N
    ranks train the same tables, to float rounding; `exchange/exchange.py` says where sums have another order.

    Keras' `save_weights`, `ModelCheckpoint` and `save` see what this rank holds, and no other: on several ranks each
    would need a file of its own, which loads on as many ranks under the same plan. `get_weights`, `set_weights` and
    checkpoints have whole tables, for any.

    An id that is no row is found where it is looked up, and raised there alone: the launcher then ends all ranks. Where
    a process outlives its error, as in a notebook, the others wait in the exchange until it ends.

    Example:
        embedding = DistributedEmbedding([EmbeddingSpec(1000, 16, "item"), EmbeddingSpec(50, 16, "shop")], ranks=ranks)
        ...
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(embedding.sum_gradients(gradients, variables), variables))

    The ids of the next batch may travel while this one is computed, here in a loop of one's own:

        @tf.function(autograph=False)
        def step(sent, labels, ids, lengths):
            next_sent = embedding.send_ids(ids, lengths)
            with tf.GradientTape() as tape:
                loss = loss_of(embedding.lookup_sent(sent, training=True), labels)
            ...
            return next_sent

        sent = embedding.send_ids(*first_ids)
        for labels, next_ids in batches:
            sent = step(sent, labels, *next_ids)

    Attributes:
        inputs: The inputs, in the order of the outputs.
        plan: Who holds which table.
        wires: How the rows of each table travel, by its name.
        shards: What this rank holds.
        output_dim: E, the summed widths of all inputs.
        num_lookups: int64 [], how often tables were looked up in training, the same on all ranks; None where no table
            learns its keys.
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
        wire: WireFormat | Mapping[str, WireFormat] | None = None,
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
            wire: How rows and their gradients travel between ranks, for all tables or by a table's name; where it says
                nothing, as the plan says, or else as float32.
            kwargs: Those of a Keras layer.

        Raises:
            EmbeddingError: Tables, inputs and plan contradict each other.
            PlanError: The tables cannot be placed.
            HostRowsError: The folder of a table on the host cannot hold it.
            WireError: `wire` names an unknown table, or formats that differ in more than their dtypes.
        """
        super().__init__(**kwargs)
        self.specs = tuple(spec_of(embedding) for embedding in embeddings)
        self.inputs = resolve_inputs(self.specs, inputs, input_table_map)
        self.ranks = ranks or Ranks(0, 1)
        self.plan = plan or make_plan(_table_specs(self.specs, self.inputs), num_ranks=self.ranks.size)
        self.seed = seed
        check_tables(self.plan, self.specs, num_ranks=self.ranks.size)
        dims = {spec.name: spec.output_dim for spec in self.specs}
        self._widths = [dims[item.table] for item in self.inputs]
        self.output_dim = sum(self._widths)
        wires = table_formats(wire, [spec.name for spec in self.specs], planned=self.plan.wires)
        self.wires = wires
        by_key = [spec.name for spec in self.specs if spec.vocabulary is not None]
        self._layouts = Layouts(self.inputs, self.plan, wires, rank=self.ranks.rank, by_key=by_key)
        self.num_lookups = self._make_num_lookups() if by_key else None
        self.shards = tuple(shard for spec in self.specs for shard in self._make_shards(spec))
        own = {(spec.name, shard): table for spec in self.specs for shard, table in self._own(spec).items()}
        maps = {(shard.table, shard.rectangle(self.ranks.rank)): shard.row_map for shard in self.shards}
        # As a list, in which Keras finds what checkpoints of TensorFlow keep.
        self._vocabularies = [shard.learnt.vocabulary for shard in self.shards if shard.learnt]
        self._held = HeldTables(self.inputs, own, row_maps={key: each for key, each in maps.items() if each})
        self._nothing_owned = self._make_nothing_owned()
        cut = [each.table for each in self.plan.placements if each.mode in ("row_wise", "column_wise")]
        for variable in self.owned_variables:
            mark_owned(variable, cut_table=cut[0] if cut and self.ranks.size > 1 else None)
        for shard in self.shards:
            if shard.replicated:
                mark_shared(shard.variable)
        ColumnSlices(self.plan, self.shards, ranks=self.ranks, name=f"{self.name}_row_squares").mark(self.weights)
        exchanged = {name: each for name, each in wires.items() if self.plan.placement(name).mode != "data_parallel"}
        self._exchange = Exchange(
            self.ranks,
            self._held,
            self.inputs,
            wires=exchanged or wires,
            name=self.name,
            nothing_owned=self._nothing_owned,
        )

    @property
    def owned_variables(self) -> list[tf.Variable]:
        """The variables that only this rank holds; their gradients arrive summed over all ranks."""
        owned = [shard.variable for shard in self.shards if not shard.replicated]
        return owned if self._nothing_owned is None else [*owned, self._nothing_owned]

    @property
    def before_lookup(self) -> Callable[[tf.Variable, tf.Tensor], Any] | None:
        """Called with a variable of this rank and the ids [n] of its rows that are about to be looked up.

        Set by an optimizer whose rows lag behind; an error where copies of a table of 16 bits would come apart.
        """
        return self._held.before_lookup

    @before_lookup.setter
    def before_lookup(self, hook: Callable[[tf.Variable, tf.Tensor], Any] | None) -> None:
        if hook is not None:
            check_copies(self.plan)
        self._held.before_lookup = hook

    def lookup(
        self,
        ids: tf.Tensor,
        lengths: tf.Tensor,
        weights: tf.Tensor | None = None,
        *,
        training: bool | tf.Tensor = False,
    ) -> tf.Tensor:
        """Looks up and pools a packed batch.

        Args:
            ids: int64 [N], feature-major: all ids of input 0, sample by sample, then those of input 1, and so on.
            lengths: int32 or int64 [F, B], ids per bag; 0 is an empty bag and pools to zeros. An input without a
                combiner has one id in each.
            weights: float32 [N], a factor for each id, of which "mean" divides by the sum and "sqrtn" by the root of
                the sum of squares; None, on all ranks alike: all are 1. Their gradient is that of this rank's loss.
            training: Whether a step of training follows, for tables whose rows come and go (`tables/row_maps.py`).

        Returns:
            float32 [B, E], the pooled rows of all inputs side by side.

        Raises:
            tf.errors.InvalidArgumentError: An id is not a row of its table (with several ranks the one that looks it up
                finds it), or a bag without a combiner has not one id.
        """
        sent = self._send(self._packed(ids, lengths, weights), self._combiners, "ids")
        return self.lookup_sent(sent, training=training)

    def pack(
        self, inputs: Sequence[Any], weights: Sequence[Any] | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None]:
        """Puts one tensor for each input, as the layer is called with, together for `lookup` and `send_ids`.

        Args:
            inputs: As of `call`.
            weights: As of `call`.

        Returns:
            ids int64 [N], lengths int64 [F, B], and weights float32 [N], or None where no input has any.

        Raises:
            EmbeddingError: The number of tensors, a shape or a dtype is wrong.
        """
        batch = join_inputs(self._pack_inputs(inputs, weights))
        return batch.ids, batch.lengths, batch.weights

    def send_ids(self, ids: tf.Tensor, lengths: tf.Tensor, weights: tf.Tensor | None = None) -> SentIds:
        """Sends a packed batch's ids to the ranks that have their rows, and reads none of these; collective.

        So it may be done for the next batch while this one trains: in the same `tf.function` it needs nothing from
        the step, and the step nothing from it. Results are those of `lookup`, to the bit.

        Args:
            ids: As of `lookup`, like the others.
            lengths: Of its bags.
            weights: One for each id, or None.

        Returns:
            What `lookup_sent` takes, with `sent_spec` as its type.

        Raises:
            tf.errors.InvalidArgumentError: A bag without a combiner has not one id, or an id of a table whose rows
                travel is not a row of it.
        """
        return self._send(self._packed(ids, lengths, weights), self._combiners, "next_ids")

    def lookup_sent(self, sent: SentIds, *, training: bool | tf.Tensor = False) -> tf.Tensor:
        """Looks up and pools a batch whose ids were sent, with the tables as they are now; collective.

        Args:
            sent: What `send_ids` of this layer returned.
            training: As of `lookup`.

        Returns:
            float32 [B, E], as `lookup` does.

        Raises:
            EmbeddingError: Another layer, or one under another plan, sent it.
            tf.errors.InvalidArgumentError: An id is not a row of its table.
        """
        layout = self._layouts.of(self._combiners)
        if (bool(sent.requests), len(sent.unique)) != (layout.travels, len(layout.rows)):
            raise EmbeddingError(f"{self.name!r} cannot look up these ids: another layer sent them; use its `send_ids`")
        self._count(training)
        if len(layout.local) == len(self.inputs):
            return self._held.pool(layout.local, sent.batch, self._combiners, training=training)
        return tf.concat(self._look_up(sent, self._combiners, training), axis=1)

    def sent_spec(self, *, weighted: bool = False) -> SentIds:
        """Returns the types of what `send_ids` returns, for the signature of a `tf.function`.

        Args:
            weighted: Whether ids have weights.
        """
        return SentIds.spec(self._layouts.of(self._combiners), num_inputs=len(self.inputs), weighted=weighted)

    def call(
        self,
        inputs: Sequence[Any],
        weights: Sequence[Any] | None = None,
        training: bool | tf.Tensor | None = None,
    ) -> list[Any]:
        """Looks up and pools one tensor for each input.

        Args:
            inputs: One tensor of integers for each input: [B], [B, k], a RaggedTensor [B, None] or a SparseTensor
                [B, k] with its indices in order.
            weights: For each input floats of the same kind and shape, or None where all are 1; see `lookup`.
            training: As in `lookup`. Keras' `fit` sets it; None is False.

        Returns:
            For each input float32 [B, dim]. Where it has no combiner: [B, dim] of [B], [B, k, dim] of [B, k], and a
            RaggedTensor [B, None, dim] of ragged and sparse ones.

        Raises:
            EmbeddingError: The number of tensors, a shape or a dtype is wrong.
        """
        outputs: list[Any] = self._call(inputs, weights, False if training is None else training)
        return outputs

    # Keras has AutoGraph convert `call` and all that it calls: seconds of work, and there is nothing to convert.
    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def _call(self, inputs: Sequence[Any], weights: Sequence[Any] | None, training: bool | tf.Tensor) -> list[Any]:
        packed = self._pack_inputs(inputs, weights)
        self._count(training)
        combiners = [item.combiner for item in packed]
        rows = self._look_up(self._send(join_inputs(packed), combiners, "ids"), combiners, training)
        return [item.output(found) for item, found in zip(packed, rows, strict=True)]

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

    def get_weights(self, *, all_ranks: bool = True) -> list[Any]:
        """Returns whole tables, in the order of the specs, whoever holds them; collective.

        Of an optimizer whose rows lag behind, call `catch_up_all` first.

        Args:
            all_ranks: Whether every rank gets them; else rank 0 does, and the others get an empty list.

        Returns:
            float32 [rows, dim] for each table; `KeyedRows` of one that learns its keys.
        """
        wanted = all_ranks or self.ranks.rank == 0
        tables = [self._weights_of(spec).read(name=f"{self.name}_whole_table", wanted=wanted) for spec in self.specs]
        return tables if wanted else []

    def set_weights(self, weights: Sequence[Any], *, block_bytes: int = BLOCK_BYTES) -> None:
        """Overwrites the tables; every rank gives the same, and keeps the part that it holds.

        Args:
            weights: For each table, in the order of the specs, floats [rows, dim], or the path of a .npy file with
                them, of which only this rank's part is read; `KeyedRows` of a table that learns its keys, which then
                knows these alone, as if they were just learnt.
            block_bytes: Of how many bytes at once, or one row.

        Raises:
            EmbeddingError: There is another number of them, a file cannot be read, or a shape is wrong; nothing was
                changed on this rank.
        """
        if len(weights) != len(self.specs):
            raise EmbeddingError(f"there are {len(weights)} weights for {len(self.specs)} tables; give one for each")
        tables = [self._weights_of(spec) for spec in self.specs]
        opened = [table.open(values) for table, values in zip(tables, weights, strict=True)]
        for table, values in zip(tables, opened, strict=True):
            table.write(values, block_bytes=block_bytes)

    def host_stats(self) -> dict[str, HostRowsStats]:
        """Returns what was moved so far for each table that lies on the host, as far as this rank holds it."""
        return host_stats(self.shards)

    def save_own_variables(self, store: Any) -> None:
        """Has Keras save the layer's variables; `keras_saves.py` has what is refused."""
        refuse_variables(self.shards, self.name)
        save_widened(super().save_own_variables, store)

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> Any:
        """Has TensorFlow save, or load, the layer."""
        refuse_saved(self.shards, self.name, save_type=save_type)
        return super()._trackable_children(save_type, **options)

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer, apart from the ranks, the plan and the wire, which belong to the run."""
        embeddings = [
            {**asdict(spec), "embeddings_initializer": tf_keras.initializers.serialize(spec.embeddings_initializer)}
            for spec in self.specs
        ]
        inputs = [asdict(item) for item in self.inputs]
        return {**super().get_config(), "embeddings": embeddings, "inputs": inputs, "seed": self.seed}

    def _pack_inputs(self, inputs: Sequence[Any], weights: Sequence[Any] | None) -> list[PackedInput]:
        given = {"inputs": inputs, "weights": [None] * len(self.inputs) if weights is None else weights}
        for what, values in given.items():
            if not isinstance(values, list | tuple) or len(values) != len(self.inputs):
                count = len(values) if isinstance(values, list | tuple) else "one value that is not a list"
                raise EmbeddingError(
                    f"{self.name!r} was given {count} of {what}; expected a list of {len(self.inputs)}"
                )
        return [pack_input(*item) for item in zip(inputs, given["weights"], self.inputs, strict=True)]

    @property
    def _combiners(self) -> list[str]:
        """Those of a packed batch: one id for each sample needs none."""
        return [item.combiner or "sum" for item in self.inputs]

    def _packed(self, ids: tf.Tensor, lengths: tf.Tensor, weights: tf.Tensor | None) -> Batch:
        return Batch(ids, self._one_each(tf.cast(lengths, tf.int64)), weights)

    def _one_each(self, lengths: tf.Tensor) -> tf.Tensor:
        apart = [number for number, item in enumerate(self.inputs) if item.combiner is None]
        if not apart:
            return lengths
        names = ", ".join(repr(self.inputs[number].name) for number in apart)
        said = f"without a combiner a bag needs one id, but some of {names} have not; call the layer instead"
        with tf.control_dependencies(
            [tf.debugging.assert_equal(tf.gather(lengths, apart), tf.constant(1, tf.int64), said)]
        ):
            return tf.identity(lengths)

    def _send(self, batch: Batch, combiners: Sequence[str | None], name: str) -> SentIds:
        layout = self._layouts.of(combiners)
        return self._exchange.send(layout, batch, name=name) if layout.travels else SentIds.of(batch)

    def _look_up(self, sent: SentIds, combiners: Sequence[str | None], training: bool | tf.Tensor) -> list[tf.Tensor]:
        """Returns for each input [B, dim], or [n, dim] for its n ids where it has no combiner."""
        layout, batch = self._layouts.of(combiners), sent.batch
        found: dict[int, tf.Tensor] = {}
        if layout.local:
            numbers = [feature.number for feature in layout.local]
            columns = self._held.pool(layout.local, batch.select(numbers), combiners, training=training)
            found |= zip(numbers, tf.split(columns, [self._widths[number] for number in numbers], axis=1), strict=True)
        for unique in UniqueIds.of_tables(layout.local_rows, batch, self.inputs):
            table = unique.table
            rows = self._held.rows(table.table, table.shards[0], unique.ids, training=training)
            found |= zip(table.numbers, unique.pool(rows, combiners), strict=True)
        if layout.travels:
            found |= self._exchange.look_up(layout, sent, combiners, training=training)
        return [found[number] for number in range(len(self.inputs))]

    def _own(self, spec: EmbeddingSpec) -> dict[ShardSpec, tf.Variable]:
        rank = self.ranks.rank
        return {shard.rectangle(rank): shard.variable for shard in self.shards if shard.table == spec.name}

    def _weights_of(self, spec: EmbeddingSpec) -> TableWeights:
        own = [shard for shard in self.shards if shard.table == spec.name]
        return TableWeights(spec, self.plan.placement(spec.name), own, ranks=self.ranks)

    def _count(self, training: bool | tf.Tensor) -> None:
        """Counts a lookup in training, before it learns keys."""
        if self.num_lookups is not None and training is not False:
            self.num_lookups.assign_add(tf.cast(training, tf.int64))

    def _make_num_lookups(self) -> tf.Variable:
        with tf.device("CPU:0"):
            return self.add_weight("num_lookups", shape=(), dtype=tf.int64, initializer="zeros", trainable=False)

    def _make_shards(self, spec: EmbeddingSpec) -> list[TableShard]:
        own = [shard for table, shard in self.plan.shards_of(self.ranks.rank) if table == spec.name]
        name = f"{self.name}_{spec.name}_initial"
        values = None
        if spec.vocabulary is None:
            values = InitialValues(spec, seed=self.seed, ranks=self.ranks, holds=bool(own), name=name)
        placement = self.plan.placement(spec.name)
        made = []
        for shard in own:
            shape = (variable_rows(placement, shard), shard.dim)
            # Keras saves by name, optimizers name slots so: each slice needs one of its own, in each layer.
            part = f"/columns_{shard.column_start}_{shard.column_stop}" if len(own) > 1 else ""
            with tf.name_scope(f"{self.name}/"):
                variable = self.add_weight(spec.name + part, shape=shape, initializer="zeros", dtype=spec.dtype)
            learnt = None if values else self._make_learnt(spec, shard, variable)
            made.append(TableShard.of(placement, shard, variable, learnt=learnt))
            refuse_whole_reads(made[-1], self.name)
            for start, rows in values.blocks(shard) if values else ():
                write_rows(variable, start, rows)
        return made

    def _make_learnt(self, spec: EmbeddingSpec, shard: ShardSpec, variable: tf.Variable) -> LearntRows:
        gather = None
        if self.plan.placement(spec.name).mode == "data_parallel":
            gather = partial(self.ranks.allgather, name=f"{self.name}_{spec.name}_keys")
        assert self.num_lookups is not None
        return LearntRows(spec, shard, variable, seed=self.seed, step=self.num_lookups, gather=gather)

    def _make_nothing_owned(self) -> tf.Variable | None:
        """Gives a rank that is asked for nothing an empty variable, through which it joins the backward exchange.

        TensorFlow computes gradients only on the way to a variable, and the owners wait for those of every rank.
        """
        layout = self._layouts.of([item.combiner for item in self.inputs])
        if not layout.travels or layout.serves(self.ranks.rank):
            return None
        return self.add_weight("nothing_owned", shape=(0,), initializer="zeros", dtype=tf.float32)


def _table_specs(specs: Sequence[EmbeddingSpec], inputs: Sequence[Input]) -> list[TableSpec]:
    lookups = [item.table for item in inputs]
    return [spec.table_spec(float(lookups.count(spec.name))) for spec in specs]
