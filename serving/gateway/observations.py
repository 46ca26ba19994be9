"""What versions answered, summed up for those who judge them."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.state_store import SummaryKey, summary_key
from rankhouse.serving.gateway.call import Answered, Result
from rankhouse.serving.gateway.served_model import ServedModel


class _Key(NamedTuple):
    rollout: str
    version: str
    arm: str


class Observations:
    """Summaries by rollout, version and arm, of this process's whole life. For the event loop's thread only.

    The stable arm's answers count for the version as such (no rollout) and for every rollout under way, so that
    candidate and control group are observed over the same time. What chance did not choose counts nowhere: versions
    that callers asked for, and those that stood in for one that is not loaded here.
    """

    def __init__(self) -> None:
        self._summaries: dict[_Key, Summary] = {}
        self._features: dict[str, tuple[str, ...]] = {}
        self._rollouts: frozenset[str] = frozenset()

    def follow(self, models: Mapping[str, ServedModel], rollouts: Collection[str]) -> None:
        """Forgets what is neither of these rollouts nor, without a rollout, of these versions."""
        self._rollouts = frozenset(rollouts)
        self._features = {version: model.columns for version, model in models.items()}
        for key in [key for key in self._summaries if not self._is_wanted(key)]:
            del self._summaries[key]

    def _is_wanted(self, key: _Key) -> bool:
        return key.rollout in self._rollouts if key.rollout else key.version in self._features

    def observe(self, answered: Answered) -> None:
        """Counts an answer."""
        route, result = answered.route, answered.result
        if route.arm == "override" or route.is_fallback:
            return
        summaries = self._of(answered.rollouts, route.version, route.arm)
        if result is None:
            for summary in summaries:
                summary.observe_answer(answered.status, answered.seconds)
            return
        missing_F = missing_values(result)
        for summary in summaries:
            summary.observe_answer(
                answered.status,
                answered.seconds,
                result.scores,
                num_missing=int(missing_F.sum()),
                num_values=result.raw.num_rows * len(missing_F),
                is_degraded=result.is_degraded,
                missing_F=missing_F,
            )
            summary.observe_ids(result.num_unknown, result.num_ids)

    def observe_shadow(
        self,
        rollout: str,
        version: str,
        *,
        status: int,
        seconds: float,
        is_degraded: bool = False,
        ids: tuple[int, int] = (0, 0),
    ) -> None:
        """Counts a shadow's answer, or that there was none; `ids` are those that were unknown, and all."""
        for summary in self._of((rollout,), version, "shadow"):
            summary.observe_answer(status, seconds, is_degraded=is_degraded)
            summary.observe_ids(*ids)

    def observe_pair(
        self,
        rollout: str,
        version: str,
        *,
        stable: npt.NDArray[np.float32],
        candidate: npt.NDArray[np.float32],
        top_k: int,
    ) -> None:
        """Compares the scores [B] of the two versions for one request."""
        for summary in self._of((rollout,), version, "shadow"):
            summary.observe_pair(stable, candidate, top_k)

    def observe_outcomes(
        self,
        rollouts: Collection[str],
        version: str,
        arm: str,
        *,
        scores: npt.NDArray[np.float32],
        labels: npt.NDArray[np.bool_],
        event: str,
    ) -> None:
        """Counts what became of candidates of one request: their scores [n], and whether the event happened [n]."""
        for summary in self._of(rollouts, version, arm):
            summary.observe_outcomes(scores, labels, event=event)

    def content(self) -> dict[SummaryKey, bytes]:
        """All summaries, as they are published."""
        return {summary_key(*key): summary.to_bytes() for key, summary in self._summaries.items()}

    def _of(self, rollouts: Collection[str], version: str, arm: str) -> list[Summary]:
        """The summaries that an answer belongs to; rollouts that are over get none."""
        keys = [_Key(rollout, version, arm) for rollout in rollouts if rollout in self._rollouts]
        if arm == "stable" and version in self._features:
            keys.append(_Key("", version, arm))
        return [self._summary(key) for key in keys]

    def _summary(self, key: _Key) -> Summary:
        summary = self._summaries.get(key)
        if summary is None:
            summary = self._summaries[key] = Summary(self._features.get(key.version, ()))
        return summary


def missing_values(result: Result) -> npt.NDArray[np.int64]:
    """How many rows of a request have no value for each feature: int64 [F], in the order of `ServedModel.columns`."""
    raw = result.raw
    # A product counts several times faster than NumPy's sums over an axis of booleans.
    ones_B = np.ones(raw.num_rows)
    is_missing = (np.isnan(raw.float_values), raw.int_lengths == 0, raw.text_lengths == 0)
    missing_F: npt.NDArray[np.float64] = np.concatenate([ones_B @ missing_BF for missing_BF in is_missing])
    return missing_F.astype(np.int64)
