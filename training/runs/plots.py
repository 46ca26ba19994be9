"""The plots of a run's report, as SVG text."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rankhouse.training.plan import Plan

TRAIN, VALID, SHARED, MUTED = "#2f6db5", "#d9822b", "#b9c2cc", "#5c6873"
TABLES = ("#2f6db5", "#5b97d1", "#93bce4")

STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#8a949e",
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.color": "#e6e9ed",
    "legend.frameon": False,
    "svg.fonttype": "none",  # Text stays text: small, sharp, and found by a search in the page.
    "svg.hashsalt": "rankhouse",  # The same run gives the same bytes.
    "xtick.color": MUTED,
    "ytick.color": MUTED,
}

# Parts of a bar narrower than this share of the widest bar have no room for a label.
LABELLED_SHARE = 0.06


def plot_loss(metrics: Sequence[dict[str, Any]]) -> str:
    """Draws the loss in training and on the held-out split over the steps."""

    def draw(axes: Axes) -> None:
        _line(axes, metrics, "loss", color=TRAIN, label="training")
        _line(axes, metrics, "valid_loss", color=VALID, label="held out", marker="o")
        axes.set_ylabel("binary cross-entropy (nats)")
        if axes.lines:
            axes.legend()

    return _plot(draw)


def plot_auc(metrics: Sequence[dict[str, Any]]) -> str:
    """Draws the AUC on the held-out split over the steps."""

    def draw(axes: Axes) -> None:
        _line(axes, metrics, "auc", color=VALID, label="held out", marker="o")
        axes.set_ylabel("AUC, held out")

    return _plot(draw)


def plot_throughput(metrics: Sequence[dict[str, Any]]) -> str:
    """Draws the samples per second over the steps."""

    def draw(axes: Axes) -> None:
        _line(axes, metrics, "samples_per_second", color=TRAIN, label="all ranks")
        axes.set_ylabel("samples/s, all ranks")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))

    return _plot(draw)


def plot_plan(plan: Plan) -> str:
    """Draws each rank's memory as a bar: its own tables one by one, then the copies of the small ones together."""
    replicated = {placement.table for placement in plan.placements if placement.mode == "data_parallel"}
    copies = sum(table.weight_bytes / 2**20 for table in plan.tables if table.name in replicated)
    own = [
        [(name, size / 2**20) for name, size in plan.shard_bytes_of(rank) if name not in replicated]
        for rank in range(plan.num_ranks)
    ]
    widest = max(sum(size for _, size in tables) for tables in own) + copies

    def draw(axes: Axes) -> None:
        for rank, tables in enumerate(own):
            left = 0.0
            for number, (name, size) in enumerate(sorted(tables, key=lambda table: -table[1])):
                _bar(
                    axes,
                    rank,
                    left,
                    size,
                    label=name if size > LABELLED_SHARE * widest else "",
                    color=TABLES[number % 3],
                )
                left += size
            label = "copies" if copies > LABELLED_SHARE * widest else ""
            _bar(axes, rank, left, copies, label=label, color=SHARED)
        axes.set_yticks(range(plan.num_ranks), [f"rank {rank}" for rank in range(plan.num_ranks)])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("MiB of embedding weights")

    return _plot(draw, height=1.1 + 0.5 * plan.num_ranks, width=13, over_steps=False)


def _bar(axes: Axes, rank: int, left: float, size: float, *, label: str, color: str) -> None:
    axes.barh(rank, size, left=left, height=0.7, color=color, edgecolor="white", linewidth=1)
    if label:
        text_color = "black" if color in (SHARED, TABLES[2]) else "white"
        axes.text(left + size / 2, rank, label, ha="center", va="center", color=text_color, fontsize=10, clip_on=True)


def _line(axes: Axes, metrics: Sequence[dict[str, Any]], key: str, **style: Any) -> None:
    points = [(line["step"], line[key]) for line in metrics if line.get(key) is not None]
    if points:
        axes.plot(*zip(*points, strict=True), linewidth=1.8, markersize=5, **style)


def _plot(draw: Callable[[Axes], None], *, height: float = 3.4, width: float = 5.0, over_steps: bool = True) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.add_subplot()
        if over_steps:
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        draw(axes)
        svg = io.StringIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()
