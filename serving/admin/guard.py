"""Whose call it is, and whether it may: the header Authorization of each request of the admin API."""

import asyncio
import base64
import binascii
import logging
import time

from fastapi import Request

from rankhouse.serving.admin.keys import Caller, FailureLimit, KeyRing, Role
from rankhouse.serving.errors import ForbiddenError, TooManyFailuresError, UnauthenticatedError

_HINT = "send the header Authorization: Bearer <key>"
_log = logging.getLogger(__name__)


class Guard:
    """Lets calls pass that have a key with the role they need. For the event loop's thread.

    Args:
        keys: The keys that are valid.
    """

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys
        self._limit = FailureLimit()

    async def check(self, request: Request, role: Role) -> Caller:
        """Finds out who calls.

        Raises:
            UnauthenticatedError: There is no key, or none that is known.
            TooManyFailuresError: Again, and too often from this address.
            ForbiddenError: The key's role may not do it.
        """
        key = key_in(request.headers.get("authorization"))
        if key is None:
            raise UnauthenticatedError(f"the request has no key; {_HINT}")
        caller = await asyncio.to_thread(self._keys.identify, key)
        if caller is None:
            raise self._refusal(request)
        if not caller.may(role):
            raise ForbiddenError(f"the key {caller.name!r} is a {caller.role}'s; this needs the role {role}")
        return caller

    def _refusal(self, request: Request) -> UnauthenticatedError | TooManyFailuresError:
        address = request.client.host if request.client else "unknown"
        wait = self._limit.fail(address, time.monotonic())
        if wait > 0:
            return TooManyFailuresError(f"too many wrong keys came from {address}; wait {wait:.0f} s")
        _log.warning("%s sent a key that is not known, for %s %s", address, request.method, request.url.path)
        return UnauthenticatedError(f"the key is not known, or was revoked; {_HINT}")


def key_in(header: str | None) -> str | None:
    """The key in a header Authorization: of Bearer, or the password of Basic, which is all that Flagger can send."""
    kind, _, value = (header or "").strip().partition(" ")
    value = value.strip()
    if kind.lower() == "bearer":
        return value or None
    if kind.lower() != "basic":
        return None
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
