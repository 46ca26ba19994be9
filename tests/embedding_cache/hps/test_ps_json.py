import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankhouse.embedding_cache.errors import HpsError
from rankhouse.embedding_cache.hps.fields import KINDS, PARTS
from rankhouse.embedding_cache.hps.ps_json import HpsTable, read_ps_json
from tests.embedding_cache.hps.hps_folder import ITEMS, USERS, model_entry, small_ps_json, write_ps_json

DATABASES = {
    "volatile_db": {"type": "redis_cluster", "address": "r0:7000;r1:7000", "password": "hunter2", "num_partitions": 16},
    "persistent_db": {"type": "rocks_db", "path": "/db", "read_only": False},
    "update_source": {"type": "kafka_message_queue", "brokers": "k:9092"},
}


def test_models_and_tables_are_read(tmp_path: Path) -> None:
    found = read_ps_json(small_ps_json(tmp_path))
    assert found.has_long_keys
    (model,) = found.models
    assert model.name == "shop"
    assert model.tables == (
        HpsTable("item", tmp_path / "shop/item", 3, 0.125, 2, "models[0].sparse_files[0]"),
        HpsTable("user", tmp_path / "shop/user", 2, 0.25, 2, "models[0].sparse_files[1]"),
    )


def test_tables_without_names_have_those_of_hps(tmp_path: Path) -> None:
    entry = model_entry(tmp_path, "shop", {"item": ITEMS, "user": USERS})
    del entry["embedding_table_names"]
    (model,) = read_ps_json(write_ps_json(tmp_path, entry)).models
    assert [table.name for table in model.tables] == ["sparse_embedding0", "sparse_embedding1"]


def test_a_relative_folder_is_beside_the_file(tmp_path: Path) -> None:
    path = small_ps_json(tmp_path, model={"sparse_files": ["shop/item", "shop/user"]})
    assert read_ps_json(path).models[0].tables[1].folder == tmp_path / "shop/user"


def test_each_setting_says_what_it_does_there_and_here(tmp_path: Path) -> None:
    models = [
        model_entry(tmp_path, "shop", {"item": ITEMS}, gpucacheper=0.5),
        model_entry(tmp_path, "feed", {"user": USERS}, refresh_interval=0.5),
    ]
    settings = {
        setting.name: setting for setting in read_ps_json(write_ps_json(tmp_path, *models, **DATABASES)).settings
    }
    assert settings["supportlonglong"].value == "true"
    assert settings["volatile_db.address"].value == '"r0:7000;r1:7000"'
    assert settings["models.gpucacheper"].value == "shop: 0.5, feed: 0.25"
    assert settings["models.hit_rate_threshold"].value == "0.9"
    assert settings["models.refresh_interval"].value == "feed: 0.5"
    assert "lookups are exact" in settings["models.hit_rate_threshold"].field.here
    named = {f"{part}.{name}" for part, values in DATABASES.items() for name in values}
    assert named < set(settings)
    assert set(settings) - named == {"supportlonglong", *(f"models.{name}" for name in (models[0] | models[1]))}


def test_a_password_is_not_shown(tmp_path: Path) -> None:
    found = read_ps_json(small_ps_json(tmp_path, **DATABASES))
    assert "hunter2" not in repr(found)
    with pytest.raises(HpsError) as error:
        read_ps_json(small_ps_json(tmp_path, volatile_db={"password": ["hunter2"]}))
    assert "hunter2" not in str(error.value)


def test_every_field_has_a_kind_and_both_meanings() -> None:
    fields = [field for part in PARTS.values() for field in part.values()]
    assert {field.kind for field in fields} == set(KINDS)
    assert all(field.there and field.here for field in fields)


def test_of_several_models_one_is_chosen(tmp_path: Path) -> None:
    models = [model_entry(tmp_path, name, {"item": ITEMS}) for name in ("shop", "feed")]
    found = read_ps_json(write_ps_json(tmp_path, *models))
    assert [model.name for model in found.chosen(None)] == ["shop", "feed"]
    assert [model.name for model in found.chosen("feed")] == ["feed"]
    with pytest.raises(HpsError, match=r"ps.json: has no model 'news'; it has shop, feed"):
        found.chosen("news")


