from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.refresh.freshness import Freshness, event_time
from tests.serving.small_version import MODEL, write_version


def with_event(version: Version, value: Any) -> Version:
    record = replace(version.record, metrics={"event_time": value})
    return replace(version, name="000002-00000000", record=record)


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return write_version(tmp_path_factory.mktemp("store"))


def test_both_ways_are_measured(version: Version) -> None:
    registry = CollectorRegistry()
    freshness = Freshness(registry, MODEL, age=lambda: 7.0)
    exported = version.created_at.timestamp()
    freshness.observe(version, now=exported + 3.0)
    freshness.observe(with_event(version, exported - 60.0), now=exported + 2.0)
    # They are rolled back and out again: that is no news of the store's.
    for again in (version, with_event(version, exported - 60.0)):
        freshness.observe(again, now=exported + 5000.0)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"model": MODEL, **labels})

    assert freshness.figures() == pytest.approx(
        {"served_age_seconds": 7.0, "last_since_export_seconds": 2.0, "last_since_event_seconds": 62.0}
    )
    assert value("rankhouse_freshness_seconds_count", since="export") == 2
    assert value("rankhouse_freshness_seconds_sum", since="export") == pytest.approx(5.0)
    assert value("rankhouse_freshness_seconds_count", since="event") == 1
    assert value("rankhouse_freshness_seconds_sum", since="event") == pytest.approx(62.0)
    assert value("rankhouse_served_version_age_seconds") == 7.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.5, 1.5),
        (2, 2.0),
        ("2026-11-21T10:00:00+00:00", 1795255200.0),
        ("2026-11-21T10:00:00Z", 1795255200.0),
        ("yesterday", None),
        (True, None),
        (float("nan"), None),
        (None, None),
    ],
)
def test_the_time_of_the_newest_event(version: Version, value: Any, expected: float | None) -> None:
    assert event_time(with_event(version, value)) == expected


def test_before_anything_is_served_there_are_no_figures() -> None:
    assert Freshness(CollectorRegistry(), MODEL, age=lambda: float("nan")).figures() == {}


def test_a_version_may_not_say(version: Version) -> None:
    assert event_time(version) is None
