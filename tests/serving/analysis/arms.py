"""Arms of a simulated rollout: summaries as a gateway would fill them, of requests whose truth is known."""

from dataclasses import dataclass

import numpy as np

from rankhouse.serving.analysis.summary import Summary


@dataclass(frozen=True)
class Truth:
    """What a version does.

    Attributes:
        error_rate: The share of requests that fail.
        slowness: All latencies are so many times as long.
        ctr_factor: Clicks are so many times as likely.
        score_factor: Scores are so many times the true chance of a click without `ctr_factor`.
        order_noise: The standard deviation of noise in the log-odds of scores.
    """

    error_rate: float = 0.001
    slowness: float = 1.0
    ctr_factor: float = 1.0
    score_factor: float = 1.0
    order_noise: float = 0.0


def observe(summary: Summary, truth: Truth, num_requests: int, rng: np.random.Generator, *, shown: int = 8) -> None:
    """Observes requests of 8 candidates, of users who click more or less; all are shown."""
    log_odds = rng.normal(-3.2, 0.7, (num_requests, 1)) + rng.normal(0, 0.8, (num_requests, shown))
    chances = 1 / (1 + np.exp(-log_odds))
    noisy = 1 / (1 + np.exp(-log_odds - truth.order_noise * rng.normal(size=log_odds.shape)))
    scores = np.minimum(noisy * truth.score_factor, 0.999).astype(np.float32)
    labels = rng.random(chances.shape) < chances * truth.ctr_factor
    seconds = 0.004 * truth.slowness * np.exp(0.4 * rng.normal(size=num_requests))
    failed = rng.random(num_requests) < truth.error_rate
    missing = rng.binomial(shown * 39, 0.03, num_requests)
    for row in range(num_requests):
        if failed[row]:
            summary.observe_answer(500, seconds[row])
            continue
        summary.observe_answer(200, seconds[row], scores[row], num_missing=int(missing[row]), num_values=shown * 39)
        summary.observe_outcomes(scores[row], labels[row])
        summary.observe_ids(2, shown * 26)


def arm(truth: Truth, num_requests: int, rng: np.random.Generator) -> Summary:
    """A new summary of requests."""
    summary = Summary()
    observe(summary, truth, num_requests, rng)
    return summary
