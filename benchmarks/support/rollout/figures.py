"""What rollouts took, as tables."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from benchmarks.support.rollout.proof import Proof
from benchmarks.support.rollout.timings import AT_REST, EXPORT, Refreshed, Timings, WentBack
from benchmarks.support.sheet import Sheet

MOST_P99_RATIO, MOST_BACK_MS = 1.25, 100.0
_BESIDE = {"shadow 10 %": "shadow 0 %"}


def timing_sheets(timings: Timings) -> list[Sheet]:
    """Returns what was measured, all rounds together, and how it compares with the aims."""
    latencies, ratios = _latencies(timings)
    num_failed = sum(each.is_failed for each in timings.answers)
    back = {"rollback": timings.rollbacks, "abort": timings.aborts}
    lines = [
        [f"p99, {what}, under {MOST_P99_RATIO}x", f"{ratio:.2f}x", _judged(ratio < MOST_P99_RATIO)]
        for what, ratio in ratios
    ]
    for what, found in back.items():
        took = _ms(found, "full")
        lines.append([f"{what} under {MOST_BACK_MS:g} ms", f"{took:.1f} ms", _judged(took < MOST_BACK_MS)])
    lines.append(["none failed", f"{num_failed} of {len(timings.answers):,}", _judged(num_failed == 0)])
    return [latencies, _refreshes(timings.refreshes), _went_back(back), Sheet("Aims", ("aim", "found", ""), lines)]


def proof_sheets(proof: Proof) -> list[Sheet]:
    """Returns what the history says of the answers."""
    found = proof.findings
    line = [
        *(f"{found.num_answers:,}", *(f"{proof.num_by_protocol[protocol]:,}" for protocol in ("rest", "grpc"))),
        *(str(len(found.num_by_version)), str(proof.num_keys), str(len(found.wrong)), str(found.num_failed)),
        *(str(found.num_fallbacks), f"{found.most_lag_seconds * 1e3:.0f}", f"{proof.seconds:.0f}"),
    ]
    heads = (
        *("answers", "REST", "gRPC", "of versions", "keys", "failed, mixed or of a version not allowed", "excused"),
        *("stood in", "longest ms after an event", "seconds"),
    )
    events = [[kind, str(count)] for kind, count in sorted(proof.num_events.items())]
    sheets = [Sheet("Answers held against the history", heads, [line]), Sheet("Events", ("event", "times"), events)]
    if found.wrong:
        sheets.append(Sheet("What was wrong", ("what",), [[text] for text in found.wrong]))
    return sheets


def _latencies(timings: Timings) -> tuple[Sheet, list[tuple[str, float]]]:
    percentiles = {what: np.percentile(timings.seconds(what), [50, 99]) * 1e3 for what in timings.windows}
    lines, ratios = [], []
    for what, (p50, p99) in percentiles.items():
        beside = _BESIDE.get(what, AT_REST)
        ratio = p99 / percentiles[beside][1]
        lines.append([what, f"{len(timings.seconds(what)):,}", f"{p50:.2f}", f"{p99:.2f}", f"{ratio:.2f}x {beside}"])
        if what not in (AT_REST, EXPORT, "shadow 0 %"):
            ratios.append((what, ratio))
    return Sheet("Requests, milliseconds", ("while", "requests", "p50", "p99", "p99 ratio"), lines), ratios


def _refreshes(refreshes: Sequence[Refreshed]) -> Sheet:
    names = ("export", "loading", "admitted", "first", "full")
    heads = ("export", "of which loading", "until admitted", "until the first answer", "until full traffic")
    medians = [f"{_ms(refreshes, name):,.0f}" for name in names]
    most = [f"{max(getattr(each, name) for each in refreshes) * 1e3:,.0f}" for name in names]
    title = f"From `export --delta` on, milliseconds, {len(refreshes)} deltas"
    return Sheet(title, ("", *heads), [["median", *medians], ["longest", *most]])


def _went_back(back: dict[str, list[WentBack]]) -> Sheet:
    lines = []
    for what, found in back.items():
        medians = (f"{_ms(found, name):.1f}" for name in ("command", "first", "full"))
        lines.append([what, str(len(found)), *medians, f"{max(each.full for each in found) * 1e3:.1f}"])
    heads = ("", "times", "command", "first answer", "last request to the other version", "longest")
    return Sheet("Going back, milliseconds since the command", heads, lines)


def _judged(is_met: bool) -> str:
    return "met" if is_met else "missed"


def _ms(found: Sequence[Any], name: str) -> float:
    return float(median(getattr(each, name) for each in found)) * 1e3
