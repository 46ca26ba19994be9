"""Whether a plan fits the memory at hand, before anything is allocated."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rankhouse.training.config import AUTO_PLAN, Config
from rankhouse.training.errors import NoRoomError
from rankhouse.training.planner.forecast import Forecast, RankForecast
from rankhouse.training.planner.hardware import HardwareProfile
from rankhouse.training.planner.placing import plan_tables
from rankhouse.training.planner.recipe_plan import recipe_constraints
from rankhouse.training.planner.remedies import remedies
from rankhouse.training.planner.units import gibibytes
from rankhouse.training.planner.workload import Cluster, Workload


@dataclass(frozen=True)
class Room:
    """Memory that ranks share.

    Attributes:
        name: Whose it is, in words.
        ranks: Who shares it.
        num_bytes: How much they may take together.
    """

    name: str
    ranks: tuple[int, ...]
    num_bytes: float

    @property
    def rank_bytes(self) -> float:
        """Bytes of each rank, where all take the same."""
        return self.num_bytes / len(self.ranks)


def rooms_of_machines(free_bytes: Sequence[tuple[str, float]]) -> list[Room]:
    """Returns the memory of the ranks' machines.

    Args:
        free_bytes: By rank its machine's name, and the bytes that are free there; 0 where nobody knows.
    """
    ranks: Mapping[str, list[int]] = defaultdict(list)
    for rank, (name, _) in enumerate(free_bytes):
        ranks[name].append(rank)
    return [
        Room(name, tuple(sharing), min(free_bytes[rank][1] or float("inf") for rank in sharing))
        for name, sharing in ranks.items()
    ]


def cluster_of(config: Config, rooms: Sequence[Room], hardware: HardwareProfile) -> Cluster:
    """Returns the ranks, with the part of the memory that each has.

    Ranks that compute on the host have its memory; where a recipe gives them less, the rest can hold tables.
    """
    num_ranks = sum(len(room.ranks) for room in rooms)
    free = min(room.rank_bytes for room in rooms)
    if free == float("inf"):
        free = hardware.memory_bytes
    given = config.parallel.memory_gib * 2**30
    host = replace(hardware, host_memory_bytes=max(free - given, 1.0), shares_host_memory=not 0 < given < free)
    return Cluster(num_ranks, host, given or free)


def check_room(made: Forecast, config: Config, rooms: Sequence[Room]) -> None:
    """Refuses a plan that does not fit.

    Raises:
        NoRoomError: It does not; the message says how many bytes are needed, how many are there, and what would fit.
    """
    given = config.parallel.memory_gib * 2**30
    for room in rooms:
        held = [made.ranks[rank] for rank in room.ranks]
        fullest = max(held, key=lambda rank: rank.memory_bytes)
        needed = sum(rank.memory_bytes + rank.host_bytes for rank in held)
        if given and fullest.memory_bytes > given:
            problem = f" of {gibibytes(given)} that parallel.memory_gib gives each rank"
        elif needed > room.num_bytes and len(held) == 1:
            problem = f" of {gibibytes(room.num_bytes)} that are free on {room.name}"
        elif needed > room.num_bytes:
            problem = (
                f", and the {len(held)} ranks of {room.name} together {gibibytes(needed)} of "
                f"{gibibytes(room.num_bytes)} that are free there"
            )
        else:
            continue
        lines = [f"the plan does not fit: {_needs(fullest)}{problem}. What would:"]
        raise NoRoomError("\n".join([*lines, *_what_would(made, config)]))


def _needs(rank: RankForecast) -> str:
    parts = {
        "weights": rank.weight_bytes,
        "slots": rank.slot_bytes,
        "dense layers": rank.dense_bytes,
        "activations and buffers": rank.activation_bytes + rank.buffer_bytes,
        "tables on the host": rank.host_bytes,
    }
    named = ", ".join(f"{gibibytes(size)} of {name}" for name, size in parts.items() if size)
    return f"rank {rank.rank} needs {gibibytes(rank.memory_bytes + rank.host_bytes)} ({named})"


def _what_would(made: Forecast, config: Config) -> list[str]:
    def plan(workload: Workload, cluster: Cluster) -> Forecast:
        return plan_tables(workload, cluster, constraints=recipe_constraints(config))

    found = remedies(made.workload, made.cluster, plan)
    if config.parallel.plan == AUTO_PLAN:
        return found
    try:
        by_cost = plan(made.workload, made.cluster)
    except NoRoomError:
        return found
    hosted = [placement.table for placement in by_cost.plan.placements if placement.device == "host"]
    where = f", with {', '.join(hosted)} on the host" if hosted else ""
    return [f"- parallel.plan=auto: {gibibytes(by_cost.fullest.memory_bytes)} on the fullest rank{where}", *found]
