"""What a table, or a part of one, makes ranks do in a step: counts of ids, rows and bytes, and their time.

The one place of the cost model's formulas; docs/planning.md derives them. Counts are vectors, so that those of a rank
add up, and seconds are a product.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rankhouse.training.exchange.wire_format import WireDtypes, row_bytes
from rankhouse.training.plan import Exchange, Mode, Placement, ShardSpec
from rankhouse.training.planner.workload import Cluster, TableLoad, Vector, Workload

# What is counted: ids that leave whoever asks and ids that reach the holder, ids that are looked up, inputs, bytes of
# rows read, bytes of results written, bytes of rows and gradients on the way, bytes that are moved to round them before
# and to widen them after, ids whose gradients are combined, bytes that the update reads and writes, bytes of rows and
# slots that come from the host and go back there, bytes of gradients that are summed over all ranks. Then memory:
# weights, slots, both of those in the host, activations, buffers.
COUNTS = (
    "ids_out",
    "ids_in",
    "ids_looked_up",
    "inputs",
    "read_bytes",
    "write_bytes",
    "rows_out_bytes",
    "gradients_in_bytes",
    "rows_coded_bytes",
    "gradients_coded_bytes",
    "ids_combined",
    "update_bytes",
    "host_in_bytes",
    "host_out_bytes",
    "summed_bytes",
    "weight_bytes",
    "slot_bytes",
    "host_bytes",
    "activation_bytes",
    "buffer_bytes",
)
AT = {name: position for position, name in enumerate(COUNTS)}
_MEMORY = [AT[name] for name in ("weight_bytes", "slot_bytes", "activation_bytes", "buffer_bytes")]

ID_BYTES = 8


@dataclass(frozen=True)
class _Part:
    """A rectangle of a table, without the names and ranks that its costs do not depend on.

    Attributes:
        mode: How the table is cut.
        exchange: How lookups travel.
        rows: Its range of rows; None is all.
        dim: Its columns.
        cache_rows: Of a table on the host, how many of its rows are cached; None is a table on the device.
        in_file: Whether a table on the host lies in a file there, and takes no memory.
        wire: What its rows and their gradients travel in.
    """

    mode: Mode
    exchange: Exchange
    rows: tuple[int, int] | None
    dim: int
    cache_rows: int | None
    in_file: bool
    wire: WireDtypes


class CostModel:
    """The costs of a workload on a cluster."""

    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        self.workload = workload
        self.cluster = cluster
        self._local_seconds, self._exchange_seconds = self._price_counts()
        self._cached_work = lru_cache(maxsize=None)(self._shard_work)
        self._cached_asked = lru_cache(maxsize=None)(self._asker_work)

    def shard_work(self, load: TableLoad, placement: Placement, shard: ShardSpec) -> Vector:
        """Returns what a part of a table makes the rank that holds it do, in a step."""
        # Equal parts of equal tables cost the same, whatever their names and ranks.
        rows = (shard.row_start, shard.row_stop) if shard.num_rows < load.table.num_rows else None
        cache_rows = placement.cache_rows if placement.device == "host" else None
        host = (cache_rows, placement.host_folder is not None)
        part = _Part(placement.mode, placement.exchange, rows, shard.dim, *host, self._wire(placement))
        return self._cached_work(load.nameless, part)

    def asker_work(self, load: TableLoad, placement: Placement) -> Vector:
        """Returns what a table makes every rank do that asks for its rows, in a step."""
        if placement.mode == "data_parallel":
            return np.zeros(len(COUNTS))
        num_parts = len(placement.shards) if placement.exchange == "pooled" else 1
        return self._cached_asked(load.nameless, placement.exchange, num_parts)

    def local_seconds(self, work: Vector) -> float:
        """Returns the time of the work on its own rank: lookup and update."""
        return float(work @ self._local_seconds)

    def exchange_seconds(self, work: Vector) -> float:
        """Returns the time of the work's part of the exchanges."""
        return float(work @ self._exchange_seconds)

    def memory_bytes(self, work: Vector) -> float:
        """Returns the bytes of the device's memory that the work takes."""
        return float(work[_MEMORY].sum())

    def _shard_work(self, load: TableLoad, part: _Part) -> Vector:
        if part.mode == "data_parallel":
            return self._copy_work(load, part)
        work = np.zeros(len(COUNTS))
        self._add_kept(work, load, part)
        if part.exchange == "rows":
            self._add_rows_exchange(work, load, part)
        else:
            self._add_pooled_exchange(work, load, part)
        return work

    def _add_kept(self, work: Vector, load: TableLoad, part: _Part) -> None:
        num_rows = part.rows[1] - part.rows[0] if part.rows else load.table.num_rows
        number_bytes = load.table.number_bytes
        if part.cache_rows is not None:
            table_bytes = number_bytes * num_rows * part.dim + self.workload.slot_bytes(num_rows, part.dim)
            work[AT["host_bytes"]] = 0 if part.in_file else table_bytes
            num_rows = min(part.cache_rows, num_rows)
        work[AT["weight_bytes"]] = number_bytes * num_rows * part.dim
        work[AT["slot_bytes"]] = self.workload.slot_bytes(num_rows, part.dim)

    def _add_pooled_exchange(self, work: Vector, load: TableLoad, part: _Part) -> None:
        samples, dim = self.workload.batch_size, part.dim
        ids, bags = samples * load.table.lookups_per_sample, samples * load.num_inputs
        if not self.workload.ids_at_owner:
            work[AT["ids_in"]] = ids
        work[AT["inputs"]] = load.num_inputs
        self._add_lookup(work, load, ids, bags, dim)
        self._add_rows_on_wire(work, bags, part)
        self._add_update(work, load, ids, load.unique_rows(ids), dim)
        self._add_host(work, load, ids, part)
        work[AT["activation_bytes"]] = 2 * 4 * bags * dim
        work[AT["buffer_bytes"]] += ID_BYTES * ids

    def _add_rows_exchange(self, work: Vector, load: TableLoad, part: _Part) -> None:
        ranks, dim, rows = self.cluster.num_ranks, part.dim, part.rows or (0, load.table.num_rows)
        asked, all_ids = ranks * load.unique_rows(self._ids_of_rank(load), rows), ranks * self._ids_of_rank(load)
        work[AT["ids_in"]] = asked
        work[AT["inputs"]] = load.num_inputs
        self._add_lookup(work, load, asked, asked, dim)
        self._add_rows_on_wire(work, asked, part)
        self._add_update(work, load, asked, load.unique_rows(all_ids, rows), dim)
        self._add_host(work, load, all_ids, part)
        work[AT["buffer_bytes"]] += ID_BYTES * asked + 2 * 4 * asked * dim

    def _add_rows_on_wire(self, work: Vector, num_rows: float, part: _Part) -> None:
        for dtype, sent, coded in (
            (part.wire.forward, "rows_out_bytes", "rows_coded_bytes"),
            (part.wire.backward, "gradients_in_bytes", "gradients_coded_bytes"),
        ):
            narrow = num_rows * row_bytes(dtype, part.dim)
            work[AT[sent]] = narrow
            if dtype != "float32" and self.cluster.num_ranks > 1:
                # Who sends them reads and writes them once more, and so does who gets them.
                work[AT[coded]] = 2 * (narrow + 4 * num_rows * part.dim)

    def _add_host(self, work: Vector, load: TableLoad, ids: float, part: _Part) -> None:
        """Adds the rows that are not cached: they come from the host, and as many others go back there.

        The cache is taken to hold the most frequent rows, as the least recently used ones leave it.
        """
        if part.cache_rows is None:
            return
        first, last = part.rows or (0, load.table.num_rows)
        missing = load.unique_rows(ids, (min(first + part.cache_rows, last), last))
        moved = missing * (load.table.number_bytes * part.dim + self.workload.slot_bytes(1, part.dim))
        work[AT["host_in_bytes"]] = work[AT["host_out_bytes"]] = moved

    def _copy_work(self, load: TableLoad, part: _Part) -> Vector:
        work, table = np.zeros(len(COUNTS)), load.table
        self._add_kept(work, load, part)
        ids, samples = self._ids_of_rank(load), self.workload.batch_size / self.cluster.num_ranks
        work[AT["inputs"]] = load.num_inputs
        self._add_lookup(work, load, ids, samples * load.num_inputs, table.dim)
        own = load.unique_rows(ids)
        if self.cluster.num_ranks == 1:
            self._add_update(work, load, ids, own, table.dim)
            return work
        # Gradients are combined, summed as a whole table with a count for each row, and all touched rows updated.
        touched = load.unique_rows(self.workload.batch_size * table.lookups_per_sample)
        self._add_update(work, load, ids, touched, table.dim)
        summed = 4 * table.num_rows * (table.dim + 1)
        work[AT["summed_bytes"]] = summed
        work[AT["write_bytes"]] += 3 * summed
        work[AT["buffer_bytes"]] += 2 * summed
        return work

    def _asker_work(self, load: TableLoad, exchange: Exchange, num_parts: int) -> Vector:
        work = np.zeros(len(COUNTS))
        ids, dim = self._ids_of_rank(load), load.table.dim
        pooled = self.workload.batch_size / self.cluster.num_ranks * load.num_inputs * dim
        if exchange == "rows":
            unique = load.unique_rows(ids)
            work[AT["ids_out"]] = unique
            # Ids are made unique, rows pooled from the unique ones, and gradients of the pooled combined again.
            work[AT["ids_combined"]] = 2 * ids
            work[AT["read_bytes"]] = 2 * 4 * ids * dim
            work[AT["write_bytes"]] = 4 * pooled + 4 * unique * dim
            work[AT["buffer_bytes"]] = 2 * ID_BYTES * ids + 2 * 4 * unique * dim
        else:
            if not self.workload.ids_at_owner:
                work[AT["ids_out"]] = num_parts * ids
            work[AT["buffer_bytes"]] = ID_BYTES * work[AT["ids_out"]]
            work[AT["write_bytes"]] = 2 * 4 * pooled
        work[AT["activation_bytes"]] = 2 * 4 * pooled
        return work

    def _add_lookup(self, work: Vector, load: TableLoad, ids: float, results: float, dim: int) -> None:
        work[AT["ids_looked_up"]] = ids
        work[AT["read_bytes"]] = load.table.number_bytes * ids * dim
        work[AT["write_bytes"]] = 4 * results * dim

    def _add_update(self, work: Vector, load: TableLoad, ids: float, unique: float, dim: int) -> None:
        row_bytes = load.table.number_bytes * dim
        work[AT["ids_combined"]] = ids
        work[AT["update_bytes"]] = 2 * unique * (row_bytes + self.workload.slot_bytes(1, dim))
        work[AT["update_bytes"]] += ids * 4 * dim + 2 * unique * 4 * dim
        work[AT["buffer_bytes"]] = unique * 4 * dim + 2 * ID_BYTES * ids

    def _ids_of_rank(self, load: TableLoad) -> float:
        return self.workload.batch_size / self.cluster.num_ranks * load.table.lookups_per_sample

    def _wire(self, placement: Placement) -> WireDtypes:
        return placement.wire or WireDtypes(self.workload.forward_wire, self.workload.backward_wire)

    def _price_counts(self) -> tuple[Vector, Vector]:
        """Returns the seconds of one of each count, on its own rank and in exchanges."""
        hardware, cluster = self.cluster.hardware, self.cluster
        local, exchanged = np.zeros(len(COUNTS)), np.zeros(len(COUNTS))
        byte = cluster.exchange_byte_seconds
        exchanged[AT["ids_in"]] = ID_BYTES * byte
        exchanged[AT["rows_out_bytes"]] = exchanged[AT["gradients_in_bytes"]] = byte
        exchanged[AT["summed_bytes"]] = cluster.sum_byte_seconds
        local[AT["ids_looked_up"]] = hardware.lookup_id_seconds
        local[AT["inputs"]] = hardware.input_seconds
        local[AT["read_bytes"]] = local[AT["update_bytes"]] = 1 / hardware.gather_bandwidth
        for written in ("write_bytes", "rows_coded_bytes", "gradients_coded_bytes"):
            local[AT[written]] = 1 / hardware.stream_bandwidth
        local[AT["ids_combined"]] = hardware.update_id_seconds
        local[AT["host_in_bytes"]] = local[AT["host_out_bytes"]] = 1 / hardware.host_bandwidth
        return local, exchanged
