import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.embedding_cache.engine import Engine, OpenVersion
from rankhouse.embedding_cache.errors import HpsError
from rankhouse.embedding_cache.format.errors import ContentError, NotServableError
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import Origin
from rankhouse.embedding_cache.hps import external_order
from rankhouse.embedding_cache.hps.importing import ImportOptions, import_hps
from rankhouse.embedding_cache.hps.ps_json import read_ps_json
from rankhouse.serving.triton_models.dense import DensePart
from tests.embedding_cache.hps.hps_folder import (
    ITEMS,
    USERS,
    model_entry,
    row_of,
    small_ps_json,
    write_ps_json,
    write_table,
)
from tests.serving.small_version import write_dense_part

DEFAULTS = {"item": 0.125, "user": 0.25}
UNKNOWN = 12345
REQUESTS: list[dict[str, Any]] = [
    {"item": [7, -3, UNKNOWN], "user": [9]},
    {"item": [2**40], "user": [UNKNOWN, 5, 6]},
    {"item": [], "user": None},
]


def looked_up(version: Version, rows: Sequence[dict[str, Any]]) -> np.ndarray:
    transform = version.transform()
    batch = transform.apply(RawBatch.from_rows(transform.features, rows))
    return Engine().open(version.store, version.name).lookup(batch.ids, batch.lengths)


def truth(rows: Sequence[dict[str, Any]], *, is_mean: bool = False) -> np.ndarray:
    embeddings = []
    for row in rows:
        bags = []
        for name, table in {"item": ITEMS, "user": USERS}.items():
            keys = row[name] or []
            pooled = sum((row_of(table, key, DEFAULTS[name]) for key in keys), 0 * row_of(table, 0, 0.0))
            bags.append(pooled / len(keys) if is_mean and keys else pooled)
        embeddings.append(np.concatenate(bags))
    return np.array(embeddings, np.float32)


def imported(path: Path, **options: Any) -> Version:
    (version,) = import_hps(read_ps_json(path), store=path.parent / "store", options=ImportOptions(**options))
    return version


def dense_part(folder: Path, num_dense: int, embeddings_dim: int) -> DensePart:
    random = np.random.default_rng(3)
    weights = [random.normal(size=(width, 1)).astype(np.float32) for width in (num_dense, embeddings_dim)]
    write_dense_part(folder / "dense.onnx", *weights)
    return DensePart(folder / "dense.onnx")


@pytest.mark.parametrize("combiner", ["sum", "mean"])
def test_lookups_equal_the_files(tmp_path: Path, combiner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_order, "_BLOCK_BYTES", 24)
    version = imported(small_ps_json(tmp_path), combiner=combiner)
    np.testing.assert_allclose(looked_up(version, REQUESTS), truth(REQUESTS, is_mean=combiner == "mean"), rtol=1e-6)
    assert (version.model, version.origin, version.parent, version.source) == ("shop", Origin("import"), None, None)
    assert [(table.name, table.num_rows, table.dim) for table in version.tables] == [("item", 7, 3), ("user", 6, 2)]
    assert [(feature.name, feature.combiner) for feature in version.features] == [
        ("item", combiner),
        ("user", combiner),
    ]
    assert {(feature.dtype, feature.is_list) for feature in version.transform().features} == {("int64", True)}
    assert version.golden() == ()
    assert VersionStore(tmp_path / "store").open().name == version.name


def test_ids_are_in_the_order_of_keys(tmp_path: Path) -> None:
    version = imported(small_ps_json(tmp_path))
    ids = version.transform().vocabularies.find_ints("item", np.array([-3, 0, 7, 2**40, UNKNOWN]))
    assert ids.tolist() == [3, 4, 5, 6, 2]
    np.testing.assert_array_equal(version.rows("item", np.arange(3)), [[0] * 3, [0.125] * 3, [0.125] * 3])


def test_without_a_dense_part_it_cannot_be_served(tmp_path: Path) -> None:
    version = imported(small_ps_json(tmp_path))
    with pytest.raises(NotServableError, match="has no dense part and cannot be served"):
        _ = version.dense_path


