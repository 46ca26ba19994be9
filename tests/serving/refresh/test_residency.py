from pathlib import Path

import pytest

from rankhouse.serving.refresh.residency import Footprint, footprint_of, surplus
from tests.serving.small_version import write_delta, write_version

# Each has 10 bytes of its own. b is a delta over a, c one over b; d is whole.
LOADED = {
    "000001-a": Footprint(10, {"base": 1000}),
    "000002-b": Footprint(10, {"base": 1000, "first": 50}),
    "000003-c": Footprint(10, {"base": 1000, "first": 50, "second": 70}),
    "000004-d": Footprint(10, {"whole": 2000}),
}


@pytest.mark.parametrize(
    ("needed", "earlier", "keep", "expected"),
    [
        ("c", "ba", 20, ""),  # They share all but their dense parts with c.
        ("c", "ba", 19, "a"),
        ("c", "ba", 0, "ab"),
        ("d", "cba", 1150, ""),  # The base counts once.
        ("d", "cba", 1129, "abc"),
        ("d", "cba", 1130, "ab"),
        ("d", "cb", 1140, "a"),  # Nobody goes back to a.
        ("dc", "b", 0, "ab"),
        ("abcd", "", 0, ""),
    ],
)
def test_what_is_unloaded(needed: str, earlier: str, keep: int, expected: str) -> None:
    loaded = LOADED if "d" in needed else {name: LOADED[name] for name in LOADED if name[-1] != "d"}

    def names(letters: str) -> list[str]:
        return [name for letter in letters for name in LOADED if name[-1] == letter]

    found = surplus(loaded, needed=names(needed), earlier=names(earlier), keep_loaded_bytes=keep)
    assert [name[-1] for name in found] == list(expected)


def test_a_large_one_does_not_make_room_for_older_small_ones() -> None:
    loaded = {"000003-x": Footprint(5, {}), "000002-y": Footprint(100, {}), "000001-z": Footprint(1, {})}
    found = surplus(loaded, needed=["000003-x"], earlier=["000002-y", "000001-z"], keep_loaded_bytes=50)
    assert found == ("000001-z", "000002-y")


def test_an_earlier_version_that_is_not_loaded_takes_nothing() -> None:
    assert surplus(LOADED, needed=list(LOADED), earlier=["000009-e"], keep_loaded_bytes=0) == ()


def test_a_delta_alone_takes_its_own_bytes(tmp_path: Path) -> None:
    whole = write_version(tmp_path, seed=1)
    delta = write_delta(tmp_path, whole, seed=2)
    shared = sum(file.bytes for file in whole.record.shared_files)
    assert footprint_of(delta).alone([footprint_of(whole)]) == delta.num_bytes - shared
    assert footprint_of(delta).alone([]) == delta.num_bytes
