from dataclasses import replace
from pathlib import Path

import pytest

from rankhouse.training.errors import PlanError
from rankhouse.training.planner.hardware import GPU_SHEETS, PROFILES, Link, hardware_profile


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = replace(PROFILES["a100"], name="here", intra=Link(1.0, 2.0, 3.0))
    profile.save(tmp_path / "here.json")
    assert hardware_profile(str(tmp_path / "here.json")) == profile


def test_newer_gpus_are_faster() -> None:
    a100, h100, h200 = (PROFILES[name] for name in ("a100", "h100", "h200"))
    assert a100.gather_bandwidth < h100.gather_bandwidth < h200.gather_bandwidth
    assert a100.update_id_seconds > h100.update_id_seconds > h200.update_id_seconds
    assert h100.memory_bytes < h200.memory_bytes == GPU_SHEETS["h200"].memory_bytes


def test_an_unknown_profile_is_named_beside_the_nearest() -> None:
    with pytest.raises(PlanError, match="no hardware profile 'a10'; did you mean 'a100'"):
        hardware_profile("a10")


@pytest.mark.parametrize("content", ["no json", "{}", '{"name": "a", "intra": {}, "inter": {}}', "[]"])
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "here.json"
    path.write_text(content)
    with pytest.raises(PlanError, match=r"here\.json is no hardware profile .*--calibrate"):
        hardware_profile(str(path))


def test_impossible_figures_are_refused() -> None:
    with pytest.raises(PlanError, match="the hardware profile 'a100' has stream_bandwidth = 0"):
        replace(PROFILES["a100"], stream_bandwidth=0)
