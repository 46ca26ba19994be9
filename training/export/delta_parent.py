"""Whether a version can be the parent of a delta: what is checked before any row is read."""

from rankhouse.embedding_cache.format.transform import read_features
from rankhouse.embedding_cache.format.version import Version
from rankhouse.training.data.fit import Fit
from rankhouse.training.errors import ExportError
from rankhouse.training.models.trained_model import TrainedModel


def check_parent(trained: TrainedModel, parent: Version) -> int:
    """Checks that a checkpoint went on from what a version holds.

    Returns:
        The optimizer's iteration up to which the version has what the checkpoint has.

    Raises:
        ExportError: It did not, or inputs stand for other values; the message says what to do.
    """
    _check_shape(trained, parent)
    lineage, source = dict(trained.checkpoint.lineage), parent.source
    if source is None:
        raise ExportError(
            f"version {parent.name} does not say which checkpoint it holds (it was made by {parent.origin.action!r}), "
            "so what changed since is not known; name a version that was exported of a run with --parent, or export in "
            "full, without --delta"
        )
    if source.checkpoint not in lineage:
        raise ExportError(
            f"{trained.checkpoint.path} did not go on from the checkpoint that version {parent.name} holds "
            f"({source.checkpoint[:8]}, of the run {source.run!r} after {source.step} steps), so what changed since is "
            f"not known; export a run that did (`rankhouse train --from` goes on from {source.run!r}), name the "
            "version that it did go on from with --parent, or export in full, without --delta"
        )
    _check_fit(trained, parent)
    return lineage[source.checkpoint]


def _check_shape(trained: TrainedModel, parent: Version) -> None:
    dataset = trained.dataset
    parts = {
        "tables": (
            {name: info.dim for name, info in dataset.tables.items()},
            {table.name: table.dim for table in parent.tables},
        ),
        "features": (
            [(feature.name, feature.table, feature.combiner) for feature in dataset.spec.categorical],
            [(feature.name, feature.table, feature.combiner) for feature in parent.features],
        ),
    }
    for what, (found, expected) in parts.items():
        if found != expected:
            raise ExportError(
                f"the {what} of {trained.run.path} are {found}, those of version {parent.name} {expected}; a delta "
                "changes rows only: export in full, without --delta"
            )


def _check_fit(trained: TrainedModel, parent: Version) -> None:
    expected = Fit(read_features(parent.path), tuple(layer.sha256 for layer in parent.record.vocabularies))
    if difference := trained.dataset.fit.difference(expected):
        raise ExportError(
            f"{trained.dataset.path} does not extend the fit of version {parent.name}: {difference}; so inputs would "
            "stand for other values: give the run the dataset that it was trained on, or export in full, without "
            "--delta"
        )
