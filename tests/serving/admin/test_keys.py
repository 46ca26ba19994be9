import os
from pathlib import Path

import pytest

from rankhouse.serving.admin.keys import (
    FIRST_KEY,
    Caller,
    FailureLimit,
    KeyRing,
    new_key,
    read_key_file,
    write_key_file,
)
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import InvalidFieldError, KeyExistsError, KeyFileError, NoSuchKeyError

ROOT = Caller("root", "admin")


def test_roles_include_those_below() -> None:
    assert [Caller("ann", "operator").may(role) for role in ("viewer", "operator", "admin")] == [True, True, False]


def test_keys_are_long_and_different() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert min(len(key) for key in keys) >= 43


def test_a_key_is_known_by_its_hash_alone(store: StateStore, tmp_path: Path) -> None:
    ring = KeyRing(store, key_file=None)
    key = ring.add("ann", "operator", by=ROOT, now=1.0)
    assert ring.identify(key) == Caller("ann", "operator")
    assert ring.identify(key + "x") is None
    assert [(each.name, each.role, each.created_by) for each in ring.records()] == [("ann", "operator", "root")]
    store.close()
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key.encode() not in written
    assert b"ann" in written


def test_another_process_knows_a_key_and_its_end(store: StateStore, tmp_path: Path) -> None:
    ring, other = KeyRing(store, key_file=None), open_state_store(f"sqlite://{tmp_path}/state.db")
    key = ring.add("ann", "viewer", by=ROOT, now=1.0)
    assert KeyRing(other, key_file=None).identify(key) is not None
    ring.revoke("ann")
    assert KeyRing(other, key_file=None).identify(key) is None
    other.close()


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 65, "ännchen", "-a"])
def test_names_that_a_path_cannot_hold_are_refused(store: StateStore, name: str) -> None:
    with pytest.raises(InvalidFieldError, match="A-Z a-z 0-9"):
        KeyRing(store, key_file=None).add(name, "viewer", by=ROOT, now=1.0)


@pytest.mark.parametrize("name", ["ann", "conductor", "refresh", FIRST_KEY])
def test_names_are_taken_once(store: StateStore, name: str) -> None:
    ring = KeyRing(store, key_file=None)
    ring.add("ann", "viewer", by=ROOT, now=1.0)
    with pytest.raises(KeyExistsError, match=name):
        ring.add(name, "admin", by=ROOT, now=2.0)


def test_a_key_that_is_not_there_cannot_be_revoked(store: StateStore) -> None:
    with pytest.raises(NoSuchKeyError, match="bob"):
        KeyRing(store, key_file=None).revoke("bob")


def test_the_first_key_stands_in_a_file_and_changes_with_it(store: StateStore, tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    ring, old = KeyRing(store, key_file=path), read_key_file(path)
    assert ring.identify(old) == Caller(FIRST_KEY, "admin")
    path.unlink()
    assert ring.identify(old) is None
    write_key_file(path)
    assert ring.identify(old) is None
    assert ring.identify(read_key_file(path)) == Caller(FIRST_KEY, "admin")
    with pytest.raises(InvalidFieldError, match="stands in the file"):
        ring.revoke(FIRST_KEY)


def test_a_file_that_is_being_written_does_not_lock_everybody_out(store: StateStore, tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key_file(path)
    ring, key = KeyRing(store, key_file=path), read_key_file(path)
    path.write_text("half")
    assert ring.identify(key) is not None


def test_a_store_that_is_away_leaves_the_keys_that_were_known(store: StateStore, tmp_path: Path) -> None:
    ring = KeyRing(store, key_file=None)
    key = ring.add("ann", "viewer", by=ROOT, now=1.0)
    assert ring.identify(key) is not None
    store.close()
    for path in tmp_path.glob("state.db*"):
        path.unlink()
    (tmp_path / "state.db").mkdir()
    assert ring.identify(key) is not None


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key_file(path)
    os.chmod(path, 0o640)
    with pytest.raises(KeyFileError, match=r"mode 0640.*chmod 600"):
        read_key_file(path)


@pytest.mark.parametrize("content", ["", "short", "two words " * 8, "ä" * 40])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_text(content)
    with pytest.raises(KeyFileError, match="holds no key"):
        read_key_file(path)


def test_a_file_that_is_not_there_or_there_already_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="cannot be read"):
        read_key_file(tmp_path / "key")
    write_key_file(tmp_path / "key")
    with pytest.raises(KeyFileError, match="exists"):
        write_key_file(tmp_path / "key")


def test_failures_have_a_burst_and_then_a_rate() -> None:
    limit = FailureLimit(burst=3, seconds_each=10.0)
    assert [limit.fail("a", 100.0) for _ in range(5)] == [0.0, 0.0, 0.0, 10.0, 10.0]
    assert limit.fail("b", 100.0) == 0.0
    assert [limit.fail("a", 110.0), limit.fail("a", 110.0)] == [0.0, 10.0]
    assert [limit.fail("a", 1000.0) for _ in range(4)] == [0.0, 0.0, 0.0, 10.0]