def remove(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda entry: entry.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "a/b"}, r"models\[0\].model: 'a/b' cannot be a model's name"),
        ({"gpucache": "true"}, r'models\[0\].gpucache is "true"; expected true or false, without quotes'),
        ({"gpucacheper": "0.5"}, r"models\[0\].gpucacheper .* a number"),
        ({"max_batch_size": -1}, r"models\[0\].max_batch_size is -1; expected a whole number of 0 or more"),
        ({"sparse_files": "shop/item"}, r"models\[0\].sparse_files .* a list of texts"),
        ({"sparse_files": []}, r"models\[0\].sparse_files is empty"),
        ({"sparse_files": ["/a", "hdfs://b/c"]}, r"models\[0\].sparse_files\[1\] is 'hdfs://b/c'; copy the folder"),
        ({"embedding_vecsize_per_table": [3]}, "embedding_vecsize_per_table has 1 entries, sparse_files 2"),
        ({"embedding_vecsize_per_table": [3, 0]}, "embedding_vecsize_per_table .* whole numbers of 1 or more"),
        ({"default_value_for_each_table": [0.0]}, "default_value_for_each_table has 1 entries, sparse_files 2"),
        ({"default_value_for_each_table": [0.0, "0"]}, "default_value_for_each_table .* a list of numbers"),
        ({"default_value_for_each_table": [0, 10**400]}, r"default_value_for_each_table\[1\] is 1.*float32 holds"),
        ({"embedding_table_names": ["a", "a"]}, "embedding_table_names has the name 'a' twice"),
        ({"default_value_for_each_tabel": [1]}, "is no field of HPS; did you mean 'default_value_for_each_table'"),
        ({"supportlonglong": True}, r"models\[0\].supportlonglong .*; it belongs at the top of the file"),
        ({"num_partitions": 4}, "it belongs in volatile_db"),
        ({"i64_input_key": False}, r"models\[0\].i64_input_key gives model 'shop' keys of another width"),
        (remove("model"), r"has no models\[0\].model; HPS needs it too: the model's name"),
        (remove("sparse_files"), r"has no models\[0\].sparse_files"),
        (remove("default_value_for_each_table"), r"has no models\[0\].default_value_for_each_table"),
    ],
)
def test_a_wrong_model_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    entry = model_entry(tmp_path, "shop", {"item": ITEMS, "user": USERS})
    if callable(change):
        change(entry)
    else:
        entry |= change
    with pytest.raises(HpsError, match=message) as error:
        read_ps_json(write_ps_json(tmp_path, entry))
    assert str(tmp_path / "ps.json") in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"supportlonglong": None}, "has no supportlonglong; HPS needs it too"),
        ({"supportlonglong": 1}, "supportlonglong is 1; expected true or false"),
        ({"models": None}, "has no models"),
        ({"models": []}, r"models is \[\]; expected a list of one object or more"),
        ({"models": [7]}, r"models is \[7\]; expected a list of one object or more"),
        ({"volatile_db": 5}, "volatile_db is 5; expected an object"),
        ({"volatile_db": {"adress": "a"}}, "volatile_db.adress is no field of HPS; did you mean 'address'"),
        ({"persistent_db": {"address": "a"}}, "persistent_db.address is no field of HPS; it belongs in volatile_db"),
        ({"max_batch_size": 1}, "it belongs in volatile_db or in persistent_db or in update_source or in models"),
        ({"zzz": 1}, "zzz is no field of HPS; known are supportlonglong, "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(HpsError, match=message):
        read_ps_json(small_ps_json(tmp_path, **change))


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    entry = model_entry(tmp_path, "shop", {"item": ITEMS})
    with pytest.raises(HpsError, match="models has the name 'shop' twice"):
        read_ps_json(write_ps_json(tmp_path, entry, entry))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ('{"models": 1, "models": 2}', "the key 'models' stands twice"),
        ('{"supportlonglong": NaN}', "NaN is not a JSON number"),
        (json.dumps({"supportlonglong": True})[:-1] + ", // comment\n}", "is not valid JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "ps.json"
    path.write_text(content)
    with pytest.raises(HpsError, match=message):
        read_ps_json(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HpsError, match=r"none.json: cannot be read \(No such file"):
        read_ps_json(tmp_path / "none.json")
