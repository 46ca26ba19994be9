"""What a table, or a part of one, makes ranks do in a step: counts of ids, rows and bytes, and their time.

The one place of the cost model's formulas; docs/planning.md derives them. Counts are vectors, so that those of a rank
add up, and seconds are a product.

"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from rankhouse.training.exchange.wire_format import WireDtype, row_bytes
from rankhouse.training.plan import Exchange, Mode, Placement, ShardSpec
from rankhouse.training.planner.workload import Cluster, TableLoad, Vector, Workload

# What is counted: ids that leave whoever asks and ids that reach the holder, ids that are looked up, inputs, bytes of
# rows read, bytes of results written, bytes of rows and gradients on the way, ids whose gradients are combined, bytes
# that the update reads and writes, the same in the host's memory, bytes of gradients that are summed over all ranks.
# Then memory: weights, slots, both of those in the host, activations, buffers.
COUNTS = (
    "ids_out",
    "ids_in",
    "ids_looked_up",
    "inputs",
    "read_bytes",
    "write_bytes",
    "rows_out_bytes",
    "gradients_in_bytes",
    "ids_combined",
    "update_bytes",
    "host_lookup_bytes",
    "host_update_bytes",
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
class TableOptions:
    """What of a table's treatment no plan holds.

    Attributes:
        device: "device", or "host": in the host's memory, read over the bus.
        forward_wire: What its rows travel in; None is the workload's.
        backward_wire: What their gradients travel in; None is the workload's.
    """

    device: str = "device"
    forward_wire: WireDtype | None = None
    backward_wire: WireDtype | None = None


DEFAULT_OPTIONS = TableOptions()


class CostModel:
    """The costs of a workload on a cluster."""

    def __init__(self, workload: Workload, cluster: Cluster) -> None:
        self.workload = workload
        self.cluster = cluster
        self._local_seconds, self._exchange_seconds = self._price_counts()
        self._cached_work = lru_cache(maxsize=None)(self._shard_work)
        self._cached_asked = lru_cache(maxsize=None)(self._asker_work)

    def shard_work(self, load: TableLoad, placement: Placement, shard: ShardSpec, options: TableOptions) -> Vector:
        """Returns what a part of a table makes the rank that holds it do, in a step."""
        # Equal parts of equal tables cost the same, whatever their names and ranks.
        rows = (shard.row_start, shard.row_stop) if shard.num_rows < load.table.num_rows else None
        return self._cached_work(load.nameless, placement.mode, placement.exchange, rows, shard.dim, options)

    def asker_work(self, load: TableLoad, placement: Placement, options: TableOptions) -> Vector:
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

    def _shard_work(
        self,
        load: TableLoad,
        mode: Mode,
        exchange: Exchange,
        rows: tuple[int, int] | None,
        dim: int,
        options: TableOptions,
    ) -> Vector:
        if mode == "data_parallel":
            return self._copy_work(load, options)
        work, whole = np.zeros(len(COUNTS)), load.table.num_rows
        num_rows = rows[1] - rows[0] if rows else whole
        self._add_kept(work, load, num_rows, dim, options)
        if exchange == "rows":
            self._add_rows_exchange(work, load, rows or (0, whole), options)
        else:
            self._add_pooled_exchange(work, load, dim, options)
        return work

    def _add_kept(self, work: Vector, load: TableLoad, num_rows: int, dim: int, options: TableOptions) -> None:
        weights, slots = num_rows * row_bytes(load.dtype, dim), self.workload.slot_bytes(num_rows, dim)
        if options.device == "host":
            work[AT["host_bytes"]] = weights + slots
        else:
            work[AT["weight_bytes"]], work[AT["slot_bytes"]] = weights, slots

    def _add_pooled_exchange(self, work: Vector, load: TableLoad, dim: int, options: TableOptions) -> None:
        samples = self.workload.batch_size
        ids, bags = samples * load.table.lookups_per_sample, samples * load.num_inputs
        forward, backward = self._wires(options)
        if not self.workload.ids_at_owner:
            work[AT["ids_in"]] = ids
        work[AT["inputs"]] = load.num_inputs
        self._add_lookup(work, load, ids, bags, dim, options)
        work[AT["rows_out_bytes"]] = bags * row_bytes(forward, dim)
        work[AT["gradients_in_bytes"]] = bags * row_bytes(backward, dim)
        self._add_update(work, load, ids, load.unique_rows(ids), dim, options)
        work[AT["activation_bytes"]] = 2 * 4 * bags * dim
        work[AT["buffer_bytes"]] += ID_BYTES * ids

    def _add_rows_exchange(self, work: Vector, load: TableLoad, rows: tuple[int, int], options: TableOptions) -> None:
        ranks, dim = self.cluster.num_ranks, load.table.dim
        asked = ranks * load.unique_rows(self._ids_of_rank(load), rows)
        forward, backward = self._wires(options)
        work[AT["ids_in"]] = asked
        work[AT["inputs"]] = load.num_inputs
        self._add_lookup(work, load, asked, asked, dim, options)
        work[AT["rows_out_bytes"]] = asked * row_bytes(forward, dim)
        work[AT["gradients_in_bytes"]] = asked * row_bytes(backward, dim)
        self._add_update(work, load, asked, load.unique_rows(ranks * self._ids_of_rank(load), rows), dim, options)
        work[AT["buffer_bytes"]] += ID_BYTES * asked + 2 * 4 * asked * dim

    def _copy_work(self, load: TableLoad, options: TableOptions) -> Vector:
        work, table = np.zeros(len(COUNTS)), load.table
        self._add_kept(work, load, table.num_rows, table.dim, options)
        ids, samples = self._ids_of_rank(load), self.workload.batch_size / self.cluster.num_ranks
        work[AT["inputs"]] = load.num_inputs
        self._add_lookup(work, load, ids, samples * load.num_inputs, table.dim, options)
        own = load.unique_rows(ids)
        if self.cluster.num_ranks == 1:
            self._add_update(work, load, ids, own, table.dim, options)
            return work
        # Gradients are combined, summed as a whole table with a count for each row, and all touched rows updated.
        touched = load.unique_rows(self.workload.batch_size * table.lookups_per_sample)
        self._add_update(work, load, ids, touched, table.dim, options)
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

    def _add_lookup(
        self, work: Vector, load: TableLoad, ids: float, results: float, dim: int, options: TableOptions
    ) -> None:
        work[AT["ids_looked_up"]] = ids
        read = ids * row_bytes(load.dtype, dim)
        work[AT["host_lookup_bytes" if options.device == "host" else "read_bytes"]] = read
        work[AT["write_bytes"]] = 4 * results * dim

    def _add_update(
        self, work: Vector, load: TableLoad, ids: float, unique: float, dim: int, options: TableOptions
    ) -> None:
        work[AT["ids_combined"]] = ids
        touched = 2 * unique * (row_bytes(load.dtype, dim) + self.workload.slot_bytes(1, dim))
        if options.device == "host":
            work[AT["host_update_bytes"]] = touched
        else:
            work[AT["update_bytes"]] = touched
        work[AT["update_bytes"]] += ids * 4 * dim + 2 * unique * 4 * dim
        work[AT["buffer_bytes"]] = unique * 4 * dim + 2 * ID_BYTES * ids

    def _ids_of_rank(self, load: TableLoad) -> float:
        return self.workload.batch_size / self.cluster.num_ranks * load.table.lookups_per_sample

    def _wires(self, options: TableOptions) -> tuple[WireDtype, WireDtype]:
        return (
            options.forward_wire or self.workload.forward_wire,
            options.backward_wire or self.workload.backward_wire,
        )

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
        local[AT["write_bytes"]] = 1 / hardware.stream_bandwidth
        local[AT["ids_combined"]] = hardware.update_id_seconds
        local[AT["host_lookup_bytes"]] = local[AT["host_update_bytes"]] = 1 / hardware.host_bandwidth
        return local, exchanged
