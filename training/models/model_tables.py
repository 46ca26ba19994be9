"""The tables of a model: those of its dataset, and how many rows a recipe gives to those that learn their keys."""

from rankhouse.training.config import Config
from rankhouse.training.data.prepared import PreparedDataset, TableInfo
from rankhouse.training.errors import ConfigError


def model_tables(config: Config, dataset: PreparedDataset) -> dict[str, TableInfo]:
    """Returns the tables by name, in the order of the feature spec; what learns its keys has a row for each.

    Raises:
        ConfigError: The recipe does not say how large a table that learns its keys is, or says so of another one.
    """
    learnt, given = dataset.spec.learnt_tables, config.model.vocabularies
    for name in learnt:
        if name not in given:
            raise ConfigError(
                f"table {name!r} of {dataset.path} learns its keys, and the recipe does not say how many; write it to "
                f"model.vocabularies, as {{{name}: {{capacity: 1000000}}}}"
            )
    for name in given:
        if name not in learnt:
            raise ConfigError(
                f"model.vocabularies names {name!r}, which is no table of {dataset.path} that learns its keys "
                f"({', '.join(learnt) or 'it has none'}); its features need `vocabulary: learnt` in the feature spec, "
                "or leave the entry out"
            )
    return {
        name: TableInfo(given[name].capacity, table.dim) if name in learnt else table
        for name, table in dataset.tables.items()
    }
