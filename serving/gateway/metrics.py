"""What Prometheus reads at /metrics."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_CANDIDATES = (1, 4, 16, 64, 128, 256, 512, 1024, 4096)


class _ByVersion:
    """A metric whose time series end with the version that they are of."""

    def __init__(self, metric: Any, model: str) -> None:
        self._metric = metric
        self._model = model
        self._series: dict[tuple[str, ...], Any] = {}

    def of(self, *labels: str) -> Any:
        """The time series of a version and what more labels there are; kept, as to make one takes long."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = self._metric.labels(self._model, *labels)
        return series

    def forget(self, version: str) -> None:
        for labels in [labels for labels in self._series if labels[0] == version]:
            del self._series[labels]
            self._metric.remove(self._model, *labels)


class Metrics:
    """The gateway's counters, with a registry of their own. For the event loop's thread only.

    Only names that we serve become labels: callers must not be able to make new time series.

    Args:
        model: The served model's name.
        num_in_flight: Says how many requests are in flight when asked.

    Attributes:
        registry: Holds them; what else the gateway measures may be added.
    """

    def __init__(self, model: str, num_in_flight: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._requests = self._by_version(
            Counter,
            "requests",
            "Scoring requests by HTTP status (499: the caller left), or the one that the gRPC status stands for; with "
            "an empty version where they were refused before one was chosen.",
            ("arm", "protocol", "status"),
        )
        self._seconds = self._by_version(
            Histogram,
            "request_seconds",
            "Time from a request's arrival to its answer.",
            ("arm", "protocol"),
            buckets=_SECONDS,
        )
        self._candidates = self._by_version(
            Histogram, "request_candidates", "Candidates in a request that was scored.", buckets=_CANDIDATES
        )
        self._degraded = self._by_version(
            Counter,
            "degraded_answers",
            "Requests that were scored with default rows in place of embeddings that could not be read.",
        )
        self._ids = self._by_version(
            Counter,
            "values",
            "Categorical values of requests that were scored, those included that are missing outside of lists.",
        )
        self._unknown = self._by_version(
            Counter, "unknown_values", "Categorical values of requests that were scored that stand in no vocabulary."
        )
        self._shadows = self._by_version(
            Counter,
            "shadow_requests",
            "Answered requests that a candidate was to score as well: scored, failed, late or dropped.",
            ("outcome",),
        )
        self._feedback = self._plain(
            Counter, "feedback", "Reports of outcomes: accepted, duplicate, unknown, late, invalid.", ("outcome",)
        )
        self._without_key = self._plain(
            Counter, "requests_without_key", "Scoring requests that had no key, so that chance chose their version."
        )
        self._lost = self._plain(
            Counter, "observations_lost", "What could not be kept of answers: `answers` that feedback needs.", ("what",)
        )
        self._revision = self._plain(
            Gauge, "control_revision", "Revision of the state that decides which version answers."
        )
        self._stale = self._plain(
            Gauge, "control_stale", "1: that state cannot be read now, and the last one that was read holds; else 0."
        )
        self._plain(Gauge, "requests_in_flight", "Requests being answered.").set_function(num_in_flight)

    def _plain(self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> Any:
        return kind(f"rankhouse_{name}", text, labels, registry=self.registry, **more)

    def _by_version(self, kind: Any, name: str, text: str, labels: tuple[str, ...] = (), **more: Any) -> _ByVersion:
        return _ByVersion(self._plain(kind, name, text, ("model", "version", *labels), **more), self._model)

    def observe_request(self, protocol: str, *, version: str, arm: str, status: int, seconds: float) -> None:
        """Counts a request, however it ended; `version` and `arm` are empty where none was chosen."""
        self._requests.of(version, arm, protocol, str(status)).inc()
        self._seconds.of(version, arm, protocol).observe(seconds)

    def observe_answer(self, version: str, num_candidates: int, *, is_degraded: bool) -> None:
        """Counts a request that was scored."""
        self._candidates.of(version).observe(num_candidates)
        degraded = self._degraded.of(version)  # Made with the first answer, so that 0 is seen too.
        if is_degraded:
            degraded.inc()

    def observe_ids(self, version: str, num_unknown: int, num_ids: int) -> None:
        """Counts the categorical values of a request that was scored, and those that stand in no vocabulary."""
        self._unknown.of(version).inc(num_unknown)
        self._ids.of(version).inc(num_ids)

    def observe_without_key(self) -> None:
        """Counts a request that had no key."""
        self._without_key.inc()

    def observe_shadow(self, version: str, outcome: str) -> None:
        """Counts what became of a shadow: scored, failed, late or dropped."""
        self._shadows.of(version, outcome).inc()

    def observe_feedback(self, outcome: str, number: int) -> None:
        """Counts reports of outcomes: accepted, duplicate, unknown, late or invalid."""
        self._feedback.labels(outcome).inc(number)

    def observe_lost(self, what: str, number: int) -> None:
        """Counts what could not be kept of answers."""
        self._lost.labels(what).inc(number)

    def show_control(self, *, revision: int, is_stale: bool) -> None:
        """Shows which state holds."""
        self._revision.set(revision)
        self._stale.set(is_stale)

    def forget(self, version: str) -> None:
        """Ends the time series of a version that is not served any more."""
        answers = (self._candidates, self._degraded, self._ids, self._unknown)
        for metric in (self._requests, self._seconds, *answers, self._shadows):
            metric.forget(version)

    def text(self) -> bytes:
        """All of them, in Prometheus' format."""
        return generate_latest(self.registry)
