from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.embedding_cache.hps import external_order
from rankhouse.embedding_cache.hps.external_order import ordered


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_rows=st.integers(1, 200),
    dim=st.integers(1, 5),
    part_bytes=st.integers(1, 500),
    is_direct=st.booleans(),
)
def test_rows_come_in_the_order_that_was_asked_for(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_rows: int, dim: int, part_bytes: int, is_direct: bool
) -> None:
    random = np.random.default_rng(seed)
    rows, order = random.normal(size=(num_rows, dim)).astype(np.float32), random.permutation(num_rows)
    scratch = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_order, "_BLOCK_BYTES", part_bytes)
        patch.setattr(external_order, "_BUCKET_BYTES", part_bytes)
        patch.setattr(external_order, "DIRECT_BYTES", rows.nbytes if is_direct else rows.nbytes - 1)
        blocks = list(ordered(rows, order, scratch=scratch))
    np.testing.assert_array_equal(np.concatenate(blocks), rows[order])
    assert all(block.nbytes <= max(part_bytes, 4 * dim) for block in blocks)


def test_no_scratch_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_order, "DIRECT_BYTES", 0)
    blocks = ordered(np.ones((9, 2), np.float32), np.arange(9)[::-1], scratch=tmp_path)
    assert next(blocks).shape == (9, 2)
    assert list(tmp_path.iterdir()) == []
