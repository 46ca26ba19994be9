"""A SQLite file that is wrong, locked, full, gone or made by many at once: what is said, and nothing is half done."""

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankhouse.serving.control import sqlite_database
from rankhouse.serving.control.sqlite_database import SqliteDatabase
from rankhouse.serving.control.sqlite_state_store import SqliteStateStore
from rankhouse.serving.errors import CorruptStateError, StateStoreError, StoreFullError, StoreUnavailableError
from tests.serving.control.states_of_models import name, stable_at

SCHEMA = "CREATE TABLE notes (text BLOB)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    with_schema = SqliteDatabase(path, schema=SCHEMA, version=1, timeout_seconds=0.2)
    yield with_schema
    with_schema.close()


def add(database: SqliteDatabase, text: bytes) -> None:
    with database.writing() as connection:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))


def count(database: SqliteDatabase) -> int:
    with database.reading() as connection:
        return int(connection.execute("SELECT count(*) FROM notes").fetchone()[0])


def test_the_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    SqliteStateStore(tmp_path / "a" / "b" / "state.db").close()
    assert (tmp_path / "a" / "b" / "state.db").stat().st_mode & 0o777 == 0o600


def test_what_raises_in_a_transaction_leaves_nothing(database: SqliteDatabase) -> None:
    def fail_halfway() -> None:
        with database.writing() as connection:
            connection.execute("INSERT INTO notes VALUES ('x')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_halfway()
    assert count(database) == 0
    add(database, b"y")
    assert count(database) == 1


def test_a_locked_file_says_so_and_works_again(database: SqliteDatabase, path: Path) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailableError, match=r"state\.db: database is locked; another process has it locked"):
        add(database, b"x")
    assert count(database) == 0
    other.execute("ROLLBACK")
    other.close()
    add(database, b"x")
    assert count(database) == 1


def test_no_reader_waits_for_a_writer(database: SqliteDatabase) -> None:
    with database.writing() as connection:
        connection.execute("INSERT INTO notes VALUES ('x')")
        assert count(database) == 0
    assert count(database) == 1


def test_a_thread_that_is_slow_is_told_of(database: SqliteDatabase) -> None:
    is_in, may_go = threading.Event(), threading.Event()

    def slow() -> None:
        with database.reading():
            is_in.set()
            may_go.wait(60)

    thread = threading.Thread(target=slow)
    thread.start()
    assert is_in.wait(60)
    with pytest.raises(StoreUnavailableError, match=r"another thread of this process has used it for 0\.2 s"):
        count(database)
    may_go.set()
    thread.join()
    assert count(database) == 0


def test_a_full_disk_says_so_and_leaves_the_old_state(database: SqliteDatabase) -> None:
    add(database, b"x")
    with database.writing() as connection:
        connection.execute("PRAGMA max_page_count = 4")
    with pytest.raises(
        StoreFullError, match="database or disk is full; the disk is full: make room, nothing was changed"
    ):
        add(database, b"x" * 100_000)
    assert count(database) == 1
    add(database, b"y")
    assert count(database) == 2


