"""The URLs of webhooks, which often are secrets themselves: who knows one may post to it."""

from typing import Any
from urllib.parse import SplitResult, urlsplit

_HIDDEN = "…"


def url_fault(url: str) -> str:
    """Says what is wrong with a webhook's URL, without naming a password in it; empty: nothing is."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # Reading it checks it.
    except ValueError as exc:
        return f"is no URL: {exc}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return "is no address; expected http://host/path or https://host/path"
    if "@" in parts.netloc:
        return "has a user or password before its host, which are not sent; sign with secret_env instead"
    if _HIDDEN in url:
        return f"ends with {_HIDDEN}, so it was copied from where its path is hidden; give the whole URL"
    return ""


def shown_url(url: str) -> str:
    """What readers and logs are shown of a webhook's URL: its scheme and host."""
    try:
        return _shown(urlsplit(url))
    except ValueError:
        return _HIDDEN


def hidden_urls(document: dict[str, Any]) -> dict[str, Any]:
    """A rollout's or policy's document as readers are shown it."""
    shown = dict(document)
    if "webhooks" in document:
        shown["webhooks"] = [hook | {"url": shown_url(hook["url"])} for hook in document["webhooks"]]
    if "rollout" in document:
        shown["rollout"] = hidden_urls(document["rollout"])
    return shown


def _shown(parts: SplitResult) -> str:
    host = parts.netloc.rpartition("@")[2]
    rest = f"/{_HIDDEN}" if parts.path.strip("/") or parts.query or parts.fragment else parts.path
    return f"{parts.scheme}://{host}{rest}"
