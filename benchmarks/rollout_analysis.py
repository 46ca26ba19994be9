"""How often the analysis of a rollout is wrong, and how fast it is right, by simulation.

    rankhouse bench rollout_analysis                         about 20 minutes on 2 cores
    rankhouse bench rollout_analysis --quick                 about 2 minutes
    rankhouse bench rollout_analysis --picture FILE.svg      draws the curves

Requests of 8 candidates each, shown to users who click more or less; one of five goes to the candidate version, and one
of ten of the others is scored by it as a shadow. Every 250 requests of the candidate, and less often only after 5,000,
the analysis looks.

False alarms: the candidate is equal, each metric's limit is that it may not be worse at all, so the truth lies on the
limit, and nothing is stopped. The share of simulations in which a metric has failed by then, judged alone at alpha, and
in which the analysis of all of them at alpha has; beside a z-test of click rates that is made for one look, at the same
looks.

Detection: limits as one would set them. Requests of the candidate until it is rolled back, or promoted.
"""

import argparse
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.console import Console

from benchmarks.support.machine import describe_machine
from benchmarks.support.progress import progress
from benchmarks.support.rollout_analysis.picture import draw
from benchmarks.support.rollout_analysis.simulation import (
    Alarms,
    Rollout,
    false_alarms,
    looks_until,
    roll_out,
    share_by,
)
from benchmarks.support.rollout_analysis.traffic import STABLE, Version
from benchmarks.support.sheet import Sheet, report
from rankhouse.serving.analysis.spec import AnalysisSpec, MetricSpec

ALPHA = 0.05

NOT_WORSE = (
    MetricSpec("error_rate", max_increase=0.0),
    MetricSpec("latency_p50", max_ratio=1.0),
    MetricSpec("latency_p99", max_ratio=1.0),
    MetricSpec("missing_features", max_increase=0.0),
    MetricSpec("unknown_ids", max_increase=0.0),
    MetricSpec("score_psi", max_value=0.0),
    MetricSpec("score_ks", max_value=0.0),
    MetricSpec("ctr", max_loss=0.0),
    MetricSpec("auc", max_loss=0.0),
    MetricSpec("calibration", max_increase=0.0),
)

SPEC = AnalysisSpec(
    alpha=ALPHA,
    min_requests=1000,
    metrics=(
        MetricSpec("error_rate", max_increase=0.005),
        MetricSpec("latency_p50", max_ratio=1.15),
        MetricSpec("latency_p99", max_ratio=1.5),
        MetricSpec("missing_features", max_increase=0.03),
        MetricSpec("score_psi", max_value=0.1),
        MetricSpec("rank_correlation", min_value=0.9),
        MetricSpec("top_k_overlap", min_value=0.8),
        MetricSpec("ctr", max_loss=0.03),
        MetricSpec("auc", max_loss=0.03),
        MetricSpec("calibration", max_increase=0.1),
    ),
)

CANDIDATES = {
    "equal": STABLE,
    "clicks -5 %": Version(clicks=0.95),
    "clicks -10 %": Version(clicks=0.9),
    "clicks -20 %": Version(clicks=0.8),
    "errors 0.1 -> 2 %": Version(error_rate=0.02),
    "all 30 % slower": Version(slowness=1.3),
    "slow tail 0.5 -> 3 %": Version(slow_share=0.03),
    "odds of scores x 1.5": Version(odds=1.5),
    "shuffled ranking": Version(noise=1.0),
}

_Result = TypeVar("_Result")


