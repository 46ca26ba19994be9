"""States as each rank of a plan holds them, all in one process: loading and writing parts needs no exchange."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankhouse.kernels.optimizer_settings import OptimizerSettings
from rankhouse.training.checkpoint import checkpoint
from rankhouse.training.checkpoint.checkpoint import Saving, TrainingState
from rankhouse.training.plan import Placement, Plan, check_plan, place
from rankhouse.training.ranks import Ranks
from tests.training.small_model import SPECS, build


def make_plan_by_hand(num_ranks: int, placed: Mapping[str, Placement | str]) -> Plan:
    """Makes a plan of the small model's tables from placements, or modes that `place` makes even."""
    tables = {spec.name: spec.table_spec() for spec in SPECS}
    placements = [
        place(tables[name], mode, num_ranks=num_ranks) if isinstance(mode, str) else mode
        for name, mode in ((spec.name, placed[spec.name]) for spec in SPECS)
    ]
    plan = Plan(tuple(tables.values()), tuple(placements), num_ranks)
    check_plan(plan)
    return plan


def pretend(plan: Plan, settings: OptimizerSettings) -> list[TrainingState]:
    """Returns the state of each rank of a plan, with other initial values than those of `build`."""
    size = plan.num_ranks
    return [build(Ranks(rank, size), seed=99, settings=settings, plan=plan) for rank in range(size)]


def load_all(path: Path, plan: Plan, settings: OptimizerSettings) -> list[TrainingState]:
    """Loads a checkpoint as each rank of a plan would."""
    states = pretend(plan, settings)
    for state in states:
        checkpoint._load(path, state, None)
    return states


def prepare(root: Path, states: Sequence[TrainingState], step: int) -> Saving:
    """Does what all ranks do together before they write their parts."""
    folder = checkpoint.step_folder(root, step)
    lineage = [(checkpoint._prepare(folder), int(states[0].optimizer.iterations))]
    manifest: dict[str, Any] = checkpoint._manifest(states[0], Ranks(0, len(states)), {})
    return Saving(folder, False, manifest | {"step": step, "lineage": lineage}, lineage)


def save_all(root: Path, states: Sequence[TrainingState], step: int) -> Path:
    """Saves a checkpoint as all ranks together would."""
    saving = prepare(root, states, step)
    parts = [state.part(rank) for rank, state in enumerate(states)]
    saving.commit([part.write(saving.folder) for part in parts], keep=None)
    return saving.folder