def test_concat_keeps_the_keys_apart_as_hps_does(tmp_path: Path) -> None:
    path = small_ps_json(tmp_path, model={"maxnum_catfeature_query_per_table_per_sample": [2, 1]})
    version = imported(path, combiner="concat")
    assert [feature.name for feature in version.features] == ["item_0", "item_1", "user_0"]
    found = looked_up(version, [{"item_0": 7, "item_1": UNKNOWN, "user_0": 5}, {"item_1": -3}])
    item, user = np.full(3, DEFAULTS["item"]), np.full(2, DEFAULTS["user"])
    np.testing.assert_array_equal(
        found, [np.concatenate([ITEMS[7], item, USERS[5]]), np.concatenate([item, ITEMS[-3], user])]
    )


@pytest.mark.parametrize(("row_type", "tolerance"), [("float16", 1e-3), ("bfloat16", 1e-2), ("int8", 0.05)])
def test_rows_are_stored_as_the_row_type(tmp_path: Path, row_type: str, tolerance: float) -> None:
    version = imported(small_ps_json(tmp_path), row_type=row_type)
    assert {table.dtype for table in version.tables} == {row_type}
    requests = [{"item": [7], "user": [9]}, {"item": [UNKNOWN], "user": [6]}]
    np.testing.assert_allclose(looked_up(version, requests), truth(requests), rtol=tolerance, atol=tolerance)


def test_keys_of_32_bits_lie_as_int64(tmp_path: Path) -> None:
    rows = {2**32 - 1: (1.0, 2.0), 0: (3.0, 4.0), 2**31: (5.0, 6.0)}
    entry = model_entry(tmp_path, "shop", {"user": rows})
    version = imported(write_ps_json(tmp_path, entry, supportlonglong=False))
    requests = [{"user": [key]} for key in (*rows, 7)]
    np.testing.assert_array_equal(looked_up(version, requests), [*rows.values(), (0.125, 0.125)])


def test_each_model_becomes_a_version_and_equal_tables_share_their_file(tmp_path: Path) -> None:
    shuffled = dict(reversed(ITEMS.items()))
    models = [
        model_entry(tmp_path, "shop", {"item": ITEMS, "user": USERS}),
        model_entry(tmp_path, "feed", {"item": shuffled}),
    ]
    found = read_ps_json(write_ps_json(tmp_path, *models))
    shop, feed = import_hps(found, store=tmp_path / "store")
    assert [shop.model, feed.model] == ["shop", "feed"]
    assert shop.tables[0].segments == feed.tables[0].segments
    np.testing.assert_array_equal(looked_up(feed, [{"item": [7]}]), [ITEMS[7]])
    assert [version.model for version in import_hps(found, store=tmp_path / "other", model="feed")] == ["feed"]
    assert len(VersionStore(tmp_path / "other").names()) == 1


