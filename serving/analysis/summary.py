"""What is known of the requests that one version answered in one role: sums, and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, score_bins
from rankhouse.serving.analysis import summary_bytes
from rankhouse.serving.analysis.errors import SummaryError
from rankhouse.serving.analysis.latency_bins import NUM_LATENCY_BINS, latency_bins
from rankhouse.serving.analysis.layout import (
    ANSWERED,
    CANCELLED,
    FAILED,
    REFUSED,
    Arrays,
    event_arrays,
    request_arrays,
)
from rankhouse.serving.analysis.outcomes import count_outcomes
from rankhouse.serving.analysis.rank_agreement import spearman, top_k_overlap

MAX_EVENTS = 8
MAX_EVENT_CHARACTERS = 64
_MAX_PENDING_REQUESTS = 256
_MAX_PENDING_SCORES = 8192

Scores = npt.NDArray[Any]


class Summary:
    """What is known of the requests that one version answered in one role. Grows; used from one thread.

    Observing costs a few microseconds: values wait in lists, and are counted some hundred at a time, or when the
    summary is read.

    Args:
        features: The model's features, if rows without a value are counted for each.
    """

    def __init__(self, features: Sequence[str] = ()) -> None:
        self.features = tuple(features)
        self._arrays = request_arrays(len(self.features))
        self._events: dict[str, Arrays] = {}
        self._statuses: list[int] = []
        self._seconds: list[float] = []
        self._scores: list[Scores] = []
        self._missing: list[tuple[int, int]] = []
        self._outcomes: dict[str, list[tuple[Scores, npt.NDArray[np.bool_]]]] = {}
        self._num_pending_scores = 0

    def observe_answer(
        self,
        status: int,
        seconds: float,
        scores: Scores | None = None,
        *,
        num_missing: int = 0,
        num_values: int = 0,
        is_degraded: bool = False,
        missing_F: npt.NDArray[Any] | None = None,
    ) -> None:
        """Takes note of what became of a request.

        Args:
            status: The HTTP status, also of a gRPC request.
            seconds: How long it took; counted for answers, and for requests that ran out of time.
            scores: [n], the probabilities that were answered; the array must not change afterwards.
            num_missing: How many feature values of its rows were missing.
            num_values: How many feature values its rows may have: rows times features.
            is_degraded: Whether default rows stood in for some.
            missing_F: For each of `features`, the number of rows without a value; None: not counted.
        """
        kind = _kind_of(status)
        self._statuses.append(kind)
        if kind == ANSWERED or status == 504:
            self._seconds.append(seconds)
        if scores is not None:
            self._scores.append(scores)
            self._num_pending_scores += len(scores)
        if num_values:
            self._missing.append((num_missing, num_values))
        if is_degraded:
            self._arrays["degraded"][0] += 1
        if missing_F is not None and scores is not None:
            self._arrays["missing_rows"] += missing_F
            self._arrays["rows"][0] += len(scores)
        self._flush_if_many(len(self._statuses))

    def observe_ids(self, num_unknown: int, num_ids: int) -> None:
        """Adds categorical values that were looked up, and how many of them the vocabularies did not have."""
        self._arrays["ids"] += (num_unknown, num_ids)

    def observe_pair(self, stable_scores: Scores, candidate_scores: Scores, top_k: int) -> None:
        """Takes note of one request that both versions scored; for the summary of a shadow.

        Args:
            stable_scores: [n], the stable version's probabilities, n of 1 or more.
            candidate_scores: [n], the candidate's, of the same rows.
            top_k: How many of the highest are compared; where the request has no more than these, nothing is.

        Raises:
            SummaryError: A score is not a finite number.
        """
        if not (np.isfinite(stable_scores).all() and np.isfinite(candidate_scores).all()):
            raise SummaryError(
                "a score of a shadow pair is not a finite number; count the candidate's answer as failed"
            )
        self._scores.append(candidate_scores)
        self._num_pending_scores += len(candidate_scores)
        if len(stable_scores) > 1:
            _add(self._arrays["rank_correlations"], spearman(stable_scores, candidate_scores))
        if len(stable_scores) > top_k:
            _add(self._arrays["top_k_overlaps"], top_k_overlap(stable_scores, candidate_scores, top_k))
        _add(self._arrays["score_differences"], float(np.abs(stable_scores - candidate_scores).mean()))
        self._flush_if_many(len(self._scores))

    def observe_outcomes(self, scores: Scores, labels: npt.NDArray[Any], *, event: str = "click") -> None:
        """Takes note of what came of the candidates of one request that were shown.

        Args:
            scores: [n], the probabilities that they were given.
            labels: [n], 1 or true where the event happened, else 0.
            event: What happened or not.

        Raises:
            SummaryError: There are too many events already, or the event's name is too long.
        """
        self._check_event(event)
        self._outcomes.setdefault(event, []).append((scores, labels.astype(np.bool_)))
        self._num_pending_scores += len(scores)
        self._flush_if_many(len(self._outcomes[event]))

    @property
    def num_requests(self) -> int:
        """The requests that the version answered or failed to answer."""
        statuses = self.arrays["statuses"]
        return int(statuses[ANSWERED] + statuses[FAILED])

    @property
    def arrays(self) -> Mapping[str, npt.NDArray[Any]]:
        """What was counted of requests (layout.py); not to be changed."""
        self._flush()
        return self._arrays

    @property
    def events(self) -> Mapping[str, Mapping[str, npt.NDArray[Any]]]:
        """What was counted of outcomes, by event (layout.py); not to be changed."""
        self._flush()
        return self._events

    def merge(self, other: "Summary") -> "Summary":
        """Adds what another summary has counted, and returns this one.

        Raises:
            SummaryError: The other has other features, or there are too many events together.
        """
        self._check_features(other)
        together = self.events.keys() | other.events.keys()
        if len(together) > MAX_EVENTS:
            raise SummaryError(
                f"the events {', '.join(sorted(together))} are too many; at most {MAX_EVENTS} are counted"
            )
        for name, array in other.arrays.items():
            self._arrays[name] += array
        for event, arrays in other.events.items():
            own = self._events.setdefault(event, event_arrays())
            for name, array in arrays.items():
                own[name] += array
        return self

    def since(self, earlier: "Summary") -> "Summary":
        """What was counted after an earlier state of the same summary, as a new one.

        Raises:
            SummaryError: It is no earlier state of this one.
        """
        self._check_features(earlier)
        later = Summary(self.features).merge(self)
        for event in earlier.events:
            later._events.setdefault(event, event_arrays())
        pairs = [(later._arrays, earlier.arrays)]
        pairs += [(later._events[event], arrays) for event, arrays in earlier.events.items()]
        for own, arrays in pairs:
            for name, array in arrays.items():
                own[name] -= array
                if own[name].dtype == np.float64 and name != "rank_correlations":
                    np.maximum(own[name], 0.0, out=own[name])  # What is left of rounding is no less than nothing.
                if own[name].dtype == np.int64 and own[name].min(initial=0) < 0:
                    raise SummaryError(f"{name} was more before than after: it is no earlier state of this summary")
        return later

    def to_bytes(self) -> bytes:
        """The summary as a few KB, at most 200 KB with all events."""
        return summary_bytes.pack(self.features, self.arrays, self.events)

    @classmethod
    def from_bytes(cls, content: bytes) -> "Summary":
        """Reads what `to_bytes` gave.

        Raises:
            SummaryError: It is something else, damaged, or of a newer release.
        """
        return cls.of(*summary_bytes.unpack(content))

    @classmethod
    def of(cls, features: Sequence[str], arrays: Arrays, events: Mapping[str, Arrays]) -> "Summary":
        """Makes a summary of what was counted (layout.py); the arrays become its own.

        Raises:
            SummaryError: There are too many events, or an event's name is too long.
        """
        summary = cls(features)
        for event in events:
            summary._check_event(event)
            summary._events[event] = events[event]
        summary._arrays = arrays
        return summary

    def _check_event(self, event: str) -> None:
        known = self._events.keys() | self._outcomes.keys()
        if event in known:
            return
        if not event or len(event) > MAX_EVENT_CHARACTERS:
            raise SummaryError(f"the event {event[:80]!r} has no name of 1 to {MAX_EVENT_CHARACTERS} characters")
        if len(known) >= MAX_EVENTS:
            raise SummaryError(f"the event {event!r} is one too many; there are {', '.join(sorted(known))} already")

    def _check_features(self, other: "Summary") -> None:
        if other.features != self.features:
            raise SummaryError(
                f"the summaries are of other features: {len(self.features)} here, {len(other.features)} there; "
                "both must be of one model"
            )

    def _flush_if_many(self, num_requests: int) -> None:
        if num_requests >= _MAX_PENDING_REQUESTS or self._num_pending_scores >= _MAX_PENDING_SCORES:
            self._flush()

    def _flush(self) -> None:
        """Counts what waits."""
        arrays = self._arrays
        if self._statuses:
            arrays["statuses"] += np.bincount(self._statuses, minlength=4)
            self._statuses = []
        if self._seconds:
            arrays["latencies"] += np.bincount(latency_bins(np.array(self._seconds)), minlength=NUM_LATENCY_BINS)
            self._seconds = []
        if self._scores:
            arrays["scores"] += np.bincount(score_bins(np.concatenate(self._scores)), minlength=NUM_SCORE_BINS)
            arrays["scored"][0] += len(self._scores)
            self._scores = []
        if self._missing:
            missing = np.array(self._missing)
            arrays["missing"] += missing.sum(axis=0)
            arrays["missing_shares"] += ((missing[:, 0] / missing[:, 1]).sum(), len(missing))
            self._missing = []
        for event, outcomes in self._outcomes.items():
            count_outcomes(
                self._events.setdefault(event, event_arrays()),
                np.concatenate([scores for scores, _ in outcomes]),
                np.concatenate([labels for _, labels in outcomes]),
                [len(scores) for scores, _ in outcomes],
            )
        self._outcomes = {}
        self._num_pending_scores = 0


def _kind_of(status: int) -> int:
    if status < 400:
        return ANSWERED
    if status >= 500:
        return FAILED
    return CANCELLED if status == 499 else REFUSED


def _add(moments: npt.NDArray[np.float64], value: float) -> None:
    moments += (1.0, value, value * value)
