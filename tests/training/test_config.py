from pathlib import Path

import pytest

from rankhouse.training.config import (
    Config,
    TableConfig,
    TrainingConfig,
    find_recipe,
    load_recipe,
    override,
    parse_config,
)
from rankhouse.training.errors import ConfigError


def test_the_shipped_recipe_loads_by_name_and_by_path() -> None:
    recipe = load_recipe("dlrm")
    assert recipe == load_recipe(find_recipe("dlrm"))
    assert recipe.model.bottom_mlp == (64, 32)


def test_an_empty_recipe_is_all_defaults() -> None:
    assert parse_config("", source="empty") == Config()


def test_the_resolved_configuration_reads_back_equal() -> None:
    config = load_recipe("dlrm", overrides=["data.path='a: b'", "model.top_mlp=[]", "optimizer.learning_rate=1e-9"])
    assert parse_config(config.to_yaml(), source="resolved") == config


def test_tables_are_decided_by_name() -> None:
    decided = 'parallel.tables={item: {mode: row_wise, ranks: [0, 1]}, "ad_*": {device: host, dtype: bfloat16}}'
    config = load_recipe("dlrm", overrides=[decided, "parallel.plan=auto", "parallel.hardware=h100"])
    assert config.parallel.tables["item"] == TableConfig(mode="row_wise", ranks=(0, 1))
    assert config.parallel.tables["ad_*"] == TableConfig(device="host", dtype="bfloat16")
    assert parse_config(config.to_yaml(), source="resolved") == config
    assert not override(config, ["parallel.tables={}"]).parallel.tables
    assert override(config, ["parallel.plan=", "parallel.hardware="]).parallel.plan == ""


def test_overrides_are_applied_in_order() -> None:
    config = override(Config(), ["training.seed=3", "optimizer.learning_rate=1e-3", "training.seed=4"])
    assert (config.training.seed, config.optimizer.learning_rate) == (4, 0.001)


def test_an_integer_is_a_number() -> None:
    assert override(Config(), ["optimizer.learning_rate=1"]).optimizer.learning_rate == 1.0


def test_a_document_and_tables_cannot_both_decide() -> None:
    with pytest.raises(ConfigError, match=r"parallel\.tables names item; leave one of them out"):
        override(Config(), ["parallel.tables={item: {mode: row_wise}}", "parallel.plan=plan.json"])


@pytest.mark.parametrize(
    ("settings", "num_steps"),
    [(TrainingConfig(batch_size=100, epochs=2), 6), (TrainingConfig(batch_size=100, epochs=2, max_steps=4), 4)],
)
def test_steps_of_a_run(settings: TrainingConfig, num_steps: int) -> None:
    assert settings.num_steps(num_rows=201) == num_steps


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optimizer.learning_rat=1", "unknown key optimizer.learning_rat; did you mean optimizer.learning_rate?"),
        ("trainin.seed=1", "unknown key trainin; did you mean training?"),
        ("training.zzz=1", "unknown key training.zzz; known keys of training: batch_size, "),
        ("training.seed=abc", "training.seed is 'abc'; expected an integer"),
        ("training.epochs=true", "training.epochs is True; expected an integer"),
        ("optimizer.learning_rate=fast", "optimizer.learning_rate is 'fast'; expected a number"),
        ("optimizer.learning_rate=0", "optimizer.learning_rate is 0.0; expected a number above 0"),
        (
            "optimizer.initial_accumulator_value=-1",
            "optimizer: initial_accumulator_value is -1.0: expected",
        ),
        ("optimizer.rule=adamw", "optimizer.rule is 'adamw'; expected one of 'adagrad', 'sgd', 'momentum', "),
        ("optimizer.kind=exact", "optimizer.kind is 'exact', but adagrad has no such setting; leave it out, or take"),
        ("optimizer.clip_global_norm=-1", "optimizer.clip_global_norm is -1.0; expected a number of at least 0"),
        ("optimizer.warmup_steps=-1", "optimizer.warmup_steps is -1; expected at least 0"),
        ("optimizer.weight_decay=.nan", "optimizer: weight_decay is nan: expected a number of at least 0"),
        (
            "parallel.tables={item: {mod: row_wise}}",
            "unknown key parallel.tables.item.mod; did you mean parallel.tables.it",
        ),
        (
            "parallel.tables={item: {mode: grid}}",
            "parallel.tables.item.mode is 'grid'; expected one of 'data_parallel'",
        ),
        (
            "parallel.tables={item: {dtype: int8}}",
            "parallel.tables.item.dtype is 'int8'; expected one of 'float32', 'bfloat16', 'float16'",
        ),
        ("parallel.tables={item: {ranks: [a]}}", "parallel.tables.item.ranks is 'a'; expected an integer"),
        (
            "parallel.tables={item: row_wise}",
            "parallel.tables.item must be a mapping of keys to values, not 'row_wise'; its keys are mode, ranks",
        ),
        ("parallel.tables=[item]", "parallel.tables is ['item']; expected a mapping such as"),
        ("parallel.hardware=a100", "parallel.hardware is 'a100'; expected none without parallel.plan=auto"),
        ("parallel.memory_gib=-1", "parallel.memory_gib is -1.0; expected a number of at least 0"),
        ("training.batch_size=0", "training.batch_size is 0; expected at least 1"),
        ("model.top_mlp=3", "model.top_mlp is 3; expected a list of integers"),
        ("model.top_mlp=[8, 0]", "model.top_mlp is 0; expected widths of at least 1"),
        ("data.shuffle=1", "data.shuffle is 1; expected true or false"),
        ("training=1", "--set training=1: expected section.key=value"),
        ("batch_size=1", "expected section.key=value, such as training.batch_size=1"),
        ("training.seed", "--set training.seed: expected section.key=value"),
        ("training.seed=[", "--set training.seed=[: '[' is not a YAML value"),
        (
            "parallel.data_parallel_threshold_rows=-1",
            "parallel.data_parallel_threshold_rows is -1; expected at least 0",
        ),
        (
            "parallel.wire_forward=half",
            "parallel.wire_forward is 'half'; expected one of 'float32', 'bfloat16', 'float16', 'int8'",
        ),
        ("parallel.wire_max_error=.nan", "parallel.wire_max_error is nan; expected a number of at least 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        override(Config(), [setting])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training: {sed: 1}", "unknown key training.sed; did you mean training.seed?"),
        ("training: 3", "training must be a mapping"),
        ("- 1", "a recipe must be a mapping"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_a_wrong_recipe_is_refused_with_its_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.yaml") as error:
        load_recipe(path)
    assert message in str(error.value)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"there is no recipe 'dlmr'.*dlrm"):
        load_recipe("dlmr")
