"""A forecast as text: what each rank holds, what a step costs, and why each table lies where it lies."""

from collections import Counter
from collections.abc import Sequence

from rankhouse.training.planner.forecast import PHASE_TITLES, PHASES, Forecast, RankForecast
from rankhouse.training.planner.units import gibibytes, milliseconds

# More ranks than these are summed up by the fullest, the emptiest and the mean.
_SHOWN_RANKS = 16


def explain(forecast: Forecast, *, with_tables: bool = True) -> str:
    """Returns everything that a forecast says, as aligned text.

    Args:
        forecast: The forecast.
        with_tables: Whether to say of every table why it lies where it lies.
    """
    sections = [_summary(forecast), _memory(forecast), _time(forecast)]
    if with_tables:
        sections.append("\n".join(f"{item.table} {item.reason}" for item in forecast.plan.placements))
    return "\n\n".join(sections)


def _summary(forecast: Forecast) -> str:
    plan, cluster, workload = forecast.plan, forecast.cluster, forecast.workload
    modes = Counter((item.mode, item.exchange) for item in plan.placements)
    counted = ", ".join(
        f"{count} {mode.replace('_', '-')}" + (" with unique ids" if exchange == "rows" else "")
        for (mode, exchange), count in sorted(modes.items(), key=lambda item: (-item[1], item[0]))
    )
    samples = workload.batch_size / forecast.step_seconds
    return (
        f"{len(plan.tables)} tables on {plan.num_ranks} rank{'s' if plan.num_ranks > 1 else ''} of "
        f"{cluster.hardware.name}: {counted}\n"
        f"predicted: {milliseconds(forecast.step_seconds)} a step of {workload.batch_size:,} samples, "
        f"{samples:,.0f} samples/s; {gibibytes(forecast.wire_bytes)} sent by a rank in a step"
    )


def _memory(forecast: Forecast) -> str:
    rows: list[tuple[str, ...]] = [
        ("memory of", "weights", "slots", "dense", "activations", "buffers", "all", "of usable", "host")
    ]
    ranks = forecast.ranks
    if len(ranks) <= _SHOWN_RANKS:
        rows += [_memory_row(forecast, rank, f"rank {rank.rank}") for rank in ranks]
    else:
        least = min(ranks, key=lambda rank: rank.memory_bytes)
        rows += [
            _memory_row(forecast, forecast.fullest, f"rank {forecast.fullest.rank}, the fullest"),
            _memory_row(forecast, least, f"rank {least.rank}, the emptiest"),
        ]
    return _aligned(rows)


def _memory_row(forecast: Forecast, rank: RankForecast, name: str) -> tuple[str, ...]:
    parts = (rank.weight_bytes, rank.slot_bytes, rank.dense_bytes, rank.activation_bytes, rank.buffer_bytes)
    share = rank.memory_bytes / forecast.cluster.usable_bytes
    sizes = [gibibytes(size) for size in (*parts, rank.memory_bytes)]
    return (name, *sizes, f"{share:.0%}", gibibytes(rank.host_bytes))


def _time(forecast: Forecast) -> str:
    rows = [("phase", "slowest rank", "mean of ranks", "sent by a rank")]
    for phase in PHASES:
        seconds = [rank.seconds[phase] for rank in forecast.ranks]
        sent = [rank.sent_bytes.get(phase, 0.0) for rank in forecast.ranks]
        rows.append(
            (
                PHASE_TITLES[phase],
                milliseconds(max(seconds)),
                milliseconds(sum(seconds) / len(seconds)),
                gibibytes(sum(sent) / len(sent)),
            )
        )
    fixed = forecast.cluster.hardware.step_seconds
    rows.append(("every step", milliseconds(fixed), milliseconds(fixed), ""))
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    )