@pytest.mark.parametrize(("combiner", "width"), [("sum", 5), ("mean", 5), ("concat", 10)])
@pytest.mark.parametrize("row_type", ["float32", "int8"])
def test_a_dense_part_comes_with_golden_requests(tmp_path: Path, combiner: str, width: int, row_type: str) -> None:
    part = dense_part(tmp_path, 2, width)
    version = imported(small_ps_json(tmp_path), combiner=combiner, row_type=row_type, dense=part)
    assert version.dense_path.read_bytes() == part.path.read_bytes()
    assert (version.num_dense, version.embeddings_dim) == (2, width)
    transform = version.transform()
    assert [feature.name for feature in transform.features][:2] == ["dense_0", "dense_1"]
    keys = set()
    for golden in version.golden():
        batch = transform.apply(RawBatch.from_rows(transform.features, golden.rows()))
        scores = part.scores(batch.dense, Engine().open(version.store, version.name).lookup(batch.ids, batch.lengths))
        np.testing.assert_allclose(scores, golden.scores, rtol=0, atol=1e-5)
        keys |= set(batch.ids.tolist())
    assert sum(len(golden.scores) for golden in version.golden()) == 64
    assert {2, 3, 4, 5, 6} <= keys


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ({}, {"combiner": "max"}, "'max' is no combiner; expected one of sum, mean, concat"),
        ({}, {"dense": 4}, "takes embeddings of width 4, the 2 features of model 'shop' are 5 wide in all; is it this"),
        ({}, {"dense": 10}, "takes embeddings of width 10, .* it fits the combiner concat"),
        ({"embedding_table_names": ["item", "dense_1"]}, {"dense": 5}, "would have two features 'dense_1'"),
        ({"embedding_table_names": ["item", "dense"]}, {"dense": 10, "combiner": "concat"}, "two features 'dense_0'"),
        ({"sparse_files": ["shop/item", "shop/none"]}, {}, "shop/none/key: there is no such file"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, model: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    path = small_ps_json(tmp_path, model=model)
    if "dense" in options:
        options = {**options, "dense": dense_part(tmp_path, 2, options["dense"])}
    with pytest.raises(HpsError, match=message):
        imported(path, **options)
    assert not (tmp_path / "store").exists()


def test_of_several_models_a_dense_part_needs_one_chosen(tmp_path: Path) -> None:
    models = [model_entry(tmp_path, name, {"item": ITEMS}) for name in ("shop", "feed")]
    found, options = read_ps_json(write_ps_json(tmp_path, *models)), ImportOptions(dense=dense_part(tmp_path, 1, 3))
    with pytest.raises(HpsError, match="has the models shop, feed; choose the one that the dense part belongs to"):
        import_hps(found, store=tmp_path / "store", options=options)
    assert not (tmp_path / "store").exists()
    (version,) = import_hps(found, store=tmp_path / "store", model="feed", options=options)
    assert version.num_dense == 1


def test_a_fault_in_the_last_model_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    models = [model_entry(tmp_path, "shop", {"item": ITEMS}), model_entry(tmp_path, "feed", {"user": USERS})]
    write_table(tmp_path / "feed/user", {**USERS, 9: (3.0, np.nan)})
    with pytest.raises(HpsError, match="feed/user/emb_vector: row 2, of key 9, holds nan"):
        import_hps(read_ps_json(write_ps_json(tmp_path, *models)), store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_an_unknown_row_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match="'float64' is no row type"):
        imported(small_ps_json(tmp_path), row_type="float64")


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    write_dense_part(tmp_path / "dense.onnx", np.full((1, 1), np.nan, np.float32), np.ones((5, 1), np.float32))
    with pytest.raises(HpsError, match="gives scores that are no finite numbers"):
        imported(small_ps_json(tmp_path), dense=DensePart(tmp_path / "dense.onnx"))


def test_files_that_change_during_the_import_are_noticed(tmp_path: Path) -> None:
    path = small_ps_json(tmp_path)

    def change(done: int, total: int) -> None:
        if done == total:  # All rows were read.
            with open(tmp_path / "shop/item/emb_vector", "r+b") as file:
                file.write(struct.pack("<12f", *range(12)))

    with pytest.raises(HpsError, match=r"table 'item' of model 'shop' gives key .* another row than the files do"):
        import_hps(read_ps_json(path), store=tmp_path / "store", on_bytes=change)
    assert VersionStore(tmp_path / "store").names() == []


def test_scores_of_a_version_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = OpenVersion.lookup
    monkeypatch.setattr(OpenVersion, "lookup", lambda *arguments: lookup(*arguments) + np.float32(0.5))
    with pytest.raises(HpsError, match=r"model 'shop' scores .* where HPS's files and .*dense\.onnx give"):
        imported(small_ps_json(tmp_path), dense=dense_part(tmp_path, 2, 5))
    assert VersionStore(tmp_path / "store").names() == []


def test_progress_comes_to_its_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    found = read_ps_json(small_ps_json(tmp_path))
    import_hps(found, store=tmp_path / "store", on_bytes=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


KEYS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**32 - 1, 2**32]),
    st.integers(-5, 5),
)
VALUES = st.floats(width=32, allow_nan=False, allow_infinity=False)
TABLES = st.lists(st.dictionaries(KEYS, st.tuples(VALUES, VALUES), min_size=1), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(TABLES, st.lists(KEYS, max_size=8), st.floats(-100, 100, width=32))
def test_every_key_gives_its_row_and_no_other_key_does(
    tmp_path_factory: pytest.TempPathFactory, tables: list[dict[int, Any]], others: list[int], default: float
) -> None:
    folder = tmp_path_factory.mktemp("hps")
    named = {f"t{number}": rows for number, rows in enumerate(tables)}
    entry = model_entry(folder, "shop", named, default_value_for_each_table=[default] * len(tables))
    version = imported(write_ps_json(folder, entry))
    keys = sorted({key for rows in tables for key in rows} | set(others))
    found = looked_up(version, [{name: [key] for name in named} for key in keys])
    expected = [np.concatenate([row_of(rows, key, default) for rows in tables]) for key in keys]
    np.testing.assert_array_equal(found, expected)
