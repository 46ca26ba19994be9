"""The engine on NumPy arrays. The truth is `Version.rows`, and sums of it."""

import itertools
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.engine import Answer, Engine, OpenVersion
from rankhouse.embedding_cache.errors import BatchError, ClosedError, OptionError
from rankhouse.embedding_cache.format.errors import (
    ContentError,
    CorruptFileError,
    FormatError,
    ManifestError,
    VersionNotFoundError,
)
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.kernels import arrays
from rankhouse.kernels.executor import Executor
from tests.embedding_cache.format.small_store import forge
from tests.embedding_cache.random_store import FEATURES, pooled, random_batch, write_random, write_random_delta

STORES = Path(__file__).parent / "format"
NUM_DELTAS = 6


@pytest.fixture(scope="module", params=[300, 4 << 30], ids=["several segments", "one segment"])
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Version]:
    """A whole version, and deltas over it."""
    folder = tmp_path_factory.mktemp("chain")
    store = VersionStore(folder / "store", segment_bytes=request.param)
    versions = [write_random(store, folder / "parts")]
    for seed in range(1, 1 + NUM_DELTAS):
        versions.append(write_random_delta(store, folder / "parts", versions[-1], seed=seed))
    return versions


def opened(version: Version, engine: Engine | None = None, *, verify: bool = True) -> OpenVersion:
    return (engine or Engine()).open(version.store, version.name, verify=verify)


@pytest.mark.parametrize("memory", ["map", "pin"])
def test_rows_of_all_versions_are_those_of_the_files(chain: list[Version], memory: str) -> None:
    engine = Engine(memory=memory)
    for version in chain:
        found = opened(version, engine)
        for table in version.tables:
            ids = np.random.default_rng(3).permutation(table.num_rows)
            assert found.gather(table.name, ids).tobytes() == version.rows(table.name, ids).tobytes()


@pytest.mark.parametrize("memory", ["map", "pin"])
@pytest.mark.parametrize("num_samples", [0, 1, 7, 300])
def test_bags_are_pooled(chain: list[Version], num_samples: int, memory: str) -> None:
    engine = Engine(memory=memory)
    for version in (chain[0], chain[-1]):
        ids_N, lengths_FB = random_batch(version, num_samples)
        found = opened(version, engine).lookup(ids_N, lengths_FB)
        assert (found.dtype, found.shape) == (np.float32, (num_samples, version.embeddings_dim))
        np.testing.assert_allclose(found, pooled(version, ids_N, lengths_FB), rtol=1e-5, atol=1e-6)


def test_results_are_the_bits_of_a_lookup_in_the_effective_tables(chain: list[Version]) -> None:
    version = chain[-1]
    ids_N, lengths_FB = random_batch(version, 50)
    names = [table.name for table in version.tables]
    expected = arrays.pooled_lookup(
        [version.table_rows(table.name).gather(np.arange(table.num_rows)) for table in version.tables],
        ids_N,
        np.concatenate([[0], np.cumsum(lengths_FB.ravel(), dtype=np.int64)]),
        feature_tables=[names.index(feature.table) for feature in version.features],
        combiners=[feature.combiner for feature in version.features],
    )
    with Executor(2) as executor:
        for num_threads in (None, 1, 3, executor):
            found = opened(version).lookup(ids_N, lengths_FB, num_threads=num_threads)
            assert found.tobytes() == expected.tobytes()


