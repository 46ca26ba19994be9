"""The state store in a Redis server, for replicas on several machines.

One plain server (with replicas of its own for safety, if you like), not a cluster: the whole state is small. Everything
that must be one step is a Lua script on the server (redis_scripts.py), whose clock ends reports, leases and answers.
"""

import contextlib
import difflib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rankhouse.serving.control import redis_scripts as scripts
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
from rankhouse.serving.errors import (
    ConflictError,
    CorruptStateError,
    NoSuchModelStateError,
    StateStoreError,
    StoreFullError,
    StoreUnavailableError,
)

_T = TypeVar("_T")

_PREFIX = "rankhouse:"
_SCHEMA = b"1"
_OPTIONS = ("password_env", "ca_file", "cert_file", "key_file")
_MAX_CONNECTIONS = 32


class RedisStateStore:
    """A state store in Redis. Any thread may call it.

    Args:
        url: `redis://[user@]host:port/db`, or `rediss://` for TLS. Options after `?`: `password_env` (the variable
            that has the password), `ca_file`, `cert_file`, `key_file` (PEM; the server is always verified).
        timeout_seconds: How long connecting, and each answer, may take.
        max_answers: How many answers, and how many claims of feedback, are kept.
        max_events: How many events are kept for each model.

    Raises:
        StateStoreError: The URL is wrong, or the server cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float = 2.0,
        max_answers: int = MAX_ANSWERS,
        max_events: int = MAX_EVENTS,
        may_be_away: bool = False,
    ) -> None:
        self._max_answers, self._max_events = max_answers, max_events
        self._reports = ReportReader()
        arguments = _connection_arguments(url)
        self._name = f"redis://{arguments['host']}:{arguments['port']}/{arguments['db']}"
        self._redis = redis.Redis(
            **arguments,
            socket_timeout=timeout_seconds,
            socket_connect_timeout=timeout_seconds,
            max_connections=_MAX_CONNECTIONS,
            # A change that was made, but whose answer was lost, must not be made again behind our back.
            retry=Retry(NoBackoff(), 0),
        )
        self._scripts: dict[str, Any] = {}
        self._is_checked = False
        try:
            with self._translated():
                pass
        except StoreUnavailableError:
            if not may_be_away:
                raise

    def read(self, model: str) -> Stored:
        """See StateStore."""
        with self._translated():
            content, revision = self._redis.hmget(_key(model, "state"), "content", "revision")
        if content is None or revision is None:
            raise self._no_state(model)
        return Stored(decode_state(content), int(revision))

    def revision(self, model: str) -> int:
        """See StateStore."""
        with self._translated():
            return int(self._redis.hget(_key(model, "state"), "revision") or 0)

    def models(self) -> list[str]:
        """See StateStore."""
        with self._translated():
            return sorted(name.decode() for name in self._redis.smembers(f"{_PREFIX}models"))

    def create(self, state: ModelState, events: Sequence[Event] = ()) -> Stored:
        """See StateStore."""
        model = state.model
        keys = [_key(model, "state"), _key(model, "events"), f"{_PREFIX}models"]
        self._run(scripts.CREATE, keys, [model, encode_state(state), *map(msgspec.json.encode, events)])
        return self.read(model)

    def commit(
        self, state: ModelState, *, expected: int, events: Sequence[Event], finished: Sequence[Rollout] = ()
    ) -> int:
        """See StateStore. Where the server's answer does not come, the change may have been made: read the state."""
        model = state.model
        keys = [_key(model, part) for part in ("state", "events", "finished", "over", "publishers")]
        ended = [part for rollout in finished for part in (rollout.id, msgspec.json.encode(rollout))]
        arguments = [
            *(expected, encode_state(state), self._max_events, MAX_FINISHED, _key(model, "summaries:")),
            *(len(events), *map(msgspec.json.encode, events), *ended),
        ]
        is_done, revision = self._run(scripts.COMMIT, keys, arguments)
        if is_done:
            return int(revision)
        if not revision:
            raise self._no_state(model)
        raise ConflictError(f"the state of model {model} is at revision {revision}, not {expected}: read it again")

    def history(
        self, model: str, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> list[Event]:
        """See StateStore."""
        low, high = f"({after or 0}", "+inf" if before is None else f"({before}"
        with self._translated():
            if after is None:
                found = self._redis.zrevrangebyscore(_key(model, "events"), high, low, start=0, num=limit)
            else:
                found = self._redis.zrangebyscore(_key(model, "events"), low, high, start=0, num=limit)
        events = []
        for member in found:
            number, content = member.split(b":", 1)
            events.append(msgspec.structs.replace(_decoded(content, Event), number=int(number)))
        return events

    def finished(self, model: str, *, limit: int = 50) -> list[Rollout]:
        """See StateStore."""
        with self._translated():
            found = self._redis.zrevrangebyscore(_key(model, "finished"), "+inf", "-inf", start=0, num=limit)
        return [_decoded(member.split(b":", 1)[1], Rollout) for member in found]

    def report(self, report: ReplicaReport, *, ttl_seconds: float) -> None:
        """See StateStore."""
        keys = [_key(report.model, "reports"), _key(report.model, "ends")]
        self._run(scripts.REPORT, keys, [report.replica, msgspec.json.encode(report), _milliseconds(ttl_seconds)])

    def replicas(self, model: str) -> list[ReplicaReport]:
        """See StateStore."""
        found = self._run(scripts.REPLICAS, [_key(model, "reports"), _key(model, "ends")], [])
        return self._reports.read(content for content in found if content is not None)

    def retire(self, model: str, replica: str) -> None:
        """See StateStore."""
        with self._translated():
            self._redis.zrem(_key(model, "ends"), replica)
            self._redis.hdel(_key(model, "reports"), replica)

    def take_lease(self, name: str, holder: str, *, ttl_seconds: float) -> bool:
        """See StateStore."""
        taken = self._run(scripts.TAKE_LEASE, [f"{_PREFIX}lease:{name}"], [holder, _milliseconds(ttl_seconds)])
        return bool(taken)

    def release_lease(self, name: str, holder: str) -> None:
        """See StateStore."""
        self._run(scripts.RELEASE_LEASE, [f"{_PREFIX}lease:{name}"], [holder])

    def publish_summaries(self, replica: str, model: str, summaries: Mapping[SummaryKey, bytes]) -> None:
        """See StateStore."""
        keys = [_key(model, f"summaries:{replica}"), _key(model, "publishers"), _key(model, "over")]
        parts = [part for item in summaries.items() for part in item]
        self._run(scripts.PUBLISH, keys, [replica, int(SUMMARY_SECONDS), repr(time.time()), *parts])

    def summaries(self, model: str) -> list[PublishedSummary]:
        """See StateStore."""
        found = self._run(scripts.SUMMARIES, [_key(model, "publishers")], [_key(model, "summaries:")])
        published = []
        for replica, parts in zip(found[::2], found[1::2], strict=True):
            contents = dict(zip(parts[::2], parts[1::2], strict=True))
            at = float(contents.pop(b"at", b"0"))
            published += [PublishedSummary(replica.decode(), k.decode(), v, at) for k, v in contents.items()]
        return sorted(published, key=lambda each: (each.replica, each.key))

    def remember_answers(self, answers: Sequence[AnsweredRequest], *, ttl_seconds: float) -> None:
        """See StateStore."""
        parts = [part for each in answers for part in (answer_name(each.model, each.request_id), encode_answer(each))]
        arguments = [f"{_PREFIX}answer:", _milliseconds(ttl_seconds), self._max_answers, *parts]
        self._run(scripts.REMEMBER, [f"{_PREFIX}answers"], arguments)

    def recall_answer(self, model: str, request_id: str) -> AnsweredRequest | None:
        """See StateStore."""
        with self._translated():
            content = self._redis.get(f"{_PREFIX}answer:{answer_name(model, request_id)}")
        return None if content is None else decode_answer(content)

    def claim_feedback(self, model: str, claims: Sequence[tuple[str, str]], *, ttl_seconds: float) -> list[bool]:
        """See StateStore."""
        members = [f"{answer_name(model, request_id)}\0{event}" for request_id, event in claims]
        first = self._run(
            scripts.CLAIM, [f"{_PREFIX}claims"], [_milliseconds(ttl_seconds), self._max_answers, *members]
        )
        return [bool(each) for each in first]

    def keys(self) -> list[ApiKey]:
        """See StateStore."""
        with self._translated():
            found = self._redis.hgetall(f"{_PREFIX}api_keys")
        return [_decoded(found[name], ApiKey) for name in sorted(found)]

    def put_key(self, key: ApiKey) -> None:
        """See StateStore."""
        with self._translated():
            self._redis.hset(f"{_PREFIX}api_keys", key.name, msgspec.json.encode(key))

    def remove_key(self, name: str) -> bool:
        """See StateStore."""
        with self._translated():
            return bool(self._redis.hdel(f"{_PREFIX}api_keys", name))

    def get_value(self, name: str) -> bytes | None:
        """See StateStore."""
        with self._translated():
            content: bytes | None = self._redis.hget(f"{_PREFIX}values", name)
        return content

    def put_value(self, name: str, content: bytes) -> None:
        """See StateStore."""
        with self._translated():
            self._redis.hset(f"{_PREFIX}values", name, content)

    def close(self) -> None:
        """See StateStore."""
        self._redis.close()

    def _run(self, script: str, keys: list[str], arguments: Iterable[Any]) -> Any:
        with self._translated():
            if script not in self._scripts:
                self._scripts[script] = self._redis.register_script(script)
            return self._scripts[script](keys=keys, args=list(arguments))

    def _check_schema(self) -> None:
        self._redis.set(f"{_PREFIX}schema", _SCHEMA, nx=True)
        schema = self._redis.get(f"{_PREFIX}schema")
        if schema != _SCHEMA:
            raise CorruptStateError(
                f"the state store {self._name} has schema {schema!r}, this release knows {_SCHEMA!r}: upgrade it"
            )
        self._is_checked = True

    def _no_state(self, model: str) -> NoSuchModelStateError:
        return NoSuchModelStateError(f"the state store {self._name} has no state of model {model!r}")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            if not self._is_checked:
                self._check_schema()
            yield
        except redis.RedisError as exc:
            raise _translation(self._name, exc) from exc


def _translation(name: str, exc: redis.RedisError) -> StateStoreError:
    said = f"the state store {name}: {exc}"
    if isinstance(exc, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return StoreUnavailableError(f"{said}; give the user in the URL and its password by password_env")
    if isinstance(exc, redis.ConnectionError | redis.TimeoutError):
        return StoreUnavailableError(f"{said}; is the server running, and reachable from here?")
    if isinstance(exc, redis.exceptions.OutOfMemoryError | redis.ReadOnlyError) or "MISCONF" in str(exc):
        return StoreFullError(f"{said}; it takes no writes: give it memory or disk, or the address of the primary")
    if "WRONGTYPE" in str(exc):
        return CorruptStateError(f"{said}; something else uses keys that begin with {_PREFIX}: take another database")
    if "MOVED" in str(exc) or "CLUSTER" in str(exc):
        return StateStoreError(f"{said}; this is a node of a cluster: the state store needs a plain server")
    return StateStoreError(said)


def _connection_arguments(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname}"
    if parts.password is not None:
        raise StateStoreError(f"the state store's URL {shown} holds a password; name its variable: ?password_env=NAME")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for option in options:
        if option not in _OPTIONS:
            nearest = difflib.get_close_matches(option, _OPTIONS, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(_OPTIONS)}"
            raise StateStoreError(f"the state store's URL {shown} has the unknown option {option[:40]!r}; {hint}")
    try:
        database, port = int(parts.path.strip("/") or "0"), parts.port or 6379
    except ValueError as exc:
        raise StateStoreError(f"the state store's URL {shown}: {exc}; expected redis://host:port/0") from exc
    if not parts.hostname:
        raise StateStoreError("the state store's URL names no host; expected redis://host:port/0")
    arguments: dict[str, Any] = {"host": parts.hostname, "port": port, "db": database}
    if parts.username:
        arguments["username"] = unquote(parts.username)
    if (variable := options.get("password_env")) is not None:
        if variable not in os.environ:
            raise StateStoreError(f"the variable {variable[:40]!r} with the state store's password is not set")
        arguments["password"] = os.environ[variable]
    return arguments | _tls_arguments(shown, options, is_tls=parts.scheme == "rediss")


def _tls_arguments(shown: str, options: Mapping[str, str], *, is_tls: bool) -> dict[str, Any]:
    names = {"ca_file": "ssl_ca_certs", "cert_file": "ssl_certfile", "key_file": "ssl_keyfile"}
    files = {names[option]: path for option, path in options.items() if option in names}
    if files and not is_tls:
        raise StateStoreError(f"the state store's URL {shown} gives files for TLS; then it begins with rediss://")
    for path in files.values():
        if not os.path.isfile(path):
            raise StateStoreError(f"the state store's URL {shown} names the file {path}, which does not exist")
    return {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, **files} if is_tls else {}


def _key(model: str, part: str) -> str:
    return f"{_PREFIX}model:{model}:{part}"


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _decoded(content: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as exc:
        raise CorruptStateError(f"a stored {kind.__name__} cannot be read: {exc}") from exc
