"""Telling others what happened: each event of the history to those who want it, at least once, in order.

What was delivered is a number in the state store, one for each receiver, written after the receiver has taken an event.
A crash between the two sends that event again, with the same delivery id; none is lost. Receivers do not wait for each
other, and nothing waits for receivers: transitions are committed with their events, and this comes after.

A receiver that takes nothing is tried again and again, ever more seldom, and after a day the event is given up: else
one address that is gone would hold what comes later for ever. The log says so, and `GET /admin/v1/webhooks`.
"""

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Sequence
from typing import Protocol

import httpx
import msgspec

from rankhouse.serving.admin.subscriptions import Subscriptions, Target, first_number
from rankhouse.serving.control.model_state import Event
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.webhook_urls import shown_url
from rankhouse.serving.errors import ControlError, DeliveryError

SIGNATURE_HEADER = "X-Rankhouse-Signature"
DELIVERY_HEADER = "X-Rankhouse-Delivery"
EVENT_HEADER = "X-Rankhouse-Event"

_TIMEOUT_SECONDS = 5.0
_COMMAND_SECONDS = 60.0
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 2.0
_PAGE = 100  # events
_SHOWN_OUTPUT = 300  # characters
_BLOCK_BYTES, _KEPT_BYTES = 65_536, 4096
_log = logging.getLogger(__name__)


class Progress(msgspec.Struct, frozen=True):
    """How far a receiver has come; one JSON value in the state store."""

    receiver: str
    number: int
    failing_since: float | None = None
    num_given_up: int = 0
    last_error: str = ""


class Receiver(Protocol):
    """Takes events, one at a time."""

    async def deliver(self, event: Event) -> None:
        """Returns when the receiver has taken it.

        Raises:
            DeliveryError: It has not.
        """


