"""Random sequences of operations on a store, held against a model of it in memory."""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.row_types import ROW_TYPES
from rankhouse.embedding_cache.format.version import DeltaContent, Version, VersionStore
from rankhouse.embedding_cache.maintenance.collection import collect_garbage
from rankhouse.embedding_cache.maintenance.comparison import compare_versions
from rankhouse.embedding_cache.maintenance.publication import compact_version, roll_back
from rankhouse.embedding_cache.maintenance.verification import verify_versions
from rankhouse.kernels.rows import quantize_rows
from tests.embedding_cache.maintenance.chain import write_whole

MODELS = ("one", "two")
DIM = 3


@dataclass
class Expected:
    """What a version must be: its model, its rows as they lie, and the version that it is laid over."""

    model: str
    dtype: str
    rows: np.ndarray
    parent: str | None = None
    num_deltas: int = 0


@dataclass
class World:
    """The store in memory."""

    versions: dict[str, Expected] = field(default_factory=dict)

    def of(self, model: str) -> list[str]:
        return [name for name, expected in self.versions.items() if expected.model == model]


class Operations(RuleBasedStateMachine):
    """Each rule does the same to the store and to the model; the invariants compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = VersionStore(self.folder / "store", segment_bytes=40)
        self.world = World()
        self.rng = np.random.default_rng(0)

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    def _random_rows(self, num_rows: int) -> np.ndarray:
        return self.rng.uniform(1, 9, (num_rows, DIM)).astype(np.float32)

    def _choose(self, number: int) -> tuple[str, Expected]:
        return list(self.world.versions.items())[number % len(self.world.versions)]

    @initialize(dtype=st.sampled_from(list(ROW_TYPES)))
    def begin(self, dtype: str) -> None:
        self.write("one", dtype, 4)

    @rule(model=st.sampled_from(MODELS), dtype=st.sampled_from(list(ROW_TYPES)), num_rows=st.integers(1, 9))
    def write(self, model: str, dtype: str, num_rows: int) -> None:
        rows = self._random_rows(num_rows)
        table = TableContent("T", num_rows, DIM, [rows], dtype)
        features = [FeatureContent("T", "T", "sum")]
        new = write_whole(self.store, self.folder / "parts", model=model, tables=[table], features=features)
        self.world.versions[new.name] = Expected(model, dtype, quantize_rows(rows, dtype))

    @rule(number=st.integers(0), marks=st.lists(st.sampled_from("kwwr"), min_size=1, max_size=12))
    def write_delta(self, number: int, marks: list[str]) -> None:
        """Each row is kept, written or removed; marks beyond the table's end are of new rows, which cannot be kept."""
        name, old = self._choose(number)
        marks = [mark if place < len(old.rows) else mark.replace("k", "w") for place, mark in enumerate(marks)]
        num_rows = max(len(old.rows), len(marks))
        ids, removed = (
            np.array([place for place, mark in enumerate(marks) if mark == kind], np.int64) for kind in "wr"
        )
        written = self._random_rows(len(ids))
        rows = np.zeros((num_rows, old.rows.shape[1]), old.rows.dtype)
        rows[: len(old.rows)] = old.rows
        rows[ids], rows[removed] = quantize_rows(written, old.dtype) if len(ids) else 0, 0
        parent = self.store.open(name)
        content = DeltaContent(
            dense=self.folder / "parts/dense.onnx",
            transform=self.folder / "parts",
            num_dense=2,
            tables=[TableDelta("T", num_rows, ids, [written] if len(ids) else [], removed)],
        )
        new = self.store.write_delta(content, parent)
        num_deltas = old.num_deltas + bool(len(ids) or len(removed))
        self.world.versions[new.name] = Expected(old.model, old.dtype, rows, name, num_deltas)

    @rule(number=st.integers(0))
    def compact(self, number: int) -> None:
        name, old = self._choose(number)
        if old.num_deltas and name != self.world.of(old.model)[-1]:
            with pytest.raises(ContentError, match="is not the newest version"):
                compact_version(self.store, name)
            return
        new = compact_version(self.store, name)
        assert (new.name == name) == (old.num_deltas == 0)
        if new.name != name:
            self.world.versions[new.name] = Expected(old.model, old.dtype, old.rows)

    @rule(number=st.integers(0))
    def roll_back(self, number: int) -> None:
        name, old = self._choose(number)
        new = roll_back(self.store, name)
        self.world.versions[new.name] = Expected(old.model, old.dtype, old.rows, old.parent, old.num_deltas)

    @rule(keep=st.integers(1, 4))
    def collect(self, keep: int) -> None:
        collect_garbage(self.store, keep=keep, grace_seconds=0)
        kept = {name for model in MODELS for name in self.world.of(model)[-keep:]}
        self.world.versions = {name: version for name, version in self.world.versions.items() if name in kept}
        there = {path for path in self.store.path.glob("*/**/*") if path.is_file()}
        assert there == self._named()

    @precondition(lambda self: len(self.world.versions) > 1)
    @rule(one=st.integers(0), other=st.integers(0))
    def compare(self, one: int, other: int) -> None:
        pairs = self._choose(one), self._choose(other)
        (table,) = compare_versions(*(self.store.open(name, verify=False) for name, _ in pairs)).tables
        rows = [_values(self.store.open(name, verify=False)) for name, _ in pairs]
        size = max(map(len, rows))
        before, after = (np.concatenate([part, np.zeros((size - len(part), DIM))]) for part in rows)
        was, is_ = before.any(axis=1), after.any(axis=1)
        expected = is_ & ~was, was & is_ & (before != after).any(axis=1), was & ~is_
        assert (table.num_added, table.num_changed, table.num_removed) == tuple(mask.sum() for mask in expected)

    @rule()
    def verify(self) -> None:
        found = verify_versions(self.store, self.store.names())
        assert found.damages == ()
        assert list(found.sound) == list(self.world.versions)

    @invariant()
    def holds_what_was_written(self) -> None:
        if not self.world.versions:
            return
        assert self.store.names() == list(self.world.versions)
        for name, expected in self.world.versions.items():
            version = self.store.open(name, verify=False)
            (table,) = version.tables
            assert (version.model, table.dtype, len(table.deltas)) == (
                *(expected.model, expected.dtype),
                expected.num_deltas,
            )
            assert (version.parent.name if version.parent else None) == expected.parent
            assert np.concatenate(list(version.blocks("T"))).tobytes() == expected.rows.tobytes()
        for model in MODELS:
            if names := self.world.of(model):
                assert self.store.open(model=model, verify=False).name == names[-1]

    def _named(self) -> set[Any]:
        versions = [self.store.open(name) for name in self.store.names()]
        files = {self.store.path / path for version in versions for path in version.files()}
        return files | {version.path / "manifest.json" for version in versions}


def _values(version: Version) -> np.ndarray:
    return version.rows("T", np.arange(version.tables[0].num_rows))


TestOperations = Operations.TestCase
TestOperations.settings = settings(
    max_examples=20,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
