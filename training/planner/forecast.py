"""What a plan costs before anything is allocated: memory, bytes on the wire and time, rank by rank."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rankhouse.training.errors import PlanError
from rankhouse.training.plan import Plan
from rankhouse.training.planner.hardware import HardwareProfile
from rankhouse.training.planner.work import AT, COUNTS, ID_BYTES, CostModel
from rankhouse.training.planner.workload import Cluster, Vector, Workload

Matrix = NDArray[np.float64]

PHASES = ("ids", "lookup", "rows", "dense", "gradient_rows", "gradient_sum", "update")

# What each phase is, in words.
PHASE_TITLES = {
    "ids": "id exchange",
    "lookup": "lookup",
    "rows": "row exchange",
    "dense": "dense forward and backward",
    "gradient_rows": "gradient row exchange",
    "gradient_sum": "gradient sum",
    "update": "update",
}


@dataclass(frozen=True)
class RankForecast:
    """One rank of a plan, in a step.

    Attributes:
        rank: Which.
        weight_bytes: Of its tables' parts.
        slot_bytes: What the optimizer keeps for them.
        dense_bytes: Dense weights, their slots and gradients.
        activation_bytes: What the forward pass leaves for the backward pass.
        buffer_bytes: What exchanges and the update need besides.
        host_bytes: Of parts that lie in the host's memory, with their slots.
        sent_bytes: By phase, what it sends to others.
        seconds: By phase.
    """

    rank: int
    weight_bytes: float
    slot_bytes: float
    dense_bytes: float
    activation_bytes: float
    buffer_bytes: float
    host_bytes: float
    sent_bytes: Mapping[str, float]
    seconds: Mapping[str, float]

    @property
    def memory_bytes(self) -> float:
        """Bytes of the device's memory."""
        return self.weight_bytes + self.slot_bytes + self.dense_bytes + self.activation_bytes + self.buffer_bytes


@dataclass(frozen=True)
class Forecast:
    """A plan and what it costs.

    Attributes:
        plan: The plan.
        workload: The step.
        cluster: Its ranks.
        ranks: One forecast for each rank.
    """

    plan: Plan
    workload: Workload
    cluster: Cluster
    ranks: tuple[RankForecast, ...]

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Time of each phase, which lasts until its slowest rank is done: exchanges make all wait for each other."""
        return {phase: max(rank.seconds[phase] for rank in self.ranks) for phase in PHASES}

    @property
    def step_seconds(self) -> float:
        """Time of a step."""
        return sum(self.phase_seconds.values()) + self.cluster.hardware.step_seconds

    @property
    def fullest(self) -> RankForecast:
        """The rank that needs the most memory."""
        return max(self.ranks, key=lambda rank: rank.memory_bytes)

    @property
    def wire_bytes(self) -> float:
        """Bytes that a rank sends in a step, on average."""
        return sum(sum(rank.sent_bytes.values()) for rank in self.ranks) / len(self.ranks)

    def overfull(self) -> list[RankForecast]:
        """Returns the ranks whose memory, or whose host's, does not do."""
        usable, host = self.cluster.usable_bytes, self.cluster.hardware.host_memory_bytes
        return [rank for rank in self.ranks if rank.memory_bytes > usable or rank.host_bytes > host]


@dataclass(frozen=True)
class PlanWork:
    """What ranks do in a step of a plan, whatever the time it takes.

    Attributes:
        held: float64 [R, counts] for the tables that each rank holds, in the order of `work.COUNTS`.
        asked: float64 [counts] for the rows that every rank asks for.
    """

    held: Matrix
    asked: Vector


def count_work(plan: Plan, workload: Workload, cluster: Cluster) -> PlanWork:
    """Counts ids, rows and bytes of a plan.

    Raises:
        PlanError: The plan is for other tables or another number of ranks.
    """
    _check(plan, workload, cluster)
    model = CostModel(workload, cluster)
    held, asked = np.zeros((plan.num_ranks, len(COUNTS))), np.zeros(len(COUNTS))
    for load, placement in zip(workload.tables, plan.placements, strict=True):
        if placement.mode == "data_parallel":
            held += model.shard_work(load, placement, placement.shards[0])
            continue
        for shard in placement.shards:
            held[shard.rank] += model.shard_work(load, placement, shard)
        asked += model.asker_work(load, placement)
    return PlanWork(held, asked)


