"""The curves of the benchmark as SVG text: false alarms, and detection."""

import io
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, PercentFormatter

from rankhouse.training.runs.plots import MUTED, SHARED, STYLE

_OURS, _NAIVE, _EQUAL = "#2f6db5", "#c0392b", "#2e8b57"
_WORSE = ("#7a3e9d", "#b5532f", "#d9822b", "#8a949e", "#5b97d1", "#1b9e9e", "#c46aa5", "#3c3c3c")


def draw(
    looks: Sequence[int],
    alarms: Mapping[str, npt.NDArray[np.float64]],
    alpha: float,
    long_looks: Sequence[int],
    ends: Mapping[str, npt.NDArray[np.float64]],
) -> str:
    """Draws both curves side by side.

    Args:
        looks: After how many requests of the candidate there were looks at equal candidates.
        alarms: The share of false alarms by each look: "analysis", "one look" and the metrics.
        alpha: What is allowed.
        long_looks: The looks at worse candidates.
        ends: The share that was rolled back by each look, by what is wrong; "equal" is the share that was promoted.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        _draw_alarms(left, looks, alarms, alpha)
        _draw_ends(right, long_looks, ends)
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_xlabel("requests of the candidate")
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def _draw_alarms(axes: Axes, looks: Sequence[int], alarms: Mapping[str, npt.NDArray[np.float64]], alpha: float) -> None:
    axes.set_title("Equal candidates: false alarms by then", loc="left", fontsize=12)
    axes.axhline(alpha, color=MUTED, linewidth=1, linestyle="--")
    axes.text(looks[0], alpha * 1.04, f"alpha, {alpha:.0%}", color=MUTED, fontsize=10, va="bottom")
    for number, (name, shares) in enumerate(alarms.items()):
        if name in ("analysis", "one look"):
            continue
        axes.step(looks, shares, where="post", color=SHARED, linewidth=1, label=None if number else "a metric alone")
    axes.step(looks, alarms["one look"], where="post", color=_NAIVE, linewidth=2, label="CTR by a z-test for one look")
    label = "the analysis, all metrics together"
    axes.step(looks, alarms["analysis"], where="post", color=_OURS, linewidth=2.2, label=label)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper left")


def _draw_ends(axes: Axes, looks: Sequence[int], ends: Mapping[str, npt.NDArray[np.float64]]) -> None:
    axes.set_title("Worse ones rolled back, equal ones promoted", loc="left", fontsize=12)
    worse = [name for name in ends if name != "equal"]
    for name, color in zip(worse, _WORSE, strict=False):
        axes.step(looks, ends[name], where="post", color=color, linewidth=1.8, label=name)
    axes.step(looks, ends["equal"], where="post", color=_EQUAL, linewidth=2.4, linestyle="--", label="equal: promoted")
    axes.set_ylim(0, 1.02)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
