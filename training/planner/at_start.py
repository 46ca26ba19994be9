"""The plan of a run at its start: rank 0 decides, with the memory and the hardware at hand, and all others get it."""

import socket
from typing import Any

from rankhouse.training.checkpoint.host_memory import free_bytes
from rankhouse.training.config import AUTO_PLAN, Config
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import NoRoomError, PlanError
from rankhouse.training.models.model_tables import model_tables
from rankhouse.training.plan import Plan, TableSpec
from rankhouse.training.planner.calibration import calibrate
from rankhouse.training.planner.forecast import forecast
from rankhouse.training.planner.hardware import HardwareProfile, hardware_profile
from rankhouse.training.planner.recipe_plan import plan_recipe, recipe_workload
from rankhouse.training.planner.room import Room, check_room, cluster_of, rooms_of_machines
from rankhouse.training.ranks import Ranks

# Tables of this size are larger than caches, and looked up in a second or two.
_CALIBRATION_BYTES = 1 << 26


def plan_at_start(config: Config, dataset: PreparedDataset, *, ranks: Ranks, earlier: Plan | None = None) -> Plan:
    """Decides which rank holds which of a dataset's tables; collective.

    Args:
        config: The recipe.
        dataset: Says which tables there are.
        ranks: The ranks that train together.
        earlier: The plan with which the run began. A plan by cost is kept, on as many ranks and for the same tables, as
            another measurement could give another one.

    Raises:
        ConfigError: The recipe does not go with the tables that learn their keys; on all ranks alike.
        NoRoomError: The plan does not fit the memory at hand; on all ranks alike.
        PlanError: The tables cannot be placed as the recipe says; on all ranks alike.
    """
    sizes = [(name, info.num_rows, info.dim) for name, info in model_tables(config, dataset).items()]
    kept = earlier if _goes_on(config, sizes, ranks, earlier) else None
    told = ranks.exchange_json([socket.gethostname(), free_bytes(), kept is not None], name="room")
    rooms = rooms_of_machines([(name, free) for name, free, _ in told])
    measures = config.parallel.plan == AUTO_PLAN and not config.parallel.hardware and not told[0][2]
    # Collective, so that a rank that decides nothing measures as well.
    measured = calibrate("the hardware at hand", ranks=ranks, table_bytes=_CALIBRATION_BYTES) if measures else None
    decision = _decide(config, dataset, rooms, measured=measured, kept=kept) if ranks.rank == 0 else {}
    decision = ranks.exchange_json(decision, name="plan")[0]
    if "plan" in decision:
        return Plan.from_document(decision["plan"])
    raise NoRoomError(decision["no_room"]) if "no_room" in decision else PlanError(decision["problem"])


def _decide(
    config: Config, dataset: PreparedDataset, rooms: list[Room], *, measured: HardwareProfile | None, kept: Plan | None
) -> dict[str, Any]:
    """Returns the plan, or why there is none."""
    try:
        hardware = measured or hardware_profile(config.parallel.hardware or "2-cores")
        cluster = cluster_of(config, rooms, hardware)
        if kept is not None:
            made = forecast(kept, recipe_workload(config, dataset).held_as(kept.dtypes), cluster)
        else:
            made = plan_recipe(config, dataset, cluster)
        check_room(made, config, rooms)
    except NoRoomError as error:
        return {"no_room": str(error)}
    except PlanError as error:
        return {"problem": str(error)}
    return {"plan": made.plan.document()}


def _goes_on(config: Config, sizes: list[tuple[str, int, int]], ranks: Ranks, earlier: Plan | None) -> bool:
    if earlier is None or config.parallel.plan != AUTO_PLAN or earlier.num_ranks != ranks.size:
        return False
    return [_size(table) for table in earlier.tables] == sizes


def _size(table: TableSpec) -> tuple[str, int, int]:
    return (table.name, table.num_rows, table.dim)
