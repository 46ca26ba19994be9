"""Lookups in tables that lie on other ranks.

    each rank     sends every owner one message (`id_messages`): the bags that the owner pools, and unique ids
    each owner    pools the bags of the global batch at once, reads the rows, and sends every rank one message
                  (`row_messages`): the pooled columns of its samples, and its rows
    each rank     puts columns and rows together, and pools the rows

Two exchanges forward and one backward, whatever the number of tables: an exchange costs milliseconds on Gloo, a copy
microseconds. The first one needs no row, so it may be made long before the second: while the batch before computes.
Where a gradient of weights is asked for and owners pool, one more exchange backward brings it (`weight_gradients`).

Order of sums: pooled bags are added up by their owner in the order of their ids, and their gradients in the order of
the global batch, both as one rank does it. Rows are pooled where they were asked for, with the bits of one rank; their
gradients are added up there first, and then by the owner, rank by rank: that is another order than one rank's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import tensorflow as tf

from rankhouse.training.exchange.batch import Batch, join_ranks
from rankhouse.training.exchange.held_tables import HeldTables
from rankhouse.training.exchange.id_messages import Request, read_requests, write_requests
from rankhouse.training.exchange.layout import Layout
from rankhouse.training.exchange.row_messages import join_segments, split_segments
from rankhouse.training.exchange.sent_ids import SentIds
from rankhouse.training.exchange.unique_rows import UniqueIds
from rankhouse.training.exchange.weight_gradients import WeightsReturn
from rankhouse.training.exchange.wire import RowExchange, Rows
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import Input

Combiners = Sequence[str | None]


class Exchange:
    """The exchanges of one layer; collective.

    Attributes:
        nothing_owned: float32 [0], of a rank that is asked for nothing: through it the rank joins the backward
            exchange. None on other ranks.
    """

    def __init__(
        self,
        ranks: Ranks,
        held: HeldTables,
        inputs: Sequence[Input],
        *,
        wires: Mapping[str, WireFormat],
        name: str,
        nothing_owned: tf.Variable | None,
    ) -> None:
        self._ranks = ranks
        self._held = held
        self._inputs = list(inputs)
        self._name = name
        formats = list(dict.fromkeys(wires.values()))
        self._no_rows = formats[0]
        self._send_rows = RowExchange(ranks, formats, name=f"{name}_rows")
        self._weights = WeightsReturn(ranks, name=f"{name}_weights_gradient")
        self._nothing_owned = nothing_owned

    def send(self, layout: Layout, batch: Batch, *, name: str) -> SentIds:
        """Sends the ids of the inputs whose tables lie elsewhere to those who have the tables.

        Args:
            layout: Says which.
            batch: The ids of all inputs of the layer.
            name: Of the exchange, after that of the layer.

        Raises:
            tf.errors.InvalidArgumentError: An id of a table whose rows travel is not a row of it.
        """
        unique = UniqueIds.of_tables(layout.rows, batch, self._inputs)
        message, splits = write_requests([_request(layout, rank, batch, unique) for rank in range(self._ranks.size)])
        return SentIds.of(batch, unique, self._ranks.alltoall(message, splits, name=f"{self._name}_{name}"))

    def look_up(
        self, layout: Layout, sent: SentIds, combiners: Combiners, *, training: bool | tf.Tensor = False
    ) -> dict[int, tf.Tensor]:
        """Looks up the inputs whose ids were sent.

        Args:
            layout: The one that they were sent by.
            sent: What `send` returned.
            combiners: One for each input of the layer.
            training: As maps of rows want to know it.

        Returns:
            By input, float32 [B, dim], or [n, dim] for the n ids of an input without a combiner.

        Raises:
            tf.errors.InvalidArgumentError: An id of a pooled input is not a row of its table; raised by the rank that
                looks it up.
        """
        unique, size = sent.unique_ids(layout), sent.batch.size
        answer, send = self._answer(layout, sent, combiners, training=training)
        if sent.weights and layout.pools and not layout.pooled[self._ranks.rank].features:
            # As its gradients pass by `nothing_owned`, those of weights that others pool with come by nothing pooled.
            nothing = self._weights.tie(tf.zeros([0]), layout, sent.batch, [])
            answer = tf.concat([answer, nothing], axis=0)
        receive = [_expected(layout, rank, unique, size) for rank in range(self._ranks.size)]
        returned = self._send_rows(answer, send, receive)
        return self._assemble(layout, split_segments(returned, receive), unique, size, combiners)

    def _read(self, layout: Layout, sent: SentIds) -> list[Request]:
        """Reads what all ranks ask of this one."""
        received, splits = sent.requests
        return read_requests(
            received,
            splits,
            num_ranks=self._ranks.size,
            num_inputs=len(layout.pooled[self._ranks.rank].numbers),
            num_tables=len(layout.rows_of(self._ranks.rank)),
            weighted=bool(sent.weights),
        )

    def _answer(
        self,
        layout: Layout,
        sent: SentIds,
        combiners: Combiners,
        *,
        training: bool | tf.Tensor,
    ) -> tuple[tf.Tensor, list[list[Rows]]]:
        """Looks up what all ranks ask of this one; returns the message, and its segments by rank."""
        rank, num_ranks = self._ranks.rank, self._ranks.size
        if self._nothing_owned is not None:
            # This is 0, but written so that TensorFlow cannot know: it would prune the exchange of the ids, whose
            # result nothing else needs here, and the other ranks would wait for it for ever. A control dependency does
            # not help.
            nothing = tf.unstack(tf.cast(tf.minimum(sent.requests[1], 0), tf.int64), num=num_ranks)
            return tf.convert_to_tensor(self._nothing_owned), [[Rows(size, 1, self._no_rows)] for size in nothing]
        group, tables = layout.pooled[rank], layout.rows_of(rank)
        asked = self._read(layout, sent)
        bags = [request.bags for request in asked if request.bags]
        blocks, counts = self._pool(layout, sent.batch, bags, combiners, training=training)
        wires = [wire for _, _, wire in group.blocks]
        for at, table in enumerate(tables):
            ids = [request.row_ids[at] for request in asked]
            sizes = tf.stack([tf.size(of_rank, out_type=tf.int64) for of_rank in ids])
            for shard in table.shards_of(rank):
                blocks.append(self._held.rows(table.table, shard, tf.concat(ids, axis=0), training=training))
                counts.append(sizes)
                wires.append(table.wire)
        of_ranks = zip(*(tf.unstack(count, num=num_ranks) for count in counts), strict=True)
        widths = [block.shape[1] for block in blocks]
        send = [[Rows(*piece) for piece in zip(sizes, widths, wires, strict=True)] for sizes in of_ranks]
        return join_segments(blocks, counts, num_ranks), send

    def _pool(
        self, layout: Layout, own: Batch, bags: Sequence[Batch], combiners: Combiners, *, training: bool | tf.Tensor
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Pools the bags of all ranks: for each width the rows [samples * features, width], and how many by rank."""
        group = layout.pooled[self._ranks.rank]
        if not group.features:
            return [], []
        whole = join_ranks(bags, [group.numbers.index(feature.number) for feature in group.features])
        if whole.weights is not None:
            whole = replace(whole, weights=self._weights.tie(whole.weights, layout, own, bags))
        columns = self._held.pool(group.features, whole, combiners, training=training)
        parts = tf.split(columns, [count * width for count, width, _ in group.blocks], axis=1)
        sizes = tf.stack([part.size for part in bags])
        blocks = [tf.reshape(part, [-1, width]) for part, (_, width, _) in zip(parts, group.blocks, strict=True)]
        return blocks, [sizes * count for count, _, _ in group.blocks]

    def _assemble(
        self,
        layout: Layout,
        received: Sequence[Sequence[tf.Tensor]],
        unique: Sequence[UniqueIds],
        size: tf.Tensor,
        combiners: Combiners,
    ) -> dict[int, tf.Tensor]:
        columns: dict[int, dict[int, tf.Tensor]] = {}
        rows: dict[str, dict[tuple[int, int], tf.Tensor]] = {found.table.table: {} for found in unique}
        for rank, segments in enumerate(received):
            group, parts = layout.pooled[rank], iter(segments)
            features = iter(group.features)
            for count, width, _ in group.blocks:
                block = tf.reshape(next(parts), tf.stack([size, count * width]))
                for column in tf.split(block, [width] * count, axis=1):
                    feature = next(features)
                    columns.setdefault(feature.number, {})[feature.shard.column_start] = column
            for table in layout.rows_of(rank):
                for shard in table.shards_of(rank):
                    rows[table.table][shard.row_start, shard.column_start] = next(parts)
        outputs = {number: _side_by_side(slices) for number, slices in columns.items()}
        for found in unique:
            own = rows[found.table.table]
            joined = found.join([own[key] for key in sorted(own)])
            outputs |= zip(found.table.numbers, found.pool(joined, combiners), strict=True)
        return outputs


