"""Going on from a checkpoint on another dataset: what is checked before a run starts. Needs no TensorFlow."""

from pathlib import Path

from rankhouse.training.checkpoint.files import Checkpoint, find_checkpoints
from rankhouse.training.config import Config
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import CheckpointError
from rankhouse.training.runs.folder import RunFolder


def source_checkpoint(path: Path | str) -> Path:
    """Returns the folder of the checkpoint that a user named: that one, or the newest of a run.

    Raises:
        CheckpointError: There is none.
    """
    return find_checkpoints(path)[-1].resolve()


def source_recipe(checkpoint: Path) -> Path | None:
    """Returns the configuration of the run that saved a checkpoint, or None where it lies in no run's folder."""
    recipe = RunFolder(checkpoint.parents[1]).config_file
    return recipe if recipe.is_file() else None


def source_dataset(checkpoint: Path) -> Path | None:
    """Returns the dataset of the run that saved a checkpoint, or None where it lies in no run's folder."""
    recipe = source_recipe(checkpoint)
    return RunFolder(recipe.parent).dataset if recipe is not None else None


def check_same_fit(checkpoint: Checkpoint, dataset: PreparedDataset) -> None:
    """Checks that inputs stand for what they did when a checkpoint was saved. Older releases did not note that.

    Raises:
        CheckpointError: They may not.
    """
    before = checkpoint.fit
    if before is None:
        return
    fit = dataset.fit
    if fit == before:
        return
    difference = fit.difference(before) or (
        f"its vocabularies have {len(fit.vocabularies)} layers, had {len(before.vocabularies)}"
    )
    raise CheckpointError(
        f"{checkpoint.path} was trained on another fit than {dataset.path} has now: {difference}; so inputs would "
        "stand for other values: give the run its own dataset, or start another one on this dataset with --from"
    )


def check_continues(checkpoint: Checkpoint, config: Config, dataset: PreparedDataset) -> int:
    """Checks that a new run can go on from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        config: The new run's.
        dataset: The new run's; its vocabularies may have more layers than those that the checkpoint was trained with.

    Returns:
        The number of layers of the vocabularies that the checkpoint was trained with.

    Raises:
        CheckpointError: It cannot: the optimizer, the statistics or the vocabularies are others.
    """
    rule, saved_by = type(config.optimizer.settings()).__name__, checkpoint.manifest["optimizer"]["name"]
    if rule != saved_by:
        raise CheckpointError(
            f"{checkpoint.path} was trained with {saved_by}, this run would use {rule}, which cannot go on with what "
            f"{saved_by} remembers of each row; set optimizer.rule to that of {saved_by}, or train without --from"
        )
    if checkpoint.fit is None:
        raise CheckpointError(
            f"{checkpoint.path} was saved by an older release, which did not note the statistics and vocabularies that "
            "it was trained with; let its run save another one: --resume with a larger training.epochs or "
            "training.max_steps"
        )
    if difference := dataset.fit.difference(checkpoint.fit):
        raise CheckpointError(
            f"{dataset.path} does not extend the dataset that {checkpoint.path} was trained on: {difference}; so "
            "inputs would stand for other values: make the dataset with `rankhouse data preprocess --extend` and that "
            "dataset, or train without --from"
        )
    return len(checkpoint.fit.vocabularies)


def newest_event_learnt(newest: float | None, *, before: float | None) -> float | None:
    """Returns when the newest event that a run learns from, or that was learnt before it, happened (unix seconds).

    Args:
        newest: That of the run's own rows; where it is not known, neither is the whole: an event of before would make
            the model look older than it is.
        before: That of what it goes on from; None if it is not known, or there is nothing.
    """
    return newest if newest is None or before is None else max(newest, before)
