"""Random ragged batches, of the sizes at which the operations' loops begin, end and change their path."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

# Widths below, at and off the vector registers' sizes, and each that has a loop of its own.
DIMS = (1, 3, 4, 7, 16, 17, 32, 64, 128, 300)


@dataclass(frozen=True)
class Batch:
    """Tables, what is looked up in them, and a gradient for the result."""

    tables: list[NDArray[np.float32]]
    feature_tables: list[int]
    combiners: list[str]
    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    grad: NDArray[np.float32] = field(repr=False)

    @property
    def lookup(self) -> dict[str, list[int] | list[str]]:
        return {"feature_tables": self.feature_tables, "combiners": self.combiners}

    @property
    def tables_shape(self) -> list[tuple[int, int]]:
        return [(table.shape[0], table.shape[1]) for table in self.tables]

    @property
    def batch_size(self) -> int:
        return (len(self.offsets) - 1) // max(1, len(self.feature_tables))


def make_batch(
    seed: int,
    *,
    shapes: list[tuple[int, int]],
    feature_tables: list[int],
    batch_size: int,
    max_hotness: int = 4,
    combiners: list[str] | None = None,
) -> Batch:
    """Bags of 0 to max_hotness ids, all of them good; features of tables without rows have empty bags only."""
    rng = np.random.default_rng(seed)
    if not feature_tables:
        batch_size = 0  # without features, offsets cannot say how many samples there are
    lengths = rng.integers(0, max_hotness + 1, (len(feature_tables), batch_size))
    ids = []
    for f, table in enumerate(feature_tables):
        num_rows = shapes[table][0]
        if num_rows == 0:
            lengths[f] = 0
        # Squaring makes low ids frequent, so that there are duplicates.
        ids.append((rng.random(lengths[f].sum()) ** 2 * num_rows).astype(np.int64))
    return Batch(
        tables=[rng.standard_normal(shape).astype(np.float32) for shape in shapes],
        feature_tables=feature_tables,
        combiners=combiners or rng.choice(["sum", "mean"], len(feature_tables)).tolist(),
        ids=np.concatenate([np.zeros(0, np.int64), *ids]),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths.ravel())]).astype(np.int64),
        grad=rng.standard_normal((batch_size, sum(shapes[t][1] for t in feature_tables))).astype(np.float32),
    )


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    shapes = draw(st.lists(st.tuples(st.sampled_from([0, 1, 2, 50, 3000]), st.sampled_from(DIMS)), max_size=4))
    tables = st.integers(0, len(shapes) - 1) if shapes else st.nothing()
    return make_batch(
        draw(st.integers(0, 2**32 - 1)),
        shapes=shapes,
        feature_tables=draw(st.lists(tables, max_size=6)) if shapes else [],
        batch_size=draw(st.sampled_from([0, 1, 2, 13, 200])),
        max_hotness=draw(st.sampled_from([1, 3, 20])),
    )


# One bad id at feature 1, sample 2, position 1 of an otherwise good batch; see `with_bad_id`.
BAD_IDS = (-1, 50, 2**63 - 1, -(2**63))


def with_bad_id(bad_id: int) -> Batch:
    """Feature 1 looks up table 0 of 50 rows; every bag holds 3 ids."""
    batch = make_batch(0, shapes=[(50, 16), (20, 3)], feature_tables=[1, 0], batch_size=5)
    ids = np.arange(2 * 5 * 3, dtype=np.int64) % 20
    ids[(1 * 5 + 2) * 3 + 1] = bad_id
    return Batch(
        tables=batch.tables,
        feature_tables=batch.feature_tables,
        combiners=batch.combiners,
        ids=ids,
        offsets=np.arange(0, 31, 3, dtype=np.int64),
        grad=batch.grad,
    )


def bad_id_message(bad_id: int) -> str:
    return rf"id {bad_id} of feature 1 \(sample 2, position 1 in its bag\) is out of range: table 0 has 50 rows"