def main() -> None:
    """Simulates and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few simulations")
    parser.add_argument("--alarms", type=int, help="simulations of equal candidates that nothing stops")
    parser.add_argument("--rollouts", type=int, help="rollouts of each candidate")
    parser.add_argument("--requests", type=int, default=200_000, help="of a candidate, after which it is undecided")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--picture", type=Path, help="an SVG file to draw")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    console = Console(highlight=False)
    num_alarms = options.alarms or (60 if options.quick else 1000)
    num_rollouts = options.rollouts or (10 if options.quick else 40)
    looks, long_looks = looks_until(20_000), looks_until(options.requests)
    with ProcessPoolExecutor(options.processes) as pool, progress(console) as say:
        alarms = _simulated(pool, functools.partial(false_alarms, NOT_WORSE, ALPHA, looks), num_alarms, say)
        rollouts = {
            name: _simulated(
                pool,
                functools.partial(roll_out, SPEC, version, long_looks),
                num_rollouts,
                functools.partial(_say_of, say, name),
            )
            for name, version in CANDIDATES.items()
        }
    sheets = [alarm_sheet(alarms, looks), rollout_sheet(rollouts)]
    report(console, [describe_machine(), str(__doc__).split("\n\n", 2)[2]], sheets, [], options.output)
    if options.picture:
        options.picture.write_text(_picture(alarms, looks, rollouts, long_looks))


def alarm_sheet(alarms: Sequence[Alarms], looks: Sequence[int]) -> Sheet:
    """How many simulations of equal candidates gave a false alarm, by test."""
    num = len(alarms)
    lines = [
        ("the analysis", [alarm.analysis for alarm in alarms]),
        *((f"{metric.name} alone", [alarm.metrics.get(metric.name) for alarm in alarms]) for metric in NOT_WORSE),
        ("a z-test for one look", [alarm.naive for alarm in alarms]),
    ]
    counts = {name: sum(event is not None for event in events) for name, events in lines}
    title = f"False alarms in {num:,} rollouts of equal candidates, {len(looks)} looks, {looks[-1]:,} requests"
    return Sheet(
        title, ("test", "alarms", "share"), [[name, str(count), f"{count / num:.1%}"] for name, count in counts.items()]
    )


def rollout_sheet(rollouts: dict[str, list[Rollout]]) -> Sheet:
    """How rollouts ended, and after how many requests of the candidate."""
    lines = []
    for name, ended in rollouts.items():
        by_outcome = {
            outcome: [one for one in ended if one.outcome == outcome] for outcome in ("fail", "pass", "running")
        }
        decided = sorted(one.num_requests for one in ended if one.outcome == ("pass" if name == "equal" else "fail"))
        causes = sorted({metric for one in by_outcome["fail"] for metric in one.failed})
        quantiles = [f"{np.quantile(decided, share):,.0f}" if decided else "" for share in (0.5, 0.9)]
        counts = [str(len(by_outcome[outcome])) for outcome in ("fail", "pass", "running")]
        lines.append([name, str(len(ended)), *counts, *quantiles, ", ".join(causes)])
    columns = ("candidate", "rollouts", "rolled back", "promoted", "undecided", "requests, median", "90 %", "failed by")
    return Sheet("Requests of the candidate until it is rolled back; of equal ones, promoted", columns, lines)


def _simulated(
    pool: ProcessPoolExecutor, simulate: Callable[[int], _Result], num: int, say: Callable[[str], None]
) -> list[_Result]:
    """The results of simulations with the seeds from 0, in their order."""
    futures = [pool.submit(simulate, seed) for seed in range(num)]
    for done, _ in enumerate(as_completed(futures), 1):
        say(f"{done:,} of {num:,} simulations")
    return [future.result() for future in futures]


def _say_of(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")


def _picture(
    alarms: Sequence[Alarms], looks: Sequence[int], rollouts: dict[str, list[Rollout]], long_looks: Sequence[int]
) -> str:
    curves = {
        metric.name: share_by(looks, [alarm.metrics.get(metric.name) for alarm in alarms]) for metric in NOT_WORSE
    }
    curves["one look"] = share_by(looks, [alarm.naive for alarm in alarms])
    curves["analysis"] = share_by(looks, [alarm.analysis for alarm in alarms])
    ends = {
        name: share_by(
            long_looks,
            [one.num_requests if one.outcome == ("pass" if name == "equal" else "fail") else None for one in ended],
        )
        for name, ended in rollouts.items()
    }
    return draw(looks, curves, ALPHA, long_looks, ends)


if __name__ == "__main__":
    main()
