from dataclasses import asdict
from pathlib import Path

from rankhouse.training.planner.calibration import calibrate
from rankhouse.training.planner.hardware import PROFILES, hardware_profile


def test_measures_this_machine_into_a_profile(tmp_path: Path) -> None:
    measured = calibrate("here", table_bytes=1 << 22)
    measured.save(tmp_path / "here.json")
    assert hardware_profile(str(tmp_path / "here.json")) == measured
    # One rank has no other to exchange with; all else is this machine's.
    assert measured.intra == PROFILES["2-cores"].intra
    unmeasured = {name for name, value in asdict(measured).items() if value == asdict(PROFILES["2-cores"])[name]}
    assert unmeasured == {"intra", "inter", "ranks_per_node", "shares_host_memory"}
