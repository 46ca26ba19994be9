"""From what a user asks for to the folder of a run that is ready to start. Needs no TensorFlow."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rankhouse.training.auc_groups import feature_number
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.checkpoint.host_memory import free_bytes
from rankhouse.training.config import AUTO_PLAN, Config, load_recipe, override
from rankhouse.training.continuation import check_continues, source_checkpoint, source_recipe
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import ConfigError
from rankhouse.training.models.model_tables import model_tables
from rankhouse.training.planner.hardware import PROFILES, hardware_profile
from rankhouse.training.planner.recipe_plan import plan_recipe
from rankhouse.training.planner.room import Room, check_room, cluster_of
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.launch import check_lanes

DEFAULT_RECIPE = "dlrm"

# In the place of a memory of which nothing is known: nothing is refused for want of it.
_UNKNOWN_BYTES = 2.0**60


@dataclasses.dataclass(frozen=True)
class StartRoom:
    """Where a run is going to start.

    Attributes:
        num_ranks: On how many ranks.
        free_bytes: What is free on the machine that they share; 0 where they are on several.
    """

    num_ranks: int
    free_bytes: int = 0

    @classmethod
    def of(cls, num_ranks: int, hosts: str | None = None) -> "StartRoom":
        """Returns the room of so many ranks on this machine, or on others, of whose memory nothing is known here."""
        return cls(num_ranks, free_bytes() if hosts is None else 0)


# What the saved state and the order of the samples depend on.
_FIXED_SETTINGS = (
    "data.train_split",
    "data.shuffle",
    "data.num_lanes",
    "model.bottom_mlp",
    "model.top_mlp",
    "optimizer.rule",
    "training.batch_size",
    "training.continue_from",
    "training.seed",
)


def new_run(
    folder: Path,
    *,
    recipe: str | Path | None = None,
    data: Path | None,
    settings: Sequence[str] = (),
    source: Path | None = None,
    overwrite: bool = False,
    room: StartRoom | None = None,
) -> RunFolder:
    """Makes the folder of a new run.

    Args:
        folder: Where.
        recipe: A shipped recipe by name, or a YAML file; None is the configuration of the run that `source` is of, and
            without one the recipe `dlrm`.
        data: The prepared dataset; None takes the recipe's `data.path`.
        settings: Settings to change, such as `optimizer.learning_rate=0.01`.
        source: The checkpoint, or the run whose newest it is, from which the new run goes on.
        overwrite: Delete the folder of an earlier run first.
        room: Where it is going to start, to find out early that it cannot.

    Raises:
        CheckpointError: There is no such source, or the new run cannot go on from it.
        ConfigError: The recipe or a setting is wrong, or no data is given.
        DatasetError: The dataset is wrong, or lacks a split.
        LaunchError: It is going to start on more ranks than can read the data.
        PlanError: Tables cannot be placed as the recipe says, or do not fit the memory.
        RunFolderError: The folder is there already, or is not a run's and so not ours to delete.
    """
    if recipe is None:
        recipe = source_recipe(source_checkpoint(source)) if source is not None else None
    config = load_recipe(recipe or DEFAULT_RECIPE, overrides=settings)
    config = _with_source(_checked(config, data), folder, source)
    _check_plan(config, room)
    if overwrite and folder.exists():
        RunFolder.open(folder).remove()
    return RunFolder.create(folder, config)


def resumed_run(
    folder: Path, *, data: Path | None = None, settings: Sequence[str] = (), room: StartRoom | None = None
) -> RunFolder:
    """Opens the folder of an earlier run, to go on with it.

    Args:
        folder: Where.
        data: Where the prepared dataset is now, if it was moved.
        settings: Settings to change, such as `training.epochs=2`.
        room: Where it is going to start, to find out early that it cannot.

    Raises:
        ConfigError: A setting is wrong, or cannot change any more because the run has saved its state.
        DatasetError: The dataset is gone or wrong.
        LaunchError: It is going to start on more ranks than can read the data.
        PlanError: Tables cannot be placed as the recipe says, or do not fit the memory.
        RunFolderError: There is no run.
    """
    run = RunFolder.open(folder)
    config = _checked(override(run.config, settings), data)
    if run.latest_checkpoint is not None:
        _check_unchanged(run, config)
    _check_plan(config, room)
    if config.parallel != run.config.parallel:
        run.clear_plan()
    run.write_config(config)
    return run


def steps_left(run: RunFolder) -> int:
    """Returns how many steps a run still has to do before it is finished."""
    config = run.config
    num_rows = PreparedDataset.open(run.dataset).split(config.data.train_split).num_rows
    done = run.result.num_steps if run.result is not None else 0
    return max(0, config.training.num_steps(num_rows) - done)


def _with_source(config: Config, folder: Path, source: Path | None) -> Config:
    """Puts the checkpoint to go on from into the configuration, and finds out early whether the run can."""
    if source is None and not config.training.continue_from:
        return config
    checkpoint = source_checkpoint(source or config.training.continue_from)
    if checkpoint.is_relative_to(folder.resolve()):
        raise ConfigError(
            f"{folder} cannot go on from its own checkpoint {checkpoint}: name the new run with --run, or go on with "
            "this one with --resume"
        )
    check_continues(Checkpoint.open(checkpoint), config, PreparedDataset.open(config.data.path))
    return dataclasses.replace(config, training=dataclasses.replace(config.training, continue_from=str(checkpoint)))


def _check_plan(config: Config, room: StartRoom | None) -> None:
    """Finds out early what the ranks would refuse; what a plan by cost becomes is known only where they measure."""
    if room is None:
        return
    check_lanes(config, num_ranks=room.num_ranks)
    rooms = [Room("this machine", tuple(range(room.num_ranks)), room.free_bytes or float("inf"))]
    hardware = hardware_profile(config.parallel.hardware or "2-cores")
    if not room.free_bytes:
        hardware = dataclasses.replace(hardware, memory_bytes=_UNKNOWN_BYTES)
    cluster = cluster_of(config, rooms, hardware)
    check_room(plan_recipe(config, PreparedDataset.open(config.data.path), cluster), config, rooms)


def _check_unchanged(run: RunFolder, config: Config) -> None:
    """Refuses what the run could not go on with, before its configuration is overwritten."""
    for key in _FIXED_SETTINGS:
        section, name = key.split(".")
        before, after = (getattr(getattr(each, section), name) for each in (run.config, config))
        if before != after:
            raise ConfigError(
                f"{key} is {before!r} in {run.path} and cannot become {after!r}, as the saved state depends on it; "
                "leave it, or start another run with --run"
            )


def _checked(config: Config, data: Path | None) -> Config:
    """Puts the path of the dataset into the configuration, and finds out early whether it can be used."""
    if data is None and not config.data.path:
        raise ConfigError("no data is given: name a prepared dataset or a file of raw logs with --data")
    path = (data or Path(config.data.path)).resolve()
    dataset = PreparedDataset.open(path)
    for split in (config.data.train_split, config.data.valid_split):
        dataset.split(split)
    feature_number(dataset.spec, config.training.auc_by)
    model_tables(config, dataset)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(path)))
    # Ranks and later starts may have another working directory.
    parallel = dataclasses.replace(
        config.parallel,
        plan=_absolute(config.parallel.plan, words=("", AUTO_PLAN)),
        hardware=_absolute(config.parallel.hardware, words=("", *PROFILES)),
        tables={
            name: dataclasses.replace(table, host_folder=str(Path(table.host_folder).resolve()))
            if table.host_folder
            else table
            for name, table in config.parallel.tables.items()
        },
    )
    return dataclasses.replace(config, parallel=parallel)


def _absolute(path: str, *, words: Sequence[str]) -> str:
    return path if path in words else str(Path(path).resolve())