def _request(layout: Layout, rank: int, batch: Batch, unique: Sequence[UniqueIds]) -> Request:
    numbers = layout.pooled[rank].numbers
    return Request(batch.select(numbers) if numbers else None, _row_ids(rank, unique))


def _row_ids(rank: int, unique: Sequence[UniqueIds]) -> tuple[tf.Tensor, ...]:
    """Returns the ids whose rows a rank has, for each table of which it has any."""
    asked = [found for found in unique if found.table.shards_of(rank)]
    return tuple(found.within(found.table.shards_of(rank)[0]) for found in asked)


def _expected(layout: Layout, rank: int, unique: Sequence[UniqueIds], size: tf.Tensor) -> list[Rows]:
    """Returns the segments of a rank's answer to what it was asked."""
    segments = [Rows(size * count, width, wire) for count, width, wire in layout.pooled[rank].blocks]
    for table, ids in zip(layout.rows_of(rank), _row_ids(rank, unique), strict=True):
        num_ids = tf.size(ids, out_type=tf.int64)
        segments += [Rows(num_ids, shard.dim, table.wire) for shard in table.shards_of(rank)]
    return segments


def _side_by_side(slices: dict[int, tf.Tensor]) -> tf.Tensor:
    ordered = [slices[start] for start in sorted(slices)]
    return ordered[0] if len(ordered) == 1 else tf.concat(ordered, axis=1)