def forecast(plan: Plan, workload: Workload, cluster: Cluster, *, work: PlanWork | None = None) -> Forecast:
    """Predicts what a plan costs, whoever made it.

    Args:
        plan: The plan.
        workload: The step.
        cluster: Its ranks.
        work: What `count_work` returned for these, where it is known already.

    Raises:
        PlanError: The plan is for other tables or another number of ranks.
    """
    work = work or count_work(plan, workload, cluster)
    seconds, sent = _phases(work, workload, cluster)
    dense_bytes = 4 * workload.dense.num_parameters * (2 + len(workload.optimizer.slot_names))
    dense_activations = 2 * 4 * workload.dense.activations * workload.batch_size / cluster.num_ranks
    memory = work.held + work.asked
    ranks = tuple(
        RankForecast(
            rank,
            weight_bytes=float(memory[rank, AT["weight_bytes"]]),
            slot_bytes=float(memory[rank, AT["slot_bytes"]]),
            dense_bytes=dense_bytes,
            activation_bytes=float(memory[rank, AT["activation_bytes"]]) + dense_activations,
            buffer_bytes=float(memory[rank, AT["buffer_bytes"]]),
            host_bytes=float(memory[rank, AT["host_bytes"]]),
            sent_bytes={phase: float(values[rank]) for phase, values in sent.items()},
            seconds={phase: float(values[rank]) for phase, values in seconds.items()},
        )
        for rank in range(cluster.num_ranks)
    )
    return Forecast(plan, workload, cluster, ranks)


def _phases(work: PlanWork, workload: Workload, cluster: Cluster) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Returns seconds and sent bytes of each phase, [R] each."""
    hardware, total = cluster.hardware, work.held + work.asked
    counts = {name: total[:, AT[name]] for name in COUNTS}
    away, zeros = cluster.node_share + cluster.network_share, np.zeros(cluster.num_ranks)
    # A rank sends what others ask it for, and receives its share of all; whichever is more takes the time.
    ids = float(ID_BYTES) * np.maximum(counts["ids_in"], counts["ids_out"])
    rows = np.maximum(counts["rows_out_bytes"], counts["rows_out_bytes"].mean())
    received_gradients = counts["gradients_in_bytes"]
    gradients = np.maximum(received_gradients, received_gradients.mean())
    summed = counts["summed_bytes"] + 4 * workload.dense.num_parameters
    seconds = {
        "ids": cluster.exchange_seconds(ids) if ids.any() else zeros,
        "lookup": _lookup_seconds(counts, hardware),
        "rows": cluster.exchange_seconds(rows) if rows.any() else zeros,
        "dense": zeros + _dense_seconds(workload, cluster),
        "gradient_rows": cluster.exchange_seconds(gradients) if gradients.any() else zeros,
        "gradient_sum": cluster.sum_seconds(summed),
        "update": counts["ids_combined"] * hardware.update_id_seconds
        + counts["update_bytes"] / hardware.gather_bandwidth
        + counts["gradients_coded_bytes"] / hardware.stream_bandwidth
        + counts["host_out_bytes"] / hardware.host_bandwidth,
    }
    sent = {
        "ids": ID_BYTES * counts["ids_out"] * away,
        "rows": counts["rows_out_bytes"] * away,
        "gradient_rows": zeros + received_gradients.mean() * away,
        "gradient_sum": 2 * summed * (cluster.num_ranks - 1) / cluster.num_ranks,
    }
    return seconds, sent


def _lookup_seconds(counts: Mapping[str, Vector], hardware: HardwareProfile) -> Vector:
    seconds: Vector = (
        counts["ids_looked_up"] * hardware.lookup_id_seconds
        + counts["inputs"] * hardware.input_seconds
        + counts["read_bytes"] / hardware.gather_bandwidth
        + (counts["write_bytes"] + counts["rows_coded_bytes"]) / hardware.stream_bandwidth
        + counts["host_in_bytes"] / hardware.host_bandwidth
    )
    return seconds


def _dense_seconds(workload: Workload, cluster: Cluster) -> float:
    hardware, dense = cluster.hardware, workload.dense
    samples = workload.batch_size / cluster.num_ranks
    flops = hardware.bfloat16_flops if dense.precision == "bfloat16" else hardware.float32_flops
    # Backward is two products for each one forward. Pooled rows and activations are written, read and differentiated.
    numbers = dense.activations + (workload.output_dim if dense.num_layers else 0)
    moved = 4 * 4 * samples * numbers / hardware.stream_bandwidth
    return float(3 * dense.flops * samples / flops + moved + dense.num_layers * hardware.input_seconds)


def _check(plan: Plan, workload: Workload, cluster: Cluster) -> None:
    if plan.num_ranks != cluster.num_ranks:
        raise PlanError(
            f"the plan is for {plan.num_ranks} ranks, but the cluster has {cluster.num_ranks}; make one for as many, "
            f"as by `rankhouse plan --ranks {cluster.num_ranks}`, or let parallel.plan=auto make it"
        )
    planned = [(table.name, table.num_rows, table.dim, table.dtype) for table in plan.tables]
    trained = [
        (table.name, table.num_rows, table.dim, table.dtype) for table in (load.table for load in workload.tables)
    ]
    if planned != trained:
        differing = next((pair for pair in zip(planned, trained, strict=False) if pair[0] != pair[1]), None)
        raise PlanError(f"the plan is of other tables than the workload; first differ {differing}; make it of the same")
