"""How old a version is when it can first be served here, for Prometheus."""

import math
from collections.abc import Callable
from datetime import datetime

from prometheus_client import CollectorRegistry, Gauge, Histogram

from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.format.version_record import EVENT_TIME, sequence_of

_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400)


class Freshness:
    """Measures how long versions are under way. Use from one thread.

    Args:
        registry: Gets the metrics.
        model: The model's name.
        age: Gives the age of the version that is served, in seconds, when it is asked; NaN if there is none.
    """

    def __init__(self, registry: CollectorRegistry, model: str, *, age: Callable[[], float]) -> None:
        histogram = Histogram(
            "rankhouse_freshness_seconds",
            "From the newest event in a version, or from its export, until it could first be served here. Versions "
            "that were there when the gateway started do not count.",
            ("model", "since"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._age = age
        self._last: dict[str, float] = {}
        self._newest = 0  # The highest number of a version that was measured.
        self._since_event = histogram.labels(model, "event")
        self._since_export = histogram.labels(model, "export")
        Gauge(
            "rankhouse_served_version_age_seconds",
            "Time since the export of the version that is served.",
            ("model",),
            registry=registry,
        ).labels(model).set_function(age)

    def observe(self, version: Version, *, now: float) -> None:
        """Takes note that a version can be served from now on (unix seconds).

        One that is no newer than another that was noted is none of the store's news: it was here before, and comes
        back, or was passed over.
        """
        if sequence_of(version.name) <= self._newest:
            return
        self._newest = sequence_of(version.name)
        since_export = max(0.0, now - version.created_at.timestamp())
        self._since_export.observe(since_export)
        self._last = {"last_since_export_seconds": since_export}
        if (event := event_time(version)) is not None:
            since_event = max(0.0, now - event)
            self._since_event.observe(since_event)
            self._last["last_since_event_seconds"] = since_event

    def figures(self) -> dict[str, float]:
        """The age of the version that is served, and what the last new version took; in seconds."""
        age = self._age()
        return self._last | ({} if math.isnan(age) else {"served_age_seconds": age})


def event_time(version: Version) -> float | None:
    """When the newest event that a version was trained on happened, in unix seconds; None if it does not say.

    Our exports write unix seconds; ISO 8601 is heard of those who write it themselves.
    """
    value = version.metrics.get(EVENT_TIME)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value.replace("Z", "+00:00")).timestamp()
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None