def test_a_disk_that_takes_no_writes_leaves_the_old_state(path: Path) -> None:
    SqliteStateStore(path).create(stable_at(1))
    code = f"""
import resource, signal
from pathlib import Path
from rankhouse.serving.control.sqlite_state_store import SqliteStateStore
from rankhouse.serving.errors import StateStoreError
from tests.serving.control.states_of_models import stable_at
store = SqliteStateStore(Path({str(path)!r}))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    store.commit(stable_at(2, quarantined={{"x": "y" * 200_000}}), expected=1, events=())
except StateStoreError as exc:
    print(type(exc).__name__, exc)
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.startswith(("StoreUnavailableError", "StoreFullError")), done
    stored = SqliteStateStore(path).read("m")
    assert (stored.revision, stored.state) == (1, stable_at(1))


def test_a_read_only_file_says_so(database: SqliteDatabase) -> None:
    with database.writing() as connection:
        connection.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreFullError, match="readonly database; this user may not write"):
        add(database, b"x")


def test_a_file_that_is_no_database_is_left_alone(path: Path) -> None:
    path.write_bytes(b"x" * 10_000)
    with pytest.raises(CorruptStateError, match="file is not a database; the file is something else"):
        SqliteStateStore(path)
    assert path.read_bytes() == b"x" * 10_000


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE songs (title TEXT)")
    other.commit()
    other.close()
    with pytest.raises(CorruptStateError, match="is a database of something else; give another path"):
        SqliteStateStore(path)


def test_a_newer_schema_is_refused(path: Path) -> None:
    SqliteDatabase(path, schema=SCHEMA, version=7, timeout_seconds=1.0).close()
    with pytest.raises(CorruptStateError, match="has schema 7, this release knows 1: upgrade it"):
        SqliteStateStore(path)


def test_damage_is_told(path: Path) -> None:
    store = SqliteStateStore(path)
    store.create(stable_at(1, quarantined={name(number): "x" * 500 for number in range(100)}))
    store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(CorruptStateError, match=r"malformed; the file is damaged: stop all replicas"):
        SqliteStateStore(path).read("m")


def test_a_state_that_is_none_is_told(path: Path) -> None:
    store = SqliteStateStore(path)
    store.create(stable_at(1))
    other = sqlite3.connect(path)
    other.execute("UPDATE states SET content = ?", (b'{"model": "m", "colour": "red"}',))
    other.commit()
    other.close()
    with pytest.raises(CorruptStateError, match=r"unknown field `colour`.*a newer release wrote it: upgrade"):
        store.read("m")
    store.close()


def test_a_file_that_was_removed_is_not_written_on(path: Path) -> None:
    store = SqliteStateStore(path)
    store.create(stable_at(1))
    copy = sqlite3.connect(path.with_name("copy.db"))
    with sqlite3.connect(path) as source:
        source.backup(copy)
    source.close()
    copy.close()
    for each in path.parent.glob("state.db*"):
        each.unlink()
    with pytest.raises(StoreUnavailableError, match=r"state\.db is gone: No such file or directory; bring it back"):
        store.commit(stable_at(2), expected=1, events=())
    with pytest.raises(StoreUnavailableError, match="is gone"):
        store.revision("m")
    assert not path.exists()
    os.rename(path.with_name("copy.db"), path)
    assert store.read("m").state == stable_at(1)
    assert store.commit(stable_at(2), expected=1, events=()) == 2
    store.close()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StateStoreError, match="cannot be made"):
        SqliteStateStore(tmp_path / "file" / "state.db")


def test_many_processes_may_make_the_file_at_once(path: Path) -> None:
    code = f"""
from pathlib import Path
from rankhouse.serving.control.sqlite_state_store import SqliteStateStore
from tests.serving.control.states_of_models import stable_at
store = SqliteStateStore(Path({str(path)!r}), timeout_seconds=60.0)
print(store.create(stable_at(1)).revision)
"""
    processes = [subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate(timeout=300)[0] for process in processes] == [b"1\n"] * 4


def test_a_file_whose_tables_another_process_makes_just_now_is_no_stranger(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[threading.Thread] = []
    value = sqlite_database._value

    def create() -> None:
        SqliteStateStore(path, timeout_seconds=60.0).create(stable_at(1))

    def value_and_then_another(connection: sqlite3.Connection, statement: str) -> object:
        read = value(connection, statement)
        if not others:
            others.append(threading.Thread(target=create))
            others[0].start()
            others[0].join(0.3)
        return read

    monkeypatch.setattr(sqlite_database, "_value", value_and_then_another)
    store = SqliteStateStore(path, timeout_seconds=60.0)
    others[0].join(120)
    assert store.read("m").state == stable_at(1)


def test_without_a_write_ahead_log_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StateStoreError, match=r"file system without shared memory.*take a local disk, or Redis"):
        SqliteStateStore(Path(":memory:"))  # Where SQLite keeps no log, as on some file systems.


def test_a_file_that_may_be_away_is_used_once_it_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.touch()
    with pytest.raises(StoreUnavailableError, match="cannot be made"):
        SqliteStateStore(folder / "state.db")
    store = SqliteStateStore(folder / "state.db", may_be_away=True)
    with pytest.raises(StoreUnavailableError, match="is gone"):
        store.revision("m")
    folder.unlink()
    SqliteStateStore(folder / "state.db").close()
    assert store.create(stable_at(2)).state == stable_at(2)
    store.close()
