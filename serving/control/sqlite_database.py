"""One SQLite file that several processes share: opened, checked, and its errors in our words.

Write-ahead log, so readers never wait for writers; one writer at a time, who waits for the one before it. The file must
lie on a disk of this machine: SQLite's log does not work over network file systems.
"""

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankhouse.serving.errors import CorruptStateError, StateStoreError, StoreFullError, StoreUnavailableError

_APPLICATION = 0x52485354  # "RHST"

# What SQLite says, and what that is for us.
_FAULTS: tuple[tuple[str, type[StateStoreError], str], ...] = (
    ("locked", StoreUnavailableError, "another process has it locked for longer than the timeout; find it by `fuser`"),
    ("unable to open", StoreUnavailableError, "the file or its folder is missing, or this user may not open it"),
    ("disk i/o error", StoreUnavailableError, "the disk does not read or write; look at the system's log"),
    ("full", StoreFullError, "the disk is full: make room, nothing was changed"),
    ("readonly", StoreFullError, "this user may not write the file or its folder, or the disk is mounted read-only"),
    ("not a database", CorruptStateError, "the file is something else; give another path, or bring a copy back"),
    ("malformed", CorruptStateError, "the file is damaged: stop all replicas and bring a copy back"),
)


@dataclass
class _Seat:
    """A connection, who has it now, and which file (device, inode) it is to."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    connection: sqlite3.Connection | None = None
    file: tuple[int, int] | None = None

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


class SqliteDatabase:
    """A file of tables. Any thread may use it; readers take turns, and so do writers, but no reader waits for a writer.

    Args:
        path: The file; it is made, with its folder, if it does not exist.
        schema: SQL that makes the tables.
        version: The schema's number; a file of a higher one is refused.
        timeout_seconds: How long a call waits for other threads and processes.
        may_be_away: Whether it may be out of reach now; calls raise until it is back.

    Raises:
        StateStoreError: The file cannot be used.
    """

    def __init__(
        self, path: Path, *, schema: str, version: int, timeout_seconds: float, may_be_away: bool = False
    ) -> None:
        self.path = path
        self._schema, self._version, self._timeout_seconds = schema, version, timeout_seconds
        self._reader, self._writer = _Seat(), _Seat()
        try:
            self._make()
            with self.reading():
                pass
        except StoreUnavailableError:
            if not may_be_away:
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection to read by; one statement sees one state of the file.

        Raises:
            StateStoreError: The file cannot be used.
        """
        with self._turn(self._reader), self._translated(self._reader):
            yield self._connected(self._reader)

    @contextlib.contextmanager
    def writing(self, *, is_durable: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction: all or nothing, also when the process or the machine stops.

        Args:
            is_durable: It is on the disk when the block ends; else a machine that stops may lose it, but no part of it.

        Raises:
            StateStoreError: The file cannot be used; nothing was changed.
        """
        with self._turn(self._writer), self._translated(self._writer):
            connection = self._connected(self._writer)
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # A full disk has ended the transaction itself.
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Closes the file."""
        for seat in (self._reader, self._writer):
            with self._turn(seat):
                seat.close()

    def _make(self) -> None:
        path = self.path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # It holds the hashes of keys.
        except PermissionError:
            pass  # Reading may work; the first write says that it does not.
        except OSError as exc:
            raise StoreUnavailableError(f"the state store {path} cannot be made: {exc}") from exc

    @contextlib.contextmanager
    def _turn(self, seat: _Seat) -> Iterator[None]:
        if not seat.lock.acquire(timeout=self._timeout_seconds):
            raise StoreUnavailableError(
                f"the state store {self.path} is busy: another thread of this process has used it for "
                f"{self._timeout_seconds:g} s"
            )
        try:
            yield
        finally:
            seat.lock.release()

    @contextlib.contextmanager
    def _translated(self, seat: _Seat) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as exc:
            seat.close()
            said = str(exc)
            for words, kind, fix in _FAULTS:
                if words in said.lower():
                    raise kind(f"the state store {self.path}: {said}; {fix}") from exc
            raise StateStoreError(f"the state store {self.path}: {said}") from exc

    def _connected(self, seat: _Seat) -> sqlite3.Connection:
        """The connection to the file that is there now; on one that was removed, nobody would see what is written."""
        try:
            status = os.stat(self.path)
        except OSError as exc:
            seat.close()
            raise StoreUnavailableError(f"the state store {self.path} is gone: {exc.strerror}; bring it back") from exc
        if seat.connection is not None and seat.file == (status.st_dev, status.st_ino):
            return seat.connection
        seat.close()
        connection = sqlite3.connect(
            self.path, timeout=self._timeout_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        seat.connection, seat.file = connection, (status.st_dev, status.st_ino)
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")  # One state of the file: another process may make the tables right now.
        is_made = self._schema_version(connection) == self._version
        connection.execute("COMMIT")
        if is_made:
            return
        if self._journal_mode(connection) != "wal":
            raise StateStoreError(
                f"the state store {self.path} lies on a file system without shared memory, as those of networks are; "
                "take a local disk, or Redis: redis://host:port/0"
            )
        connection.execute("BEGIN IMMEDIATE")
        if self._schema_version(connection) == 0:  # No other process was faster.
            for statement in self._schema.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {self._version}")
        connection.execute("COMMIT")

    def _journal_mode(self, connection: sqlite3.Connection) -> str:
        end = time.monotonic() + self._timeout_seconds
        while True:
            try:
                return str(_value(connection, "PRAGMA journal_mode = WAL"))
            except sqlite3.OperationalError:  # SQLite does not wait here for a process that makes the same file.
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def _schema_version(self, connection: sqlite3.Connection) -> int:
        """The number of the schema in the file; 0 is an empty file."""
        version, application = _value(connection, "PRAGMA user_version"), _value(connection, "PRAGMA application_id")
        num_tables = _value(connection, "SELECT count(*) FROM sqlite_master")
        if application == _APPLICATION and version > self._version:
            raise CorruptStateError(
                f"the state store {self.path} has schema {version}, this release knows {self._version}: upgrade it"
            )
        if (application, version) != (_APPLICATION, self._version) and num_tables:
            raise CorruptStateError(f"the state store {self.path} is a database of something else; give another path")
        return int(version)


def _value(connection: sqlite3.Connection, statement: str) -> Any:
    return connection.execute(statement).fetchone()[0]
