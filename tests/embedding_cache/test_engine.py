from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.engine import EmbeddingEngine
from rankhouse.embedding_cache.errors import BatchError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.kernels.errors import KernelError
from tests.embedding_cache.format.small_store import rows_of, small_content

TABLES = {"C1": rows_of(11, 3), "C2": rows_of(5, 2)}


@pytest.fixture(params=[1, 2, 4, 100], ids=lambda rows: f"{rows} rows per segment")
def version(request: pytest.FixtureRequest, tmp_path: Path) -> Version:
    store = VersionStore(tmp_path / "store", segment_bytes=request.param * 12)
    return store.write(small_content(tmp_path / "parts"))


def pooled(version: Version, ids_N: np.ndarray, lengths_FB: np.ndarray) -> np.ndarray:
    """The definition, bag by bag."""
    columns, position = [], 0
    for feature, lengths_B in zip(version.features, lengths_FB, strict=True):
        rows = np.zeros((len(lengths_B), feature.dim), np.float32)
        for sample, length in enumerate(lengths_B):
            for row in TABLES[feature.table][ids_N[position : position + length]]:
                rows[sample] += row
            if feature.combiner == "mean" and length:
                rows[sample] /= length
            position += length
        columns.append(rows)
    return np.concatenate(columns, axis=1)


def random_batch(seed: int, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    lengths_FB = random.integers(0, 4, (3, num_samples), dtype=np.int32)
    ids = [random.integers(0, rows, lengths.sum()) for rows, lengths in zip((11, 5, 11), lengths_FB, strict=True)]
    return np.concatenate(ids), lengths_FB


@pytest.mark.parametrize("num_samples", [0, 1, 7, 64])
def test_pools_what_the_segments_hold(version: Version, num_samples: int) -> None:
    ids_N, lengths_FB = random_batch(num_samples, num_samples)
    found = EmbeddingEngine(version).lookup(ids_N, lengths_FB)
    assert (found.dtype, found.shape) == (np.float32, (num_samples, version.embeddings_dim))
    np.testing.assert_allclose(found, pooled(version, ids_N, lengths_FB), rtol=1e-6)


def test_empty_bags_pool_to_zeros(version: Version) -> None:
    found = EmbeddingEngine(version).lookup(np.empty(0, np.int64), np.zeros((3, 2), np.int32))
    np.testing.assert_array_equal(found, np.zeros((2, 8), np.float32))


def test_threads_share_an_engine(version: Version) -> None:
    engine = EmbeddingEngine(version)
    batches = [random_batch(seed, 16) for seed in range(32)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda batch: engine.lookup(*batch), batches))
    for batch, embeddings in zip(batches, found, strict=True):
        np.testing.assert_array_equal(embeddings, engine.lookup(*batch))


@pytest.mark.parametrize("wrong", [-1, 11, 2**40])
def test_refuses_an_id_outside_its_table(version: Version, wrong: int) -> None:
    ids_N, lengths_FB = np.array([0, 0, wrong]), np.ones((3, 1), np.int32)
    with pytest.raises((BatchError, KernelError), match=str(wrong)):
        EmbeddingEngine(version).lookup(ids_N, lengths_FB)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([[1], [1]], r"lengths has shape \[2, 1\]; expected \[3, B\]"),
        ([1, 1, 1], r"lengths has shape \[3\]"),
        ([[1], [1], [2]], "lengths add up to 4, there are 3 ids"),
        ([[2], [2], [-1]], "expected one length of 0 or more for each bag"),
    ],
)
def test_refuses_lengths_that_do_not_fit(version: Version, lengths: list, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        EmbeddingEngine(version).lookup(np.zeros(3, np.int64), np.array(lengths, np.int32))