def signature(secret: bytes, body: bytes, at: int) -> str:
    """What the signature's header says: `t=<unix seconds>,v1=<hex of HMAC-SHA256 over "<t>.<body>">`.

    The time is signed too, so that a receiver can refuse a body that somebody has kept.
    """
    digest = hmac.new(secret, b"%d.%b" % (at, body), hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class UrlReceiver:
    """Posts events to a URL as JSON; an answer of 2xx is a receipt. Redirects are not followed.

    Args:
        url: The URL.
        client: Posts.
        secret: Signs; None leaves bodies unsigned.
        hosts: The hosts that may be posted to, `*.example.com` for all below one; empty: any.
    """

    def __init__(self, url: str, client: httpx.AsyncClient, *, secret: bytes | None, hosts: Sequence[str] = ()) -> None:
        self._url = url
        self._client = client
        self._secret = secret
        self._hosts = hosts

    async def deliver(self, event: Event) -> None:
        """Posts it once."""
        body = msgspec.json.encode(event)
        headers = {
            "content-type": "application/json",
            EVENT_HEADER: event.kind,
            DELIVERY_HEADER: f"{event.model}-{event.number}",
        }
        if self._secret is not None:
            headers[SIGNATURE_HEADER] = signature(self._secret, body, int(time.time()))
        try:
            self._check_host()
            response = await self._client.post(self._url, content=body, headers=headers, timeout=_TIMEOUT_SECONDS)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise DeliveryError(f"{type(exc).__name__}: {exc}".replace(self._url, shown_url(self._url))) from exc
        if not response.is_success:
            raise DeliveryError(f"answered {response.status_code}")

    def _check_host(self) -> None:
        host = httpx.URL(self._url).host.lower()  # As the client understands it, which is what counts.
        allowed = [each.lower() for each in self._hosts]
        if allowed and not any(host == each or (each[:2] == "*." and host.endswith(each[1:])) for each in allowed):
            raise DeliveryError(
                f"{host} is none of the hosts that RANKHOUSE_WEBHOOK_HOSTS allows; add it there, or use another host"
            )


class CommandReceiver:
    """Runs a program for each event, which it finds as JSON on its standard input; status 0 is a receipt."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = argv

    async def deliver(self, event: Event) -> None:
        """Runs it once, without a shell; it is killed when it takes longer than a minute."""
        pipe = asyncio.subprocess.PIPE
        try:
            process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.STDOUT, start_new_session=True
            )
        except OSError as exc:
            raise DeliveryError(f"{self._argv[0]}: {exc.strerror}") from exc
        try:
            output = await asyncio.wait_for(_communicated(process, msgspec.json.encode(event)), _COMMAND_SECONDS)
        except asyncio.TimeoutError as exc:
            raise DeliveryError(f"{self._argv[0]} did not end within {_COMMAND_SECONDS:g} s") from exc
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            tail = output.decode(errors="replace").strip()[-_SHOWN_OUTPUT:]
            raise DeliveryError(f"{self._argv[0]} ended with status {process.returncode}: {tail}")


async def _communicated(process: asyncio.subprocess.Process, content: bytes) -> bytes:
    """Gives a program its input, waits for its end, and returns the end of its output: it may write any amount."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(content)  # Less than a pipe takes at once, so nothing is waited for.
    process.stdin.close()
    tail = b""
    while block := await process.stdout.read(_BLOCK_BYTES):
        tail = (tail + block)[-_KEPT_BYTES:]
    await process.wait()
    return tail


class Backoff(msgspec.Struct, frozen=True):
    """When a receiver that has taken nothing is tried again, and when its event is given up."""

    first_seconds: float = 1.0
    longest_seconds: float = 300.0
    give_up_seconds: float = 86_400.0

    def wait(self, num_failures: int) -> float:
        """The seconds until the next attempt, after so many in a row have failed."""
        return float(min(self.first_seconds * 2.0 ** min(num_failures - 1, 20), self.longest_seconds))


class Stream:
    """One receiver's way through the history. Runs in one event loop; the state store's calls run in threads.

    Args:
        store: Holds the history and the progress.
        model: Whose history it is.
        target: Whom it is for.
        receiver: Takes the events.
        backoff: When to try again.
    """

    def __init__(self, store: StateStore, model: str, target: Target, receiver: Receiver, *, backoff: Backoff) -> None:
        self._store = store
        self._model = model
        self._target = target
        self._receiver = receiver
        self._backoff = backoff
        self._looked_at = 0  # Every event up to this number is delivered, or not wanted.

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        while True:
            try:
                progress, due = await asyncio.to_thread(self._due)
                for event in due:
                    progress = await self._deliver(progress, event)
                await asyncio.sleep(_POLL_SECONDS)
            except ControlError as error:
                _log.warning("events for %s wait: %s", self._target.shown, error)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:
                # Whatever nobody foresaw: a stream that ends would never tell this receiver anything again.
                _log.exception("events for %s wait", self._target.shown)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _deliver(self, progress: Progress, event: Event) -> Progress:
        """Delivers one event, however often that must be tried, and notes it."""
        name, shown, num_failures = self._target.name, self._target.shown, 0
        while True:
            try:
                await self._receiver.deliver(event)
                return await self._note(Progress(name, event.number, num_given_up=progress.num_given_up))
            except DeliveryError as error:
                num_failures += 1
                now = time.time()
                since = now if progress.failing_since is None else progress.failing_since
                progress = msgspec.structs.replace(progress, failing_since=since, last_error=str(error))
                if now - since >= self._backoff.give_up_seconds:
                    _log.error("event %d (%s) for %s is given up: %s", event.number, event.kind, shown, error)
                    given_up = progress.num_given_up + 1
                    return await self._note(Progress(name, event.number, None, given_up, str(error)))
            if num_failures == 1:
                _log.warning("%s did not take event %d (%s): %s", shown, event.number, event.kind, progress.last_error)
            await self._note(progress)
            await asyncio.sleep(self._backoff.wait(num_failures))

    async def _note(self, progress: Progress) -> Progress:
        await asyncio.to_thread(write_progress, self._store, self._model, progress)
        return progress

    def _due(self) -> tuple[Progress, list[Event]]:
        """The next events that this receiver wants, oldest first. Blocks."""
        progress = read_progress(self._store, self._model, self._target.name)
        if progress is None:
            progress = Progress(self._target.name, first_number(self._store, self._model, self._target) - 1)
            write_progress(self._store, self._model, progress)
        while True:
            page = self._store.history(self._model, after=max(progress.number, self._looked_at), limit=_PAGE)
            if not page:
                return progress, []
            # Read after the page: whoever is subscribed by one of its events is among them.
            subscriptions = Subscriptions.read(self._store, self._model)
            due = [event for event in page if subscriptions.wants(self._target, event)]
            if due:
                return progress, due
            self._looked_at = page[-1].number


class Deliveries:
    """All receivers' streams. Runs in one event loop.

    Args:
        store: Holds the history, who wants it, and the progress.
        model: Whose history it is.
        secret: Signs bodies for which the subscription names no secret of its own; None leaves them unsigned.
        hosts: The hosts that webhooks may post to, see UrlReceiver.
        command: A program that takes what `retraining` takes, with its arguments; empty is none.
        backoff: When to try again.
    """

    def __init__(
        self,
        store: StateStore,
        model: str,
        *,
        secret: bytes | None = None,
        hosts: Sequence[str] = (),
        command: Sequence[str] = (),
        backoff: Backoff,
    ) -> None:
        self._store = store
        self._model = model
        self._secret = secret
        self._hosts = hosts
        self._command = command
        self._backoff = backoff
        self._revision = -1  # Of the state whose receivers have streams.
        self._tasks: dict[Target, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Delivers until it is cancelled; a receiver that somebody subscribes gets a stream within a second."""
        async with httpx.AsyncClient(trust_env=False) as client:
            try:
                while True:
                    await self._follow(client)
                    await asyncio.sleep(_POLL_SECONDS)
            finally:
                tasks = list(self._tasks.values())
                self._tasks.clear()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, client: httpx.AsyncClient) -> None:
        try:
            revision = await asyncio.to_thread(self._store.revision, self._model)
            if revision == self._revision:
                return
            subscriptions = await asyncio.to_thread(Subscriptions.read, self._store, self._model)
        except ControlError as error:
            _log.warning("no new receivers of events are looked for: %s", error)
            return
        self._revision = revision
        targets = subscriptions.targets(has_command=bool(self._command))
        for target in targets - self._tasks.keys():
            receiver = self._receiver(target, client)
            stream = Stream(self._store, self._model, target, receiver, backoff=self._backoff)
            self._tasks[target] = asyncio.create_task(stream.run())
        for target in self._tasks.keys() - targets:
            self._tasks.pop(target).cancel()

    def _receiver(self, target: Target, client: httpx.AsyncClient) -> Receiver:
        if target.is_command:
            return CommandReceiver(self._command)
        return UrlReceiver(target.url, client, secret=target.secret() or self._secret, hosts=self._hosts)


def progress_name(model: str, receiver: str) -> str:
    """The name of a receiver's progress among the state store's values."""
    return f"delivery/{model}/{hashlib.sha256(receiver.encode()).hexdigest()[:16]}"


def read_progress(store: StateStore, model: str, receiver: str) -> Progress | None:
    """How far a receiver has come; None before its first event. Blocks."""
    content = store.get_value(progress_name(model, receiver))
    return None if content is None else msgspec.json.decode(content, type=Progress)


def write_progress(store: StateStore, model: str, progress: Progress) -> None:
    """Notes how far a receiver has come. Blocks."""
    store.put_value(progress_name(model, progress.receiver), msgspec.json.encode(progress))
