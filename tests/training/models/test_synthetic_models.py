import pytest

from rankhouse.training.errors import PlanError
from rankhouse.training.models.synthetic_models import SYNTHETIC_MODELS, synthetic_model

# Tables, and GiB of float32 weights, as published in distributed-embeddings' readme of the suite; inputs, ids of a
# sample and summed widths follow from its configurations.
PUBLISHED = {
    "criteo": (26, 26, 26, 3328, 1.2),
    "tiny": (55, 58, 85, 672, 4.2),
    "small": (107, 116, 377, 2512, 26.3),
    "medium": (311, 337, 1611, 17280, 206.2),
    "large": (612, 669, 6312, 36608, 773.8),
    "jumbo": (1022, 1097, 16022, 118400, 3109.5),
    "colossal": (2002, 2153, 47302, 336768, 22327.4),
}


@pytest.mark.parametrize("name", SYNTHETIC_MODELS)
def test_sizes_are_the_published_ones(name: str) -> None:
    model = synthetic_model(name)
    gibibytes = round(model.weight_bytes / 2**30, 1)
    sizes = (model.num_tables, model.num_inputs, model.lookups_per_sample, model.output_dim, gibibytes)
    assert sizes == PUBLISHED[name]


@pytest.mark.parametrize("name", SYNTHETIC_MODELS)
def test_tables_and_inputs_are_those_that_the_sizes_count(name: str) -> None:
    model = synthetic_model(name)
    dims = {table.name: table.dim for table in model.tables}
    assert len(dims) == model.num_tables
    assert len(model.inputs) == model.num_inputs
    assert sum(table.lookups_per_sample for table in model.tables) == model.lookups_per_sample
    assert sum(dims[item.table] for item in model.inputs) == model.output_dim
    assert sum(table.weight_bytes for table in model.tables) == model.weight_bytes


def test_an_interaction_averages_neighbours_the_last_ones_too() -> None:
    assert synthetic_model("medium").layer_widths == (2469 + 25, 1024, 512, 256, 128, 1)
    assert synthetic_model("tiny").layer_widths == (672 + 10, 256, 128, 1)


def test_an_unknown_model_is_named_beside_the_nearest() -> None:
    with pytest.raises(PlanError, match="no synthetic model 'smal'; did you mean 'small'"):
        synthetic_model("smal")
