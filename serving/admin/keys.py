"""Who may call the admin API: keys of 32 random bytes, of which only hashes are kept, and roles.

A key is as long as a hash, so a hash without salt and without stretching keeps it: there is no dictionary to try. What
is limited is therefore not guessing, which is hopeless, but noise: an address with many wrong keys is told to wait, and
its attempts are no longer written to the log one by one. A right key is always heard, also from such an address: behind
a proxy all callers share one, and a stranger there must not keep an operator from rolling back.
"""

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Literal, cast, get_args

import msgspec

from rankhouse.serving.control.model_state import ApiKey
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.errors import (
    InvalidFieldError,
    KeyExistsError,
    KeyFileError,
    NoSuchKeyError,
    StateStoreError,
)

Role = Literal["viewer", "operator", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)  # Each may do what those before it may.
FIRST_KEY = "first-key"

_PREFIX = "rhk_"  # So that scanners for secrets, and people, know one when they see it.
_KEY_BYTES = 32
_SHORTEST_KEY = 32  # characters
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
# What history calls others who act must not be a key's name.
_TAKEN = (FIRST_KEY, "conductor", "refresh")
_MANY_ADDRESSES = 10_000
_log = logging.getLogger(__name__)


class Caller(msgspec.Struct, frozen=True):
    """Who gives a command: the key's name, which history records, and what it may do."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Says whether what a role may do is allowed to this caller."""
        return ROLES.index(self.role) >= ROLES.index(role)


def new_key() -> str:
    """Makes a key."""
    return _PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def write_key_file(path: Path) -> None:
    """Writes a new key into a new file that only its owner can read.

    Raises:
        KeyFileError: There is such a file already, or it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as exc:
        raise KeyFileError(f"the admin key's file {path} cannot be made: {exc.strerror}") from exc
    with os.fdopen(descriptor, "w") as file:
        file.write(new_key() + "\n")


def read_key_file(path: Path) -> str:
    """Reads a key.

    Raises:
        KeyFileError: The file cannot be read, others may read it, or it holds no key.
    """
    try:
        with path.open() as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read(1024).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise KeyFileError(f"the admin key's file {path} cannot be read: {exc}") from exc
    if mode & 0o077:
        raise KeyFileError(f"the admin key's file {path} has mode {mode:04o}, so others can use it; chmod 600 {path}")
    if len(key) < _SHORTEST_KEY or not key.isascii() or not key.isprintable() or " " in key:
        raise KeyFileError(
            f"the admin key's file {path} holds no key; expected one line of {_SHORTEST_KEY} characters or more, "
            f"such as `openssl rand -base64 32` prints"
        )
    return key


class KeyRing:
    """The keys that are valid now: those in the state store, and the one in the first key's file.

    Both are read again for each request, so a key is added, replaced or revoked without a restart. Blocks: call it
    from a thread; any thread may.

    Args:
        store: Keeps the hashes.
        key_file: Holds the first key, whose role is admin; None is no such key.

    Raises:
        KeyFileError: The file does not hold a key that only its owner can read.
    """

    def __init__(self, store: StateStore, *, key_file: Path | None) -> None:
        self._store = store
        self._key_file = key_file
        self._lock = threading.Lock()
        self._known: list[ApiKey] = []
        self._first_sha256 = "" if key_file is None else _sha256(read_key_file(key_file))

    def identify(self, key: str) -> Caller | None:
        """Finds whose key it is.

        All keys are compared, in constant time each, so that the time says nothing of how near a wrong one is. While
        the state store is away, the keys that were last seen there are valid. Without its file the first key is not.
        """
        found = None
        given = _sha256(key)
        for known in [*self._first(), *self._stored()]:
            if hmac.compare_digest(known.sha256, given):
                found = Caller(known.name, cast(Role, known.role))
        return found

    def records(self) -> list[ApiKey]:
        """The keys, without themselves: names, roles, when and by whom they were made.

        Raises:
            StateStoreError: The store is away.
        """
        return [*self._first(), *self._store.keys()]

    def add(self, name: str, role: Role, *, by: Caller, now: float) -> str:
        """Makes a key and returns it; it is kept nowhere, so this is the only time that it is seen.

        Raises:
            InvalidFieldError: The name cannot be a key's.
            KeyExistsError: Another key has this name.
            StateStoreError: The store is away.
        """
        if not _NAME.fullmatch(name):
            raise InvalidFieldError(f"is {name[:80]!r}; expected 1 to 64 of A-Z a-z 0-9 . _ @ -", "name")
        with self._lock:
            if name in _TAKEN or any(key.name == name for key in self.records()):
                raise KeyExistsError(f"there is a key named {name!r}; revoke it first or choose another name")
            key = new_key()
            self._store.put_key(ApiKey(name, role, sha256=_sha256(key), created_at=now, created_by=by.name))
        return key

    def revoke(self, name: str) -> None:
        """Makes a key invalid at once.

        Raises:
            InvalidFieldError: It is the first key, which stands in a file.
            NoSuchKeyError: No key has this name.
            StateStoreError: The store is away.
        """
        if name == FIRST_KEY:
            raise InvalidFieldError(f"{name} stands in the file {self._key_file}; replace or remove that", "name")
        if not self._store.remove_key(name):
            raise NoSuchKeyError(f"no key is named {name[:80]!r}; GET /admin/v1/keys lists them")

    def _first(self) -> list[ApiKey]:
        if self._key_file is None or not self._key_file.exists():
            return []
        try:
            self._first_sha256 = _sha256(read_key_file(self._key_file))
        except KeyFileError as error:
            # Half written, perhaps: the key that was there before stays valid until the file is whole.
            _log.warning("%s; the key that was read before stays valid", error)
        return [ApiKey(FIRST_KEY, "admin", self._first_sha256, created_at=0.0, created_by=str(self._key_file))]

    def _stored(self) -> list[ApiKey]:
        try:
            self._known = self._store.keys()
        except StateStoreError as error:
            _log.warning("the state store is away (%s); the keys that were last seen there stay valid", error)
        return self._known


class FailureLimit:
    """How many wrong keys each address may send. Used from one thread.

    Args:
        burst: How many at once.
        seconds_each: In which time one more is allowed.
    """

    def __init__(self, *, burst: int = 10, seconds_each: float = 6.0) -> None:
        self._burst = burst
        self._seconds_each = seconds_each
        self._filled_at: OrderedDict[str, float] = OrderedDict()  # When each address has its whole burst again.

    def fail(self, address: str, now: float) -> float:
        """Counts a wrong key.

        Returns:
            0, or the seconds until the address is heard again.
        """
        filled_at = max(self._filled_at.pop(address, now), now)
        wait = filled_at - now - (self._burst - 1) * self._seconds_each
        self._filled_at[address] = filled_at if wait > 0 else filled_at + self._seconds_each
        if len(self._filled_at) > _MANY_ADDRESSES:
            self._filled_at.popitem(last=False)
        return max(wait, 0.0)


def _sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
