"""The engine's lookups on a GPU against those on the CPU: `pytest -m gpu tests/embedding_cache/native/engine`.

test_cuda_emulation.py runs the same tests without a GPU.
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache import library
from rankhouse.embedding_cache.engine import Answer, Engine, OpenVersion
from rankhouse.embedding_cache.errors import BatchError, OptionError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.kernels.errors import UnsupportedError
from tests.embedding_cache.native.engine.device_arrays import DeviceArray, cuda_engine, look_up
from tests.embedding_cache.random_store import random_batch, write_random, write_random_delta
from tests.kernels.device_memory import Kernels

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda() -> Iterator[Kernels]:
    with cuda_engine() as found:
        yield found


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> list[Version]:
    """A whole version and three deltas, with tables of every row type."""
    folder = tmp_path_factory.mktemp("chain")
    store = VersionStore(folder / "store")
    versions = [write_random(store, folder / "parts")]
    for seed in (1, 2, 3):
        versions.append(write_random_delta(store, folder / "parts", versions[-1], seed=seed))
    return versions


def opened(version: Version, engine: Engine) -> OpenVersion:
    return engine.open(version.store, version.name)


def stat(engine: Engine, name: str, *labels: str) -> float:
    """The sum of a counter where its labels have these parts."""
    counters = {key: value for key, value in engine.stats().items() if key.startswith(f"rankhouse_embedding_{name}")}
    return sum(value for key, value in counters.items() if all(label in key for label in labels))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"device_cache_bytes": 0},
        {"device_cache_bytes": 9000},
        {"device_cache_bytes": 9000, "device_cache_policy": "lfu", "memory": "pin", "num_threads": 1},
    ],
    ids=str,
)
def test_lookups_equal_the_cpus_bit_for_bit(cuda: Kernels, chain: list[Version], options: dict[str, Any]) -> None:
    engine, cpu = Engine(device=0, **options), Engine()
    for version in (chain[0], chain[-1]):
        with opened(version, engine) as served, opened(version, cpu) as truth:
            for seed in range(3):
                ids, lengths = random_batch(version, 40, seed=seed)
                assert look_up(cuda, served, ids, lengths).tobytes() == truth.lookup(ids, lengths).tobytes()
            assert (stat(engine, "hits_total", 'tier="device"') > 0) == (options.get("device_cache_bytes") != 0)
    if options.get("device_cache_bytes") == 9000:
        assert stat(engine, "evictions_total", 'tier="device"') > 0
        assert stat(engine, "bytes", 'tier="device"') <= 9000


@pytest.mark.parametrize("on_device", [False, True], ids=["host arrays", "device arrays"])
def test_all_that_a_batch_may_have(cuda: Kernels, chain: list[Version], on_device: bool) -> None:
    version = chain[-1]
    ids, lengths = random_batch(version, 25, seed=9)
    offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    weights = np.random.default_rng(0).normal(size=len(ids)).astype(np.float32)
    ones = np.ones_like(lengths)
    batches: list[dict[str, Any]] = [
        {"ids": ids, "lengths": lengths, "weights": weights},
        {"ids": ids.astype(np.int32), "offsets": offsets},
        {"ids": ids, "offsets": offsets, "weights": weights, "combiners": ["sqrtn"] * len(version.features)},
        {"ids": ids[:1].repeat(ones.size) % 50, "lengths": ones},
        {"ids": ids[:0], "lengths": ones * 0},
        {"ids": ids[:0], "lengths": ones[:, :0]},
    ]
    with opened(version, Engine(device=0)) as served, opened(version, Engine()) as truth:
        for batch in batches:
            given = dict(batch)
            if on_device:
                given.update({k: DeviceArray(cuda, v) for k, v in batch.items() if k != "combiners"})
            shape = (lengths.shape[1] if "offsets" in batch else batch["lengths"].shape[1], served.embeddings_dim)
            out = DeviceArray(cuda, np.full(shape, np.nan, np.float32))
            served.lookup_cuda(given.pop("ids"), given.pop("lengths", None), out=out, **given)
            assert out.get().tobytes() == truth.lookup(batch.pop("ids"), batch.pop("lengths", None), **batch).tobytes()


def test_more_rows_than_the_cache_holds_in_one_batch(cuda: Kernels, chain: list[Version]) -> None:
    version = chain[-1]
    ids = np.concatenate([np.arange(90) % 90 for _ in version.features])
    lengths = np.ones((len(version.features), 90), np.int32)
    engine = Engine(device=0, device_cache_bytes=5000)
    with opened(version, engine) as served, opened(version, Engine()) as truth:
        for _ in range(3):
            assert look_up(cuda, served, ids, lengths).tobytes() == truth.lookup(ids, lengths).tobytes()


@pytest.mark.parametrize("out_of_range", ["zero", "clip", "unknown_row"])
def test_unknown_ids_follow_the_policy_and_are_never_cached(
    cuda: Kernels, chain: list[Version], out_of_range: str
) -> None:
    version = chain[-1]
    lengths = np.full((len(version.features), 4), 1, np.int32)
    ids = np.tile(np.array([-1, 2**40, 5, -(2**63)]), len(version.features))
    engine = Engine(device=0, out_of_range=out_of_range)
    with opened(version, engine) as served, opened(version, Engine(out_of_range=out_of_range)) as truth:
        for _ in range(2):
            answer, true_answer = Answer(), Answer()
            expected = truth.lookup(ids, lengths, answer=true_answer)
            assert look_up(cuda, served, ids, lengths, answer=answer).tobytes() == expected.tobytes()
            assert answer.num_unknown == true_answer.num_unknown == 3 * len(version.features)
        assert stat(engine, "unknown_ids_total") == 6 * len(version.features)
        hits = stat(engine, "hits_total", 'tier="device"') + stat(engine, "hits_total", 'tier="memory"')
        assert hits == (2 if out_of_range == "zero" else 8) * len(version.features), "rows that stand in are hits, too"
        if out_of_range == "zero":
            assert stat(engine, "hits_total", 'tier="device"') == len(version.features), "the known ones alone"


def test_versions_share_their_rows(cuda: Kernels, chain: list[Version]) -> None:
    engine = Engine(device=0)
    with opened(chain[0], engine) as first, opened(chain[1], engine) as second:
        batch = random_batch(chain[0], 60)
        look_up(cuda, first, *batch)
        assert look_up(cuda, second, *batch).tobytes() == second.lookup(*batch).tobytes()
        assert stat(engine, "hits_total", chain[1].name, 'tier="device"') > 0.5 * len(batch[0])


def test_rows_of_a_size_that_comes_later(cuda: Kernels, chain: list[Version], tmp_path: Path) -> None:
    wide = write_random(VersionStore(tmp_path / "wide"), tmp_path / "parts", tables=[("A", 300, 33, "float32")])
    engine = Engine(device=0, device_cache_bytes=100_000)
    with opened(chain[0], engine) as first, opened(wide, engine) as second:
        for served, version in ((first, chain[0]), (second, wide), (first, chain[0]), (second, wide)):
            batch = random_batch(version, 30)
            assert look_up(cuda, served, *batch).tobytes() == served.lookup(*batch).tobytes()
        assert stat(engine, "hits_total", wide.name, 'tier="device"') > 0
        assert stat(engine, "bytes", 'tier="device"') <= 100_000


def test_hot_rows_are_on_the_gpu_before_a_version_is_open(cuda: Kernels, chain: list[Version], tmp_path: Path) -> None:
    version, folder = chain[-1], str(tmp_path / "hot")
    batch = random_batch(version, 40)
    engine = Engine(hot_rows=folder)
    with opened(version, engine) as served:
        for _ in range(1500):  # one id in 256 is counted
            served.lookup(*batch)
    del engine
    engine = Engine(hot_rows=folder, device=0)
    with opened(version, engine) as served:
        assert look_up(cuda, served, *batch).tobytes() == served.lookup(*batch).tobytes()
        assert stat(engine, "hits_total", 'tier="device"') > 0.8 * len(batch[0])
        assert stat(engine, "tier_seconds_count", 'tier="device"') == 1, "a warm-up is no lookup"


def test_metrics_tell_the_tiers_apart(cuda: Kernels, chain: list[Version]) -> None:
    engine, version = Engine(device=0), chain[0]
    with opened(version, engine) as served:
        ids = np.concatenate([np.array([1, 2, 2, 3]) for _ in version.features])
        lengths = np.ones((len(version.features), 4), np.int32)
        for _ in range(3):
            look_up(cuda, served, ids, lengths)
        table = 'table="B"'  # of one feature
        assert stat(engine, "ids_total", table) == 12
        assert stat(engine, "unique_ids_total", table) == 9
        assert stat(engine, "hits_total", table, 'tier="device"') == 8
        assert stat(engine, "hits_total", table, 'tier="memory"') == 4
        assert stat(engine, "lookups_total") == 3
        assert stat(engine, "tier_seconds_count", 'tier="device"') == 3, "once for all sizes of rows"
        assert stat(engine, "tier_seconds_count", 'tier="memory"') == 1


def test_the_first_bad_id_is_named_as_on_the_cpu(cuda: Kernels, chain: list[Version]) -> None:
    version = chain[0]
    ids, lengths = random_batch(version, 20)
    ids[7] = 10**6
    with opened(version, Engine(device=0)) as served:
        with pytest.raises(BatchError) as expected:
            served.lookup(ids, lengths)
        with pytest.raises(BatchError) as found:
            look_up(cuda, served, ids, lengths)
    assert str(found.value) == str(expected.value)


def test_impossible_batches_are_refused(cuda: Kernels, chain: list[Version]) -> None:
    version = chain[0]
    ids, lengths = random_batch(version, 20)
    out = DeviceArray(cuda, np.zeros((20, sum(feature.dim for feature in version.features)), np.float32))
    with opened(version, Engine(device=0)) as served:
        with pytest.raises(BatchError, match="out is a ndarray; expected an array on a GPU"):
            served.lookup_cuda(ids, lengths, out=np.zeros((20, served.embeddings_dim), np.float32))
        with pytest.raises(BatchError, match=r"out is float32 \[20, \d+\]; expected float32 \[20, \d+\]"):
            served.lookup_cuda(ids, lengths, out=DeviceArray(cuda, np.zeros((20, 3), np.float32)))
        with pytest.raises(BatchError, match=r"out has strides \[400, 4\]; expected its elements one after"):
            served.lookup_cuda(ids, lengths, out=DeviceArray(cuda, out.get(), strides=(400, 4)))
        with pytest.raises(BatchError, match="out is read-only"):
            served.lookup_cuda(ids, lengths, out=DeviceArray(cuda, out.get(), data=(out.address, True)))
        with pytest.raises(BatchError, match="ids lies on a GPU, lengths on the host"):
            served.lookup_cuda(DeviceArray(cuda, ids), lengths, out=out)
        offsets = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
        offsets[3], offsets[4] = offsets[4] + 1, offsets[3]
        with pytest.raises(BatchError, match=r"offsets of feature 'a' fall at sample 3, from \d+ to \d+"):
            served.lookup_cuda(ids, offsets=offsets, out=out)
        on_device = [DeviceArray(cuda, array) for array in (ids.astype(np.float32), lengths)]
        with pytest.raises(BatchError, match=r"ids is float32 \[\d+\]; expected int64 or int32 of 1 dimensions"):
            served.lookup_cuda(*on_device, out=out)
        with pytest.raises(BatchError, match="the combiner 'none' does not pool"):
            served.lookup_cuda(ids, lengths, out=out, combiners=["none"] * len(version.features))


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (0, "id_type is 7: expected 0 .int64. or 1"),
        (1, "id_type is 7: expected 0 .int64. or 1"),
        (2, "memory is 2: exp"),
    ],
)
def test_what_only_c_can_say_is_refused(cuda: Kernels, chain: list[Version], memory: int, message: str) -> None:
    native, engine, version = library.load(), ctypes.c_void_p(), ctypes.c_void_p()
    library.check(native.rh_engine_create(b'{"device": 0}', engine))
    library.check(native.rh_engine_open(engine, bytes(chain[0].store), chain[0].name.encode(), 0, version))
    try:
        batch = library.Batch(id_type=7, memory=memory)
        with pytest.raises(BatchError, match=message):
            library.check(native.rh_engine_lookup_cuda(version, batch, None, None, None, None))
    finally:
        native.rh_engine_close(version)
        native.rh_engine_destroy(engine)


def test_impossible_devices_are_refused(cuda: Kernels, chain: list[Version]) -> None:
    with pytest.raises(OptionError, match=r"'device' is 1000, but this machine has \d+ GPUs: expected 0 to"):
        Engine(device=1000)
    with opened(chain[0], Engine()) as served, pytest.raises(UnsupportedError, match="with the option 'device'"):
        look_up(cuda, served, *random_batch(chain[0], 5))
