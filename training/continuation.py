"""Going on from a checkpoint on another dataset: what is checked before a run starts. Needs no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path

from rankhouse.embedding_cache.format.files import file_record
from rankhouse.training.checkpoint_files import Checkpoint, find_checkpoints
from rankhouse.training.config import Config
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import CheckpointError
from rankhouse.training.run_folder import RunFolder


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


def vocabulary_checksums(dataset: PreparedDataset) -> tuple[str, ...]:
    """Returns the SHA-256 of each vocabulary layer of a dataset, base first; reads all of them.

    Raises:
        CorruptFileError: One cannot be read.
        DatasetError: The compiled transform does not say which they are.
    """
    return tuple(file_record(layer).sha256 for layer in dataset.layers)


def check_same_vocabularies(checkpoint: Checkpoint, dataset: PreparedDataset, checksums: Sequence[str]) -> None:
    """Checks that ids stand for what they did when a checkpoint was saved. Older releases did not note that.

    Raises:
        CheckpointError: They may not.
    """
    if checkpoint.vocabularies and checkpoint.vocabularies != tuple(checksums):
        raise CheckpointError(
            f"{checkpoint.path} was saved with other vocabularies than {dataset.path} has now "
            f"({_difference(checkpoint, dataset, checksums)}), so ids would stand for other values; give the run its "
            "own dataset, or start another one on this dataset with --from"
        )


def check_continues(checkpoint: Checkpoint, config: Config, dataset: PreparedDataset, checksums: Sequence[str]) -> None:
    """Checks that a new run can go on from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        config: The new run's.
        dataset: The new run's; its vocabularies may have more layers than those that the checkpoint was trained with.
        checksums: The dataset's `vocabulary_checksums`.

    Raises:
        CheckpointError: It cannot: the optimizer or the vocabularies are others.
    """
    rule, saved_by = type(config.optimizer.settings()).__name__, checkpoint.manifest["optimizer"]["name"]
    if rule != saved_by:
        raise CheckpointError(
            f"{checkpoint.path} was trained with {saved_by}, this run would use {rule}, which cannot go on with what "
            f"{saved_by} remembers of each row; set optimizer.rule to that of {saved_by}, or train without --from"
        )
    if not checkpoint.vocabularies:
        raise CheckpointError(
            f"{checkpoint.path} was saved by an older release, which did not note the vocabularies that it was trained "
            "with; let its run save another one: --resume with a larger training.epochs or training.max_steps"
        )
    if checkpoint.vocabularies != tuple(checksums[: len(checkpoint.vocabularies)]):
        raise CheckpointError(
            f"{dataset.path} does not extend the dataset that {checkpoint.path} was trained on "
            f"({_difference(checkpoint, dataset, checksums)}), so ids would stand for other values; make the dataset "
            "with `rankhouse data preprocess --extend` and that dataset, or train without --from"
        )


def _difference(checkpoint: Checkpoint, dataset: PreparedDataset, checksums: Sequence[str]) -> str:
    """Names the first vocabulary layer that is not what a checkpoint was trained with."""
    expected = checkpoint.vocabularies
    for number, (before, now) in enumerate(zip(expected, checksums, strict=False)):
        if before != now:
            return f"layer {number}, {dataset.layers[number].name}, is {now[:8]} and was {before[:8]}"
    return f"it has {len(checksums)} layers, the checkpoint was trained with {len(expected)}"
