"""The state store in one SQLite file, for all replicas of one machine."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from rankhouse.serving.control.model_state import (
    AnsweredRequest,
    ApiKey,
    Event,
    ModelState,
    ReplicaReport,
    Rollout,
    decode_answer,
    decode_state,
    encode_answer,
    encode_state,
)
from rankhouse.serving.control.sqlite_database import SqliteDatabase
from rankhouse.serving.control.state_store import (
    MAX_ANSWERS,
    MAX_EVENTS,
    MAX_FINISHED,
    SUMMARY_SECONDS,
    PublishedSummary,
    ReportReader,
    Stored,
    SummaryKey,
    answer_name,
)
from rankhouse.serving.errors import ConflictError, CorruptStateError, NoSuchModelStateError, StateStoreError

_T = TypeVar("_T")

# What ends so much later than it should was written before the clock was set back.
_JUMP_SECONDS = 60.0
_VERSION = 1
_SCHEMA = """
CREATE TABLE states (model TEXT PRIMARY KEY, revision INTEGER, num_events INTEGER, content BLOB NOT NULL);
CREATE TABLE events (model TEXT, number INTEGER, content BLOB NOT NULL, PRIMARY KEY (model, number)) WITHOUT ROWID;
CREATE TABLE finished (number INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT, rollout TEXT, content BLOB NOT NULL);
CREATE INDEX finished_of_model ON finished (model, number);
CREATE TABLE replicas (model TEXT, replica TEXT, expires_at REAL, content BLOB NOT NULL, PRIMARY KEY (model, replica));
CREATE TABLE leases (name TEXT PRIMARY KEY, holder TEXT NOT NULL, expires_at REAL NOT NULL);
CREATE TABLE summaries (model TEXT, replica TEXT, key TEXT, at REAL, content BLOB, PRIMARY KEY (model, replica, key));
CREATE TABLE answers (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, expires_at REAL, content BLOB);
CREATE INDEX answers_by_end ON answers (expires_at);
CREATE TABLE claims (number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, event TEXT, expires_at REAL,
    UNIQUE (name, event));
