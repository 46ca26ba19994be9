"""One Triton for all faults that do not end it, and sites: a model with its versions, state and replicas."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.rollout.site import Site
from rankhouse.serving.triton_server import TritonServer


@pytest.fixture(scope="package")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A Triton of these tests' own: gateways unload what they do not know."""
    run_dir = tmp_path_factory.mktemp("faults-triton")
    with TritonServer(run_dir / "models", run_dir=run_dir) as server:
        yield server


@pytest.fixture(autouse=True)
def patient_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow on a busy machine is no fault: gateways have less time for a request only than those who ask."""
    monkeypatch.setenv("RANKHOUSE_REQUEST_TIMEOUT_SECONDS", "25")


@pytest.fixture
def new_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Makes a site."""
    sites: list[Site] = []

    def make(**options: Any) -> Site:
        sites.append(Site(tmp_path, **options))
        return sites[-1]

    yield make
    for site in sites:
        site.close()
