"""A state store by its URL."""

from urllib.parse import urlsplit

from rankhouse.serving.control.redis_state_store import RedisStateStore
from rankhouse.serving.control.sqlite_state_store import SqliteStateStore
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.errors import StateStoreError


def open_state_store(url: str, *, timeout_seconds: float = 2.0, may_be_away: bool = False) -> StateStore:
    """Opens a store, and makes it where it is a file that does not exist.

    Args:
        url: `sqlite:///folder/state.db` (one machine), `redis://host:port/0` or `rediss://host:port/0` (with TLS).
        timeout_seconds: How long one call may wait for the store.
        may_be_away: Whether a store that is out of reach now is opened all the same; its calls raise until it is back.

    Raises:
        StateStoreError: The URL is of no known kind, or the store cannot be used.
    """
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        return SqliteStateStore.of_url(url, timeout_seconds=timeout_seconds, may_be_away=may_be_away)
    if scheme in ("redis", "rediss"):
        return RedisStateStore(url, timeout_seconds=timeout_seconds, may_be_away=may_be_away)
    raise StateStoreError(
        f"the state store's URL begins with {scheme or url[:20]!r}; "
        "expected sqlite:///path/file.db, redis://host:port/0 or rediss://host:port/0"
    )
