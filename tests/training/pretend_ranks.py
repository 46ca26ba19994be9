"""States as each rank of a plan holds them, all in one process: loading and writing parts needs no exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import OptimizerSettings
from rankhouse.training import checkpoint
from rankhouse.training.checkpoint import Saving, TrainingState
from rankhouse.training.distributed_embedding import TableShard
from rankhouse.training.embedding_specs import EmbeddingSpec
from rankhouse.training.optimizers import Optimizer
from rankhouse.training.plan import Placement, Plan, TableSpec, check_plan, place
from rankhouse.training.ranks import Ranks
from tests.training.small_model import DIM, SPECS


@dataclass(frozen=True)
class Tables:
    """What a checkpoint needs to know of a layer: zeros in the rectangles that one rank holds."""

    specs: Sequence[EmbeddingSpec]
    plan: Plan
    shards: Sequence[TableShard]


def make_plan_by_hand(num_ranks: int, placed: Mapping[str, Placement | str]) -> Plan:
    """Makes a plan of the small model's tables from placements, or modes that `place` makes even."""
    tables = {spec.name: TableSpec(spec.name, spec.input_dim, spec.output_dim) for spec in SPECS}
    placements = [
        place(tables[name], mode, num_ranks=num_ranks) if isinstance(mode, str) else mode
        for name, mode in ((spec.name, placed[spec.name]) for spec in SPECS)
    ]
    plan = Plan(tuple(tables.values()), tuple(placements), num_ranks)
    check_plan(plan)
    return plan


def pretend(plan: Plan, rank: int, settings: OptimizerSettings) -> TrainingState:
    """Returns the state of one rank."""
    shards = [
        TableShard(
            table,
            tf.Variable(tf.zeros([spec.num_rows, spec.dim])),
            plan.placement(table).mode == "data_parallel",
            *(spec.row_start, spec.row_stop, spec.column_start, spec.column_stop),
        )
        for table, spec in plan.shards_of(rank)
    ]
    kernel = tf.Variable(np.zeros((DIM, 1), np.float32))
    optimizer = Optimizer(settings, tables=[shard.variable for shard in shards], dense=[kernel], learning_rate=0.1)
    return TrainingState(Tables(SPECS, plan, shards), {"kernel": kernel}, optimizer)


def load_all(path: Path, plan: Plan, settings: OptimizerSettings) -> list[TrainingState]:
    """Loads a checkpoint as each rank of a plan would."""
    states = [pretend(plan, rank, settings) for rank in range(plan.num_ranks)]
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