def test_bags_of_one_id_each(chain: list[Version]) -> None:
    for version in (chain[0], chain[-1]):
        ids_N, lengths_FB = random_batch(version, 4000, most=0)
        lengths_FB = lengths_FB + np.int32(1)
        ids_N = np.random.default_rng(0).integers(0, 90, lengths_FB.size)
        found = opened(version).lookup(ids_N, lengths_FB)
        np.testing.assert_allclose(found, pooled(version, ids_N, lengths_FB), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiners", [None, ["sum", "mean", "sqrtn", "sqrtn", "mean"]])
def test_weights_and_combiners(chain: list[Version], combiners: list[str] | None) -> None:
    version = chain[-1]
    ids_N, lengths_FB = random_batch(version, 20, seed=4)
    weights_N = np.random.default_rng(4).uniform(0.5, 2, len(ids_N)).astype(np.float32)
    found = opened(version).lookup(ids_N, lengths_FB, weights=weights_N, combiners=combiners)
    expected = pooled(version, ids_N, lengths_FB, weights_N=weights_N, combiners=combiners)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_results_go_where_they_are_wanted(chain: list[Version]) -> None:
    version = opened(chain[-1])
    ids_N, lengths_FB = random_batch(chain[-1], 20)
    out = np.full((20, version.embeddings_dim), np.nan, np.float32)
    assert version.lookup(ids_N, lengths_FB, out=out) is out
    np.testing.assert_array_equal(out, version.lookup(ids_N, lengths_FB))


def test_rows_that_are_not_pooled(chain: list[Version]) -> None:
    for version in (chain[0], chain[-1]):
        ids_N, lengths_FB = random_batch(version, 9)
        found = opened(version).lookup_rows(ids_N, lengths_FB)
        ends = np.cumsum(lengths_FB.sum(axis=1))
        for feature, rows, ids in zip(version.features, found, np.split(ids_N, ends[:-1]), strict=True):
            assert rows.tobytes() == version.rows(feature.table, ids).tobytes()


class OnlyDlpack:
    """An array of another library, as far as it is known here."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self) -> object:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.parametrize(
    "take", [lambda array: array, OnlyDlpack, lambda array: np.repeat(array, 2, axis=-1)[..., ::2]]
)
def test_arrays_of_all_kinds(chain: list[Version], take: Callable[[np.ndarray], object]) -> None:
    for version in (chain[0], chain[-1]):
        ids_N, lengths_FB = random_batch(version, 16)
        offsets = np.concatenate([[0], np.cumsum(lengths_FB.ravel(), dtype=np.int64)])
        expected = opened(version).lookup(ids_N, lengths_FB)
        for ids in (ids_N, ids_N.astype(np.int32)):
            np.testing.assert_array_equal(opened(version).lookup(take(ids), take(lengths_FB)), expected)
            np.testing.assert_array_equal(opened(version).lookup(take(ids), offsets=take(offsets)), expected)


@pytest.mark.parametrize("root", ["golden", "golden_chain"])
def test_golden_stores(root: str) -> None:
    engine = Engine()
    for name in VersionStore(STORES / root).names():
        version = VersionStore(STORES / root).open(name)
        ids_N, lengths_FB = random_batch(version, 40)
        found = opened(version, engine).lookup(ids_N, lengths_FB)
        np.testing.assert_allclose(found, pooled(version, ids_N, lengths_FB), rtol=1e-5, atol=1e-6)
    assert engine.open(STORES / root).name == name


def wild(version: Version, wrong: int, dtype: type = np.int64) -> tuple[np.ndarray, np.ndarray]:
    """A batch in which one id of each feature is no row."""
    lengths_FB = np.full((len(version.features), 2), 2, np.int32)
    return np.tile(np.array([1, wrong, 3, 2], dtype), len(version.features)), lengths_FB


@pytest.mark.parametrize("wrong", [-1, 5000, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63)])
def test_ids_out_of_range_are_refused(chain: list[Version], wrong: int) -> None:
    dtype = np.int32 if abs(wrong) < 2**31 else np.int64
    for version in (chain[0], chain[-1]):
        rows = version.tables[0].num_rows
        message = (
            rf"id {wrong} of feature 'a' \(sample 0, position 1 in its bag\) is out of range: table 'A' has {rows}"
        )
        with pytest.raises(BatchError, match=message):
            opened(version).lookup(*wild(version, wrong, dtype))
        with pytest.raises(BatchError, match=rf"id {wrong} of the batch \(sample 1, .*: table 'B' has"):
            opened(version).gather("B", np.array([4, wrong]))


@pytest.mark.parametrize(
    ("policy", "instead"),
    [("zero", lambda wrong, rows: None), ("clip", lambda wrong, rows: 0 if wrong < 0 else rows - 1),
     ("unknown_row", lambda wrong, rows: 2)],
)  # fmt: skip
@pytest.mark.parametrize("wrong", [-1, 5000, 2**63 - 1, -(2**63)])
def test_ids_out_of_range_follow_the_policy_and_are_counted(
    chain: list[Version], policy: str, instead: Callable[[int, int], int | None], wrong: int
) -> None:
    for version in (chain[0], chain[-1]):
        engine = Engine(out_of_range=policy)
        found = opened(version, engine)
        ids_N, lengths_FB = wild(version, wrong)
        answer = Answer()
        for f, rows in enumerate(found.lookup_rows(ids_N, lengths_FB, answer=answer)):
            table = next(table for table in version.tables if table.name == FEATURES[f][1])
            row = instead(wrong, table.num_rows)
            expected = np.zeros((1, table.dim)) if row is None else version.rows(table.name, np.array([row]))
            np.testing.assert_array_equal(rows[[1]], expected)
            np.testing.assert_array_equal(rows[[0, 2, 3]], version.rows(table.name, np.array([1, 3, 2])))
        unknown = {key: value for key, value in engine.stats().items() if "_unknown_ids_total" in key}
        assert sorted(unknown.values()) == [1, 1, 1, 2]
        assert (answer.num_unknown, answer.degraded) == (5, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": np.ones((2, 1), np.int32)}, r"lengths has shape \[2, 1\]; expected \[5, B\]"),
        ({"lengths": np.ones(5, np.int32)}, r"lengths has shape \[5\]"),
        ({"lengths": np.ones((5, 1), np.int64)}, r"lengths is int64 \[5, 1\]; expected int32 of 2 dimensions"),
        ({"lengths": np.full((5, 1), 2, np.int32)}, "lengths add up to 10, there are 5 ids"),
        ({"lengths": np.array([[3], [2], [-1], [1], [0]], np.int32)}, "length of feature 'b' in sample 0 is -1; "),
        ({"offsets": np.array([0, 1, 2, 3, 4])}, r"offsets has 5 elements; expected F \* B \+ 1 with F = 5"),
        ({"offsets": np.array([0, 1, 0, 3, 4, 5])}, "offsets of feature 'c' run from 1 to 0"),
        ({"offsets": np.array([0, 1, 2, 3, 4, 4])}, "the bags hold 4 ids, there are 5"),
        ({"offsets": np.array([0, 1, 2, 3, 4, 9])}, "offsets of feature 'd' run from 4 to 9"),
        ({}, "expected either lengths or offsets"),
        ({"ids": np.zeros(5)}, r"ids is float64 \[5\]; expected int64 or int32"),
        ({"ids": [1, 2]}, "ids is a list; expected an array of NumPy, or one with DLPack"),
        ({"lengths": np.ones((5, 1), np.int32), "weights": np.ones(2, np.float32)}, "there are 2 weights"),
        ({"lengths": np.ones((5, 1), np.int32), "combiners": ["sum"]}, r"combiners are \['sum'\]"),
        ({"lengths": np.ones((5, 1), np.int32), "combiners": ["none"] * 5}, "use lookup_rows"),
        ({"lengths": np.ones((5, 1), np.int32), "out": np.empty((1, 18), np.float32)}, r"out is float32 \[1, 18\]; "),
        ({"lengths": np.ones((5, 1), np.int32), "out": np.empty((1, 19))}, r"out is float64 \[1, 19\]; "),
    ],
)  # fmt: skip
def test_refuses_batches_that_do_not_fit(chain: list[Version], arguments: dict, message: str) -> None:
    for version in (chain[0], chain[-1]):
        with pytest.raises(BatchError, match=message):
            opened(version).lookup(**{"ids": np.zeros(5, np.int64), **arguments})


def test_refuses_bags_that_overlap_within_a_feature(chain: list[Version]) -> None:
    offsets = np.array([0, 2, 1, 3, 3, 3, 3, 3, 3, 3, 3])
    offsets[2:] = np.maximum(offsets[2:], 1)
    for version in (chain[0], chain[-1]):
        with pytest.raises(
            BatchError, match="offsets of feature 0, sample 0 run from 0 to 2: expected them never to fall"
        ):
            opened(version).lookup(np.zeros(3, np.int64), offsets=offsets)


def test_no_such_table_and_closed_versions(chain: list[Version]) -> None:
    found = opened(chain[-1])
    with pytest.raises(ContentError, match=r"has no table 'Z'; it has A, B, C, D"):
        found.gather("Z", np.array([1]))
    with found:
        pass
    with pytest.raises(ClosedError, match="is closed: open it again"):
        found.gather("A", np.array([1]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memroy": "pin"}, "has the unknown key 'memroy'; did you mean 'memory'"),
        ({"memory": "disk"}, "'memory' is 'disk': expected one of 'map', 'pin'"),
        ({"memory": 3}, "expected a text under 'memory'"),
        ({"out_of_range": "oov"}, "expected one of 'error', 'zero', 'clip', 'unknown_row'"),
        ({"num_threads": -1}, "'num_threads' is -1"),
        ({"num_threads": 2**40}, "'num_threads' is"),
        ({"device": -1}, "'device' is -1: expected 0 or more"),
        ({"device": 0, "device_cache_bytes": -1}, "'device_cache_bytes' is -1"),
        ({"device": 0, "device_cache_policy": "fifo"}, "'device_cache_policy' is 'fifo': expected one of 'lru', 'lfu'"),
        ({"device_cache_bytes": 1}, "'device_cache_bytes' would not be used: expected a GPU's number under 'device'"),
    ],
)
def test_refuses_options(options: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Engine(**options)


def counters(engine: Engine) -> tuple[float, float, float, float]:
    stats = engine.stats()
    kinds = ("files_opened_total", "verified_bytes_total", "index_entries_total", 'bytes{tier="memory"}')
    files, verified, entries, held = (stats[f"rankhouse_embedding_{kind}"] for kind in kinds)
    return files, verified, entries, held


def test_a_delta_of_an_open_parent_costs_its_own_rows(chain: list[Version]) -> None:
    engine = Engine()
    versions, num_own, num_written = [opened(chain[0], engine)], [], []
    for parent, child in itertools.pairwise(chain):
        before = counters(engine)
        versions.append(opened(child, engine))
        files, verified, entries, held = (now - then for now, then in zip(counters(engine), before, strict=True))
        own = [table.deltas[-1] for table in child.tables]
        shared = {file.sha256 for table in parent.tables for file in table.files}
        assert files == len(own)
        assert not shared & {delta.sha256 for delta in own}
        assert verified == sum(delta.bytes for delta in own)
        assert held <= verified
        num_own.append(sum(delta.num_rows + delta.num_removed for delta in own))
        num_written.append(entries)
    # Layers are merged when they have grown alike: an entry is written again at most once for each doubling.
    assert num_written[0] == num_own[0]
    assert sum(num_written) <= (1 + np.log2(NUM_DELTAS)) * sum(num_own)
    before = counters(engine)
    versions.append(opened(chain[-1], engine))
    assert counters(engine) == before


def test_closing_frees_what_no_other_version_uses(chain: list[Version]) -> None:
    engine = Engine()
    first, last, again = opened(chain[0], engine), opened(chain[-1], engine), opened(chain[-1], engine)
    all_bytes = counters(engine)[3]
    first.close()
    last.close()
    assert counters(engine)[3] == all_bytes
    assert again.gather("A", np.array([1])).tobytes() == chain[-1].rows("A", np.array([1])).tobytes()
    again.close()
    assert counters(engine)[3] == 0
    parent = opened(chain[0], engine)
    assert 0 < counters(engine)[3] < all_bytes
    parent.close()


def test_versions_outlive_their_engine(chain: list[Version]) -> None:
    engine = Engine()
    found = opened(chain[-1], engine)
    del engine
    assert found.gather("D", np.array([5])).tobytes() == chain[-1].rows("D", np.array([5])).tobytes()


def test_threads_look_up_while_versions_come_and_go(chain: list[Version]) -> None:
    engine, stop = Engine(num_threads=1), threading.Event()
    batches = [random_batch(version, 30, seed=7) for version in chain]
    expected = [opened(version).lookup(*batch).tobytes() for version, batch in zip(chain, batches, strict=True)]
    current = [opened(chain[0], engine)]

    def look_up(_: int) -> int:
        count = 0
        while not stop.is_set():
            version = current[0]
            number = next(n for n, one in enumerate(chain) if one.name == version.name)
            try:
                assert version.lookup(*batches[number]).tobytes() == expected[number]
            except ClosedError:
                continue
            count += 1
        return count

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(look_up, n) for n in range(4)]
        try:
            for number in [*range(1, len(chain)), *range(len(chain))] * 3:
                closing, current[0] = current[0], opened(chain[number], engine)
                closing.close()
        finally:
            stop.set()
        assert all(worker.result(timeout=60) >= 0 for worker in workers)
    current[0].close()
    assert counters(engine)[3] == 0


@pytest.fixture
def small(tmp_path: Path) -> tuple[VersionStore, Version, Version]:
    store = VersionStore(tmp_path / "store")
    first = write_random(store, tmp_path / "parts")
    return store, first, write_random_delta(store, tmp_path / "parts", first, seed=1)


@pytest.mark.parametrize("fault", ["missing", "truncated", "longer", "a changed row", "a changed header"])
@pytest.mark.parametrize("kind", ["segment", "delta"])
def test_damaged_files_are_refused(small: tuple[VersionStore, Version, Version], kind: str, fault: str) -> None:
    store, _, version = small
    table = version.tables[1]
    path = shared_path(store.path, (table.segments if kind == "segment" else table.deltas)[0].sha256)
    content = bytearray(path.read_bytes())
    if fault == "a changed row":
        content[4096] ^= 1
    elif fault == "a changed header":
        content[20] ^= 255
    damaged = {"missing": None, "truncated": content[:-8], "longer": content + b"1"}.get(fault, content)
    path.chmod(0o644)
    path.unlink() if damaged is None else path.write_bytes(damaged)
    with pytest.raises(CorruptFileError, match=path.name):
        opened(version)
    if fault == "a changed row":
        opened(version, verify=False)
    else:
        with pytest.raises(CorruptFileError, match=path.name):
            opened(version, verify=False)


def test_a_file_of_the_version_alone_is_checked_too(small: tuple[VersionStore, Version, Version]) -> None:
    _, first, _ = small
    (first.path / "golden.json").write_text("{}")
    with pytest.raises(CorruptFileError, match=r"golden\.json: was"):
        opened(first, verify=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature": []}, "has the unknown key 'feature'; did you mean 'features'"),
        ({"format": "rankhouse.transform"}, "expected the format 'rankhouse.version', found 'rankhouse.transform'"),
        ({"format_version": 2}, "has format_version 2, this release reads up to 1; use a newer Rankhouse"),
        ({"model": "a/b"}, "'a/b' cannot be a model's name"),
        ({"sequence": 7}, "has the sequence 7"),
        ({"tables": {}}, "expected a list under 'tables', found object"),
        ({"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}}, "names the file '../x'"),
        ({"created_at": "yesterday"}, "created_at is 'yesterday': expected ISO 8601"),
        ({"parent": {"name": "000001-00000000", "sha256": "1" * 64}}, "the parent: cannot be a version"),
        ({"origin": {"action": "theft", "version": None}}, "unknown action 'theft'"),
        ({"dense": {"file": "dense.onnx", "inputs": {"dense": 2, "embeddings": 1}, "output": "scores"}}, "dense part"),
    ],
)  # fmt: skip
def test_malformed_manifests_are_refused(
    small: tuple[VersionStore, Version, Version], change: dict, message: str
) -> None:
    store, first, _ = small
    name = forge(first, **change)
    with pytest.raises(ManifestError, match=message):
        Engine().open(store.path, name)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_rows", 0, "'num_rows' is 0: expected 1 or more"),
        ("num_rows", 2**62, "has 4611686018427387904 rows, its segments 700"),
        ("dim", 0, "'dim' is 0"),
        ("dim", 2**40, "impossible dim"),
        ("dtype", "int4", "dtype 'int4'; this release reads float32"),
        ("name", "D", "table 'D' stands twice"),
        ("segments", [], "has no segments"),
    ],
)
def test_malformed_tables_are_refused(
    small: tuple[VersionStore, Version, Version], field: str, value: object, message: str
) -> None:
    store, first, _ = small
    tables = json.loads((first.path / "manifest.json").read_text())["tables"]
    tables[0][field] = value
    with pytest.raises(ManifestError, match=message):
        Engine().open(store.path, forge(first, tables=tables))


def test_deltas_out_of_order_are_refused(chain: list[Version], tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    version = write_random(store, tmp_path / "parts")
    for seed in (1, 2):
        version = write_random_delta(store, tmp_path / "parts", version, seed=seed)
    tables = json.loads((version.path / "manifest.json").read_text())["tables"]
    tables[0]["deltas"].reverse()
    with pytest.raises(FormatError, match="does not continue its parent"):
        Engine().open(store.path, forge(version, tables=tables))
    name = forge(store.open(store.names()[0]), tables=tables)
    with pytest.raises(CorruptFileError, match="does not belong to what is before it in table 'A'"):
        Engine().open(store.path, name, verify=False)


@pytest.mark.parametrize("name", ["000009-00000000", "../versions", "000001", ".no"])
def test_no_such_version(small: tuple[VersionStore, Version, Version], name: str) -> None:
    with pytest.raises(VersionNotFoundError, match=f"has no version '{name}'"):
        Engine().open(small[0].path, name)


def test_no_such_store(tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match="has no version; `rankhouse export` writes one"):
        Engine().open(tmp_path / "nothing")


def test_an_altered_manifest_is_refused(small: tuple[VersionStore, Version, Version]) -> None:
    _, first, _ = small
    path = first.path / "manifest.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(ManifestError, match="was altered: its SHA-256 begins with"):
        opened(first)
