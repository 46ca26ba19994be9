"""A forecast as a picture: each rank's memory, and the time of its phases."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rankhouse.training.errors import PlanError
from rankhouse.training.planner.forecast import PHASE_TITLES, PHASES, Forecast, RankForecast
from rankhouse.training.planner.units import gibibytes, milliseconds
from rankhouse.training.runs.plots import MUTED, STYLE

_MEMORY: tuple[tuple[str, str, Callable[[RankForecast], float]], ...] = (
    ("weights", "#2f6db5", lambda rank: rank.weight_bytes),
    ("slots", "#93bce4", lambda rank: rank.slot_bytes),
    ("dense", "#5c6873", lambda rank: rank.dense_bytes),
    ("activations", "#d9822b", lambda rank: rank.activation_bytes),
    ("buffers", "#f0c48e", lambda rank: rank.buffer_bytes),
)
_TIME_COLORS = ("#f0c48e", "#2f6db5", "#d9822b", "#5c6873", "#e9a35b", "#b9c2cc", "#93bce4")


def draw(forecast: Forecast, path: Path) -> None:
    """Writes the picture of a forecast.

    Args:
        forecast: The forecast.
        path: Where to; its ending says the format: `.svg` or `.png`.

    Raises:
        PlanError: The path ends otherwise.
    """
    if path.suffix not in (".svg", ".png"):
        raise PlanError(f"cannot draw a plan into {path}; expected a file that ends in .svg or .png")
    picture = io.BytesIO()
    with mpl.rc_context(STYLE):
        rows = len(forecast.ranks)
        figure = Figure(figsize=(13, min(1.9 + 0.34 * rows, 13)), layout="constrained")
        memory, time = figure.subplots(1, 2, sharey=True)
        _draw_memory(memory, forecast)
        _draw_time(time, forecast)
        memory.set_ylabel("rank")
        memory.set_ylim(rows - 0.5, -0.5)
        if rows <= 32:
            memory.set_yticks(range(rows))
        figure.suptitle(
            f"{len(forecast.plan.tables)} tables on {rows} ranks of {forecast.cluster.hardware.name}: "
            f"{milliseconds(forecast.step_seconds)} predicted for {forecast.workload.batch_size:,} samples",
            fontsize=12,
        )
        # Without a date the same plan gives the same bytes.
        figure.savefig(picture, format=path.suffix[1:], metadata={"Date": None} if path.suffix == ".svg" else None)
    path.write_bytes(picture.getvalue())


def _draw_memory(axes: Axes, forecast: Forecast) -> None:
    gib = 2.0**30
    columns = [(name, color, [read(rank) / gib for rank in forecast.ranks]) for name, color, read in _MEMORY]
    _stack(axes, columns)
    usable = forecast.cluster.usable_bytes
    axes.axvline(usable / gib, color=MUTED, linestyle="--", linewidth=1)
    axes.set_xlim(0, 1.04 * max(usable, forecast.fullest.memory_bytes) / gib)
    axes.set_xlabel(f"GiB of memory; dashed: {gibibytes(usable)} usable")


def _draw_time(axes: Axes, forecast: Forecast) -> None:
    # Phases begin for all ranks at the same time, as exchanges make them wait: so a gap is a rank that waits.
    columns = [
        (PHASE_TITLES[phase], color, [1e3 * rank.seconds[phase] for rank in forecast.ranks])
        for phase, color in zip(PHASES, _TIME_COLORS, strict=True)
    ]
    _stack(axes, columns, together=True)
    axes.set_xlabel("ms of a step; white: the rank waits for the slowest")


def _stack(axes: Axes, columns: Sequence[tuple[str, str, list[float]]], *, together: bool = False) -> None:
    left = [0.0] * len(columns[0][2])
    for name, color, sizes in columns:
        if max(sizes) > 0:
            axes.barh(range(len(sizes)), sizes, left=left, height=0.8, color=color, label=name)
        step = [max(sizes)] * len(sizes) if together else sizes
        left = [before + size for before, size in zip(left, step, strict=True)]
    axes.grid(visible=False, axis="y")
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1.0), fontsize=9)
