"""The compiled transform in C++ gives the same bits as the one in NumPy, and refuses what that refuses."""

from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.transform import TransformedBatch
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.native_transform import NativeTransform, RawTensors

STORES = Path(__file__).parent / "format"


def assert_same_bits(found: TransformedBatch, expected: TransformedBatch) -> None:
    for name in ("dense", "ids", "lengths"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        np.testing.assert_array_equal(one.view(f"i{one.itemsize}"), other.view(f"i{one.itemsize}"), err_msg=name)


@pytest.mark.parametrize(
    ("store", "name"),
    [
        ("golden", "000001-00f043b8"),
        ("golden_chain", "000001-ab01e749"),
        ("golden_chain", "000002-233a39bb"),
        ("golden_chain", "000003-b7a8a7ab"),
    ],
)
def test_golden_requests_become_the_same_bits(store: str, name: str) -> None:
    version = VersionStore(STORES / store).open(name)
    transform = version.transform()
    with NativeTransform(version.path, version.vocabulary_files) as native:
        for golden in version.golden():
            raw = RawBatch.from_rows(transform.features, golden.rows())
            assert_same_bits(native.apply(RawTensors.of(raw)), transform.apply(raw))
