"""What Prometheus reads at /metrics."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_CANDIDATES = (1, 4, 16, 64, 128, 256, 512, 1024, 4096)


class Metrics:
    """The gateway's counters, with a registry of their own. Any thread may use them.

    Args:
        model: The served model's name.
        version: The served version's name.
        num_in_flight: Says how many requests are in flight when asked.
    """

    def __init__(self, model: str, version: str, num_in_flight: Callable[[], float]) -> None:
        self._registry = CollectorRegistry()
        labels = {"model": model, "version": version}
        # Only names that we serve become labels: callers must not be able to make new time series.
        self._requests = Counter(
            "rankhouse_requests",
            "Scoring requests by HTTP status (499: the caller left), or the one that the gRPC status stands for.",
            ("model", "version", "protocol", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "rankhouse_request_seconds",
            "Time from a request's arrival to its answer.",
            ("model", "version", "protocol"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._candidates = Histogram(
            "rankhouse_request_candidates",
            "Candidates in a request that was scored.",
            ("model", "version"),
            buckets=_CANDIDATES,
            registry=self._registry,
        ).labels(**labels)
        self._degraded = Counter(
            "rankhouse_degraded_answers",
            "Requests that were scored with default rows in place of embeddings that could not be read.",
            ("model", "version"),
            registry=self._registry,
        ).labels(**labels)
        Gauge("rankhouse_requests_in_flight", "Requests being answered.", registry=self._registry).set_function(
            num_in_flight
        )
        self._labels = labels

    def observe_request(self, protocol: str, *, status: int, seconds: float) -> None:
        """Counts a request, however it ended."""
        self._requests.labels(**self._labels, protocol=protocol, status=str(status)).inc()
        self._seconds.labels(**self._labels, protocol=protocol).observe(seconds)

    def observe_answer(self, num_candidates: int, *, is_degraded: bool) -> None:
        """Counts a request that was scored."""
        self._candidates.observe(num_candidates)
        if is_degraded:
            self._degraded.inc()

    def text(self) -> bytes:
        """All of them, in Prometheus' format."""
        return generate_latest(self._registry)
