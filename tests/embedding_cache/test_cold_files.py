"""Lookups in mapped files that the page cache does not hold. The truth is `Version.rows`."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.support.engine import page_cache
from rankhouse.embedding_cache.engine import Engine, OpenVersion
from rankhouse.embedding_cache.errors import BatchError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from tests.embedding_cache.random_store import write_random, write_random_delta

# The first is large enough that nothing reads it ahead as a whole; rows of the second lie on two pages now and then.
TABLES = (("A", 300_000, 64, "float32"), ("B", 20_000, 3, "float16"))
NUM_IDS = 3000


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Version]:
    """One base file for each table, and a delta over it."""
    folder = tmp_path_factory.mktemp("cold")
    store = VersionStore(folder / "store")
    whole = write_random(store, folder / "parts", tables=TABLES)
    return [whole, write_random_delta(store, folder / "parts", whole, seed=1)]


def opened_cold(version: Version, **options: object) -> OpenVersion:
    page_cache.drop((version.store / "segments").iterdir())
    return Engine(**options).open(version.store, version.name, verify=False)


def ids_of(version: Version, seed: int) -> dict[str, npt.NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    ids = {table.name: random.integers(0, table.num_rows, NUM_IDS) for table in version.tables}
    for table in version.tables:
        ids[table.name][:2] = 0, table.num_rows - 1
    return ids


@pytest.mark.parametrize("number", [0, 1], ids=["base", "delta"])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_rows_are_those_of_the_files(chain: list[Version], number: int, num_threads: int) -> None:
    version = chain[number]
    found = opened_cold(version, num_threads=num_threads)
    for seed in range(3):
        for name, ids in ids_of(version, seed).items():
            assert found.gather(name, ids).tobytes() == version.rows(name, ids).tobytes()


@pytest.mark.parametrize("number", [0, 1], ids=["base", "delta"])
@pytest.mark.parametrize("id_type", ["int32", "int64"])
def test_bags_have_the_bits_of_rows_in_memory(chain: list[Version], number: int, id_type: str) -> None:
    version = chain[number]
    own = ids_of(version, 5)
    ids_N = np.concatenate([own[feature.table] for feature in version.features])
    lengths_FB = np.full((len(version.features), NUM_IDS // 3), 3, np.int32)
    expected = Engine(memory="pin").open(version.store, version.name).lookup(ids_N, lengths_FB)
    found = opened_cold(version)
    for _ in range(2):
        assert found.lookup(ids_N.astype(id_type), lengths_FB).tobytes() == expected.tobytes()


def test_threads_ask_for_pages_of_the_same_files(chain: list[Version]) -> None:
    version = chain[1]
    found = opened_cold(version)

    def reads(seed: int) -> bool:
        ids = ids_of(version, seed // 2)  # two threads each read the same rows
        return all(found.gather(name, ids[name]).tobytes() == version.rows(name, ids[name]).tobytes() for name in ids)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(reads, range(16)))


@pytest.mark.parametrize("number", [0, 1], ids=["base", "delta"])
@pytest.mark.parametrize("outside", [-1, -(2**62), 300_000 + 10, 2**62])
def test_ids_that_are_none_give_zeros(chain: list[Version], number: int, outside: int) -> None:
    found = opened_cold(chain[number], out_of_range="zero").gather("A", np.array([outside, 7, outside]))
    np.testing.assert_array_equal(found[::2], 0)
    assert found[1].tobytes() == chain[number].rows("A", np.array([7])).tobytes()


@pytest.mark.parametrize("number", [0, 1], ids=["base", "delta"])
@pytest.mark.parametrize("outside", [-1, 2**62])
def test_ids_that_are_none_are_refused(chain: list[Version], number: int, outside: int) -> None:
    found = opened_cold(chain[number], out_of_range="error")
    with pytest.raises(BatchError, match=f"id {outside} of the batch .* is out of range: table 'A' has"):
        found.gather("A", np.array([5, outside]))
    assert found.gather("A", np.array([5])).tobytes() == chain[number].rows("A", np.array([5])).tobytes()
