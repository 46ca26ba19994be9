import math
from typing import Any

import pytest

from rankhouse.training.runs.traffic import ExchangeTraffic, RunTraffic


def rank(num_bytes: dict[str, list[int]], **more: Any) -> dict[str, Any]:
    return {"bytes": num_bytes, "roundings": {}, "choices": {}, **more}


def rounding(max_error: float, max_relative_error: float, num_saturated: int) -> dict[str, float]:
    return {"max_error": max_error, "max_relative_error": max_relative_error, "num_saturated": num_saturated}


def test_bytes_are_per_step_and_errors_the_worst_of_all_ranks() -> None:
    choices = {"rows": "rows travel as float16"}
    traffic = RunTraffic.of_ranks(
        [
            rank({"ids": [40, 0]}, roundings={"rows": rounding(1.0, 0.25, 1)}, choices=choices),
            rank({"ids": [0, 40], "rows": [2048, 8]}, roundings={"rows": rounding(0.5, 0.5, 2)}, choices=choices),
        ],
        num_steps=4,
    )
    rows = ExchangeTraffic(
        name="rows",
        bytes_sent=(0.0, 512.0),
        bytes_received=(0.0, 2.0),
        format="rows travel as float16",
        max_error=1.0,
        max_relative_error=0.5,
        num_saturated=3,
    )
    ids = ExchangeTraffic(name="ids", bytes_sent=(10.0, 0.0), bytes_received=(0.0, 10.0))
    assert traffic == RunTraffic(4, (rows, ids))
    assert RunTraffic.parse(traffic.to_json()) == traffic
    assert traffic.explain() == ("a rank sends 0.3 KiB per step, at most 0.5 KiB (rank 1): rows 0.2 KiB, ids 0.0 KiB")


def test_one_rank_and_no_steps_are_no_traffic() -> None:
    traffic = RunTraffic.of_ranks([rank({})], num_steps=0)
    assert (traffic.exchanges, traffic.explain()) == ((), "")
    assert RunTraffic.parse(traffic.to_json()) == traffic


def test_what_json_does_not_have_is_refused() -> None:
    exchange = ExchangeTraffic(name="rows", bytes_sent=(1.0,), bytes_received=(1.0,), max_error=math.inf)
    with pytest.raises(ValueError, match="Out of range float values"):
        RunTraffic(1, (exchange,)).to_json()
