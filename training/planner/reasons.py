"""Why a table lies where it lies, as a sentence."""

from collections.abc import Sequence

from rankhouse.training.plan import Placement
from rankhouse.training.planner.choices import Choice
from rankhouse.training.planner.units import gibibytes, milliseconds


def reason(choice: Choice, placement: Placement, whole: Sequence[Choice], fair: float, budget: float) -> str:
    """Returns why a table is cut and placed as it is.

    Args:
        choice: How it was cut.
        placement: Where its parts came to lie.
        whole: The ways to leave it uncut.
        fair: Seconds that all tables cost a rank on average.
        budget: Bytes that a rank has for tables.
    """
    if choice.why:
        return f"{_where(placement)}: {choice.why}"
    others = [
        other
        for other in whole
        if (other.placement.mode, other.placement.exchange) != (placement.mode, placement.exchange)
    ]
    if placement.mode == "data_parallel":
        is_cheapest = all(choice.rank_seconds <= other.rank_seconds for other in others)
        why = "that is cheapest" if is_cheapest else "so that no rank is busier with it than another"
        return f"{_where(placement)}: {why}{_instead(choice, others)}"
    if placement.mode == "table_wise":
        work = f"{milliseconds(choice.peak_seconds)} of work, where a rank's fair share of all is {milliseconds(fair)}"
        return f"{_where(placement)}: {work}{_instead(choice, others)}"
    uncut = min(whole, key=lambda other: other.rank_seconds)
    if uncut.peak_bytes > budget / 2:
        much = f"whole it takes {gibibytes(uncut.peak_bytes)} of the {gibibytes(budget)} that a rank has for tables"
    else:
        much = (
            f"whole it keeps one rank busy for {milliseconds(uncut.peak_seconds)}, a fair share is {milliseconds(fair)}"
        )
    return f"{_where(placement)}: {much}; so a rank is at most {milliseconds(choice.peak_seconds)} busy with it"


def _where(placement: Placement) -> str:
    cut = {
        "data_parallel": "on every rank",
        "table_wise": f"on rank {placement.shards[0].rank}, whole",
        "column_wise": f"in {len(placement.shards)} slices of columns",
        "row_wise": f"by rows over {len(placement.shards)} ranks",
    }[placement.mode]
    travels = ", unique ids travel and rows come back" if placement.exchange == "rows" else ""
    host = f", on the host with {placement.cache_rows:,} rows cached" if placement.device == "host" else ""
    wire = f", rows as {placement.wire.forward} and gradients as {placement.wire.backward}" if placement.wire else ""
    return cut + travels + host + wire


def _instead(choice: Choice, others: Sequence[Choice]) -> str:
    named = {"data_parallel": "on every rank", "table_wise": "whole on one"}
    costs = [
        f"{milliseconds(other.rank_seconds)} {named[other.placement.mode]}"
        + (", unique ids exchanged" if other.placement.exchange == "rows" else "")
        for other in others
    ]
    return (
        f" ({milliseconds(choice.rank_seconds)} for each rank on average, against {', '.join(costs)})" if costs else ""
    )
