"""Does an operation again and again, stopped each time at a later call that changes the disk, until it gets through.

    python -m tests.embedding_cache.crashes.every_point STORY FAULT FOLDER      with `faults.c` preloaded

Each attempt is a process of its own on a copy of one store; others then look at what is left and, after some, do the
operation again. The output is the number of points, and how many of the states were the old one, the new one and, for
garbage collection, one with some of the old versions.
"""

import ctypes
import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.maintenance.collection import collect_garbage
from tests.embedding_cache.crashes.power_loss import read_log, states_after_power_loss
from tests.embedding_cache.crashes.stories import STORIES, contents, make_store

# As faults.c numbers them. Torn: killed, half of a write being done. Power: killed, and what was not flushed is lost.
FAULTS = {"power": 1, "torn": 2, "full": 3, "refused": 4}
MOST_POINTS = 2000
# The exit statuses of an operation that the system's refusal has stopped; one says that no version was changed.
REFUSED, UNCHANGED = 3, 4


def main(story: str, fault: str, root: Path) -> None:
    """Goes through all points of an operation."""
    _succeed(lambda: make_store(root / "template"))
    before = _contents(root / "template", root / "before.json")
    shutil.copytree(root / "template", root / "done")
    _succeed(lambda: _do(story, root / "done"))
    after = _contents(root / "done", root / "after.json")
    outcomes: Counter[str] = Counter()
    for point in range(MOST_POINTS):
        work, log = root / "work", root / "calls.log"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(root / "template", work)
        status = _in_child(lambda: _do_faulted(story, FAULTS[fault], point, work, log))  # noqa: B023
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        is_through = len(read_log(log)) <= point and not killed
        assert is_through or killed or os.waitstatus_to_exitcode(status) in (0, REFUSED, UNCHANGED), (point, status)
        states = states_after_power_loss(work, log, root / "copies") if fault == "power" else [work]
        for state in states:
            outcome = _outcome(before, after, _contents(state, root / "found.json"))
            assert outcome == "new" or status != 0, f"point {point}: it went well, but the state is {outcome}"
            is_told_old = not killed and os.waitstatus_to_exitcode(status) == UNCHANGED
            assert outcome == "old" or not is_told_old, f"point {point}: said to be the old state, but is {outcome}"
            outcomes[outcome] += 1
        if is_through or point % 4 == 0:
            _succeed(lambda: _go_on(story, work))  # noqa: B023
        if is_through:
            print(json.dumps({"points": point, **outcomes}))
            return
    raise AssertionError(f"more than {MOST_POINTS} points")


def _do(story: str, root: Path) -> None:
    STORIES[story](VersionStore(root / "store"), root)


def _do_faulted(story: str, fault: int, point: int, root: Path, log: Path) -> None:
    store = str(root / "store").encode()
    ctypes.CDLL(None).faults_arm(store, str(log).encode(), fault, ctypes.c_long(point))
    try:
        _do(story, root)
    except (OSError, FormatError) as error:
        os._exit(UNCHANGED if "no version was changed" in str(error) else REFUSED)


def _go_on(story: str, root: Path) -> None:
    """Does the operation on what is left, and collects what nothing names: then nothing else is there."""
    _do(story, root)
    store = VersionStore(root / "store")
    collect_garbage(store, keep=100, grace_seconds=0)
    versions = [store.open(name) for name in store.names()]
    named = {store.path / path for version in versions for path in version.files()}
    named |= {version.path / "manifest.json" for version in versions}
    there = {path for path in store.path.rglob("*") if path.is_file() and path.parent != store.path}
    assert there == named, (sorted(there - named), sorted(named - there))


def _outcome(before: dict[str, str], after: dict[str, str], found: dict[str, str]) -> str:
    """Compares hashes of versions by name. A version that is new has another name each time."""
    if found == before:
        return "old"
    kept = {name: content for name, content in found.items() if name in before}
    assert all(before[name] == content for name, content in kept.items()), "a version has changed"
    if len(found) == len(after) and sorted(found.values()) == sorted(after.values()):
        return "new"
    # Only garbage collection does several things, each of which is whole.
    assert len(after) < len(before), f"neither the old state nor the new one: {found}"
    assert set(after) < set(found) < set(before), f"not some of the old versions: {found}"
    return "between"


def _contents(root: Path, file: Path) -> dict[str, str]:
    _succeed(lambda: file.write_text(json.dumps(contents(VersionStore(root / "store")))) and None)
    found: dict[str, str] = json.loads(file.read_text())
    return found


def _succeed(work: Callable[[], object]) -> None:
    status = _in_child(work)
    assert status == 0, f"a process ended with status {status}"


def _in_child(work: Callable[[], object]) -> int:
    """Does something in a process of its own: this one has no threads, so that it can be forked."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
