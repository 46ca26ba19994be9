"""A state store in a file, and an admin port over it."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.state_stores import open_state_store
from tests.serving.admin.world import RunningAdmin, has_stable, reports


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    opened = open_state_store(f"sqlite://{tmp_path}/state.db", timeout_seconds=60.0)
    yield opened
    opened.close()


@pytest.fixture
def admin(store: StateStore, tmp_path: Path) -> Iterator[RunningAdmin]:
    """The port, for a model with a stable version and one replica."""
    has_stable(store)
    reports(store)
    with RunningAdmin(store, tmp_path) as running:
        yield running


@pytest.fixture
def client(admin: RunningAdmin) -> Iterator[httpx.Client]:
    """Calls with the first key."""
    with admin.client() as client:
        yield client