CREATE INDEX claims_by_end ON claims (expires_at);
CREATE TABLE api_keys (name TEXT PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE named_values (name TEXT PRIMARY KEY, content BLOB NOT NULL)
"""


class SqliteStateStore:
    """A state store in one file. Any thread may call it; several processes of one machine may share the file.

    Args:
        path: The file; made if it does not exist.
        timeout_seconds: How long a call waits for other writers.
        clock: Unix seconds, by which reports, leases and answers end.
        max_answers: How many answers, and how many claims of feedback, are kept.
        max_events: How many events are kept for each model.
        may_be_away: Whether it may be out of reach now.

    Raises:
        StateStoreError: The file cannot be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_seconds: float = 2.0,
        clock: Callable[[], float] = time.time,
        max_answers: int = MAX_ANSWERS,
        max_events: int = MAX_EVENTS,
        may_be_away: bool = False,
    ) -> None:
        self._clock, self._max_answers, self._max_events = clock, max_answers, max_events
        self._reports = ReportReader()
        self._database = SqliteDatabase(
            path, schema=_SCHEMA, version=_VERSION, timeout_seconds=timeout_seconds, may_be_away=may_be_away
        )

    @classmethod
    def of_url(cls, url: str, *, timeout_seconds: float = 2.0, may_be_away: bool = False) -> "SqliteStateStore":
        """The store of a URL like `sqlite:///folder/state.db`, whose path is absolute.

        Raises:
            StateStoreError: The URL names no file.
        """
        parts = urlsplit(url)
        path = "/" + unquote(parts.path).lstrip("/")
        if parts.netloc or len(path) < 2 or path.endswith("/") or parts.query:
            raise StateStoreError(f"the state store's URL is {url!r}; expected sqlite:///absolute/path/file.db")
        return cls(Path(path), timeout_seconds=timeout_seconds, may_be_away=may_be_away)

    def read(self, model: str) -> Stored:
        """See StateStore."""
        with self._database.reading() as connection:
            row = connection.execute("SELECT content, revision FROM states WHERE model = ?", (model,)).fetchone()
        if row is None:
            raise _no_state(self._database.path, model)
        return Stored(decode_state(row[0]), row[1])

    def revision(self, model: str) -> int:
        """See StateStore."""
        with self._database.reading() as connection:
            row = connection.execute("SELECT revision FROM states WHERE model = ?", (model,)).fetchone()
        return 0 if row is None else int(row[0])

    def models(self) -> list[str]:
        """See StateStore."""
        with self._database.reading() as connection:
            return [row[0] for row in connection.execute("SELECT model FROM states ORDER BY model")]

    def create(self, state: ModelState, events: Sequence[Event] = ()) -> Stored:
        """See StateStore."""
        with self._database.writing() as connection:
            row = (state.model, encode_state(state))
            cursor = connection.execute("INSERT OR IGNORE INTO states VALUES (?, 1, 0, ?)", row)
            if cursor.rowcount == 1:
                self._add_events(connection, state.model, events)
        return self.read(state.model)

    def commit(
        self, state: ModelState, *, expected: int, events: Sequence[Event], finished: Sequence[Rollout] = ()
    ) -> int:
        """See StateStore."""
        model = state.model
        with self._database.writing() as connection:
            cursor = connection.execute(
                "UPDATE states SET content = ?, revision = revision + 1 WHERE model = ? AND revision = ?",
                (encode_state(state), model, expected),
            )
            if cursor.rowcount == 0:
                row = connection.execute("SELECT revision FROM states WHERE model = ?", (model,)).fetchone()
                if row is None:
                    raise _no_state(self._database.path, model)
                raise ConflictError(
                    f"the state of model {model} is at revision {row[0]}, not {expected}: read it again"
                )
            self._add_events(connection, model, events)
            for rollout in finished:
                content = msgspec.json.encode(rollout)
                connection.execute("INSERT INTO finished VALUES (NULL, ?, ?, ?)", (model, rollout.id, content))
                prefix = f"{rollout.id}/"
                connection.execute(
                    "DELETE FROM summaries WHERE model = ? AND substr(key, 1, ?) = ?", (model, len(prefix), prefix)
                )
            connection.execute(
                "DELETE FROM finished WHERE number IN "
                "(SELECT number FROM finished WHERE model = ? ORDER BY number DESC LIMIT -1 OFFSET ?)",
                (model, MAX_FINISHED),
            )
        return expected + 1

    def _add_events(self, connection: Connection, model: str, events: Sequence[Event]) -> None:
        select = "SELECT num_events FROM states WHERE model = ?"
        count = int(connection.execute(select, (model,)).fetchone()[0])
        for event in events:
            count += 1
            content = msgspec.json.encode(msgspec.structs.replace(event, number=count))
            connection.execute("INSERT INTO events VALUES (?, ?, ?)", (model, count, content))
        connection.execute("UPDATE states SET num_events = ? WHERE model = ?", (count, model))
        connection.execute("DELETE FROM events WHERE model = ? AND number <= ?", (model, count - self._max_events))

    def history(
        self, model: str, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> list[Event]:
        """See StateStore."""
        order = "DESC" if after is None else "ASC"
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT content FROM events WHERE model = ? AND number < ? AND number > ? "
                f"ORDER BY number {order} LIMIT ?",
                (model, 1 << 62 if before is None else before, 0 if after is None else after, limit),
            ).fetchall()
        return _decoded(rows, Event)

    def finished(self, model: str, *, limit: int = 50) -> list[Rollout]:
        """See StateStore."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT content FROM finished WHERE model = ? ORDER BY number DESC LIMIT ?", (model, limit)
            ).fetchall()
        return _decoded(rows, Rollout)

    def report(self, report: ReplicaReport, *, ttl_seconds: float) -> None:
        """See StateStore."""
        now = self._clock()
        row = (report.model, report.replica, now + ttl_seconds, msgspec.json.encode(report))
        with self._database.writing(is_durable=False) as connection:
            connection.execute(
                "DELETE FROM replicas WHERE expires_at <= ? OR expires_at > ?", (now, now + ttl_seconds + _JUMP_SECONDS)
            )
            connection.execute("INSERT OR REPLACE INTO replicas VALUES (?, ?, ?, ?)", row)

    def replicas(self, model: str) -> list[ReplicaReport]:
        """See StateStore."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT content FROM replicas WHERE model = ? AND expires_at > ? ORDER BY replica",
                (model, self._clock()),
            ).fetchall()
        return self._reports.read(row[0] for row in rows)

    def retire(self, model: str, replica: str) -> None:
        """See StateStore."""
        with self._database.writing(is_durable=False) as connection:
            connection.execute("DELETE FROM replicas WHERE model = ? AND replica = ?", (model, replica))

    def take_lease(self, name: str, holder: str, *, ttl_seconds: float) -> bool:
        """See StateStore."""
        now = self._clock()
        with self._database.writing(is_durable=False) as connection:
            cursor = connection.execute(
                "INSERT INTO leases VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
                "SET holder = excluded.holder, expires_at = excluded.expires_at "
                "WHERE holder = excluded.holder OR expires_at <= ? OR expires_at > ?",
                (name, holder, now + ttl_seconds, now, now + ttl_seconds + _JUMP_SECONDS),
            )
            return cursor.rowcount == 1

    def release_lease(self, name: str, holder: str) -> None:
        """See StateStore."""
        with self._database.writing(is_durable=False) as connection:
            connection.execute("DELETE FROM leases WHERE name = ? AND holder = ?", (name, holder))

    def publish_summaries(self, replica: str, model: str, summaries: Mapping[SummaryKey, bytes]) -> None:
        """See StateStore."""
        now = self._clock()
        with self._database.writing(is_durable=False) as connection:
            over = {row[0] for row in connection.execute("SELECT rollout FROM finished WHERE model = ?", (model,))}
            connection.execute(
                "DELETE FROM summaries WHERE model = ? AND (replica = ? OR at < ?)",
                (model, replica, now - SUMMARY_SECONDS),
            )
            connection.executemany(
                "INSERT INTO summaries VALUES (?, ?, ?, ?, ?)",
                [
                    (model, replica, key, now, content)
                    for key, content in summaries.items()
                    if key.split("/", 1)[0] not in over
                ],
            )

    def summaries(self, model: str) -> list[PublishedSummary]:
        """See StateStore."""
        with self._database.reading() as connection:
            rows = connection.execute(
                "SELECT replica, key, content, at FROM summaries WHERE model = ? AND at >= ? ORDER BY replica, key",
                (model, self._clock() - SUMMARY_SECONDS),
            ).fetchall()
        return [PublishedSummary(*row) for row in rows]

    def remember_answers(self, answers: Sequence[AnsweredRequest], *, ttl_seconds: float) -> None:
        """See StateStore."""
        now = self._clock()
        rows = [(answer_name(each.model, each.request_id), now + ttl_seconds, encode_answer(each)) for each in answers]
        with self._database.writing(is_durable=False) as connection:
            connection.executemany("INSERT OR REPLACE INTO answers VALUES (NULL, ?, ?, ?)", rows)
            self._forget(connection, "answers", now)

    def recall_answer(self, model: str, request_id: str) -> AnsweredRequest | None:
        """See StateStore."""
        with self._database.reading() as connection:
            row = connection.execute(
                "SELECT content FROM answers WHERE name = ? AND expires_at > ?",
                (answer_name(model, request_id), self._clock()),
            ).fetchone()
        return None if row is None else decode_answer(row[0])

    def claim_feedback(self, model: str, claims: Sequence[tuple[str, str]], *, ttl_seconds: float) -> list[bool]:
        """See StateStore."""
        now = self._clock()
        with self._database.writing(is_durable=False) as connection:
            self._forget(connection, "claims", now)
            insert = "INSERT OR IGNORE INTO claims VALUES (NULL, ?, ?, ?)"
            rows = [(answer_name(model, request_id), event, now + ttl_seconds) for request_id, event in claims]
            return [connection.execute(insert, row).rowcount == 1 for row in rows]

    def _forget(self, connection: Connection, table: str, now: float) -> None:
        """Removes rows whose time is over, and the oldest of too many, which the growing numbers tell."""
        connection.execute(f"DELETE FROM {table} WHERE expires_at <= ?", (now,))
        connection.execute(
            f"DELETE FROM {table} WHERE number <= (SELECT max(number) FROM {table}) - ?", (self._max_answers,)
        )

    def keys(self) -> list[ApiKey]:
        """See StateStore."""
        with self._database.reading() as connection:
            return _decoded(connection.execute("SELECT content FROM api_keys ORDER BY name").fetchall(), ApiKey)

    def put_key(self, key: ApiKey) -> None:
        """See StateStore."""
        with self._database.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO api_keys VALUES (?, ?)", (key.name, msgspec.json.encode(key)))

    def remove_key(self, name: str) -> bool:
        """See StateStore."""
        with self._database.writing() as connection:
            return connection.execute("DELETE FROM api_keys WHERE name = ?", (name,)).rowcount == 1

    def get_value(self, name: str) -> bytes | None:
        """See StateStore."""
        with self._database.reading() as connection:
            row = connection.execute("SELECT content FROM named_values WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def put_value(self, name: str, content: bytes) -> None:
        """See StateStore."""
        with self._database.writing() as connection:
            connection.execute("INSERT OR REPLACE INTO named_values VALUES (?, ?)", (name, content))

    def close(self) -> None:
        """See StateStore."""
        self._database.close()


def _no_state(path: Path, model: str) -> NoSuchModelStateError:
    return NoSuchModelStateError(f"the state store {path} has no state of model {model!r}")


def _decoded(rows: Iterable[tuple[bytes]], kind: type[_T]) -> list[_T]:
    try:
        return [msgspec.json.decode(row[0], type=kind) for row in rows]
    except msgspec.MsgspecError as exc:
        raise CorruptStateError(f"a stored {kind.__name__} cannot be read: {exc}") from exc
