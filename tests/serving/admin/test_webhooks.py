"""Events on their way to receivers, which are real servers and real programs."""

import asyncio
import hashlib
import hmac
import json
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from rankhouse.serving.admin.overview import Reader
from rankhouse.serving.admin.subscriptions import Target, first_number
from rankhouse.serving.admin.webhooks import (
    Backoff,
    CommandReceiver,
    Deliveries,
    Progress,
    UrlReceiver,
    read_progress,
    signature,
    write_progress,
)
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, Event, ModelState, RefreshPolicy
from rankhouse.serving.control.rollout_spec import Webhook, parse_rollout
from rankhouse.serving.control.state_store import StateStore, change_state
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import DeliveryError
from tests.serving.admin.receivers import Receiver
from tests.serving.admin.world import MODEL, SPEC, V2, has_stable

QUICK = Backoff(first_seconds=0.02, longest_seconds=0.1)


def make(store: StateStore, command: Callable[..., Change], *arguments: Any, reason: str = "") -> ModelState:
    how = {"actor": "ann", "now": time.time(), "reason": reason}
    return change_state(store, MODEL, lambda state: command(state, *arguments, **how)).state


def rollout_to(store: StateStore, *hooks: dict[str, Any]) -> str:
    """Starts a rollout with webhooks."""
    return make(store, transitions.start_rollout, parse_rollout(SPEC | {"webhooks": list(hooks)})).rollouts[-1].id


@contextmanager
def delivering(store: StateStore, **options: Any) -> Iterator[None]:
    """Delivers in a thread until the `with` ends."""
    loop = asyncio.new_event_loop()
    deliveries = Deliveries(store, MODEL, **{"backoff": QUICK, **options})
    task = loop.create_task(deliveries.run())

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60.0)
    assert not thread.is_alive()


def test_each_event_of_a_rollout_comes_once_in_order_and_signed(store: StateStore) -> None:
    has_stable(store)
    with Receiver() as receiver, delivering(store, secret=b"secret"):
        rollout = rollout_to(store, {"url": receiver.url})
        make(store, transitions.pause, rollout)
        make(store, transitions.resume, rollout)
        make(store, transitions.abort, rollout, reason="no good")
        receiver.wait(taken=4)
    assert [event["kind"] for event in receiver.taken] == ["started", "paused", "resumed", "rolled_back"]
    assert [event["number"] for event in receiver.taken] == sorted(event["number"] for event in receiver.taken)
    assert receiver.taken[-1]["reason"] == "no good"
    for headers, body, event in zip(receiver.headers, receiver.bodies, receiver.taken, strict=True):
        at, given = (part.partition("=")[2] for part in headers["x-rankhouse-signature"].split(","))
        expected = hmac.new(b"secret", at.encode() + b"." + body, hashlib.sha256).hexdigest()
        assert given == expected
        assert headers["x-rankhouse-delivery"] == f"{MODEL}-{event['number']}"
        assert headers["x-rankhouse-event"] == event["kind"]


def test_receivers_get_the_kinds_that_they_asked_for(store: StateStore) -> None:
    has_stable(store)
    with Receiver() as some, Receiver() as all_of_them, delivering(store):
        rollout = rollout_to(store, {"url": some.url, "events": ["rolled_back"]}, {"url": all_of_them.url})
        make(store, transitions.abort, rollout)
        some.wait(taken=1)
        all_of_them.wait(taken=2)
    assert [event["kind"] for event in some.taken] == ["rolled_back"]
    assert "x-rankhouse-signature" not in some.headers[0]


def test_what_is_no_rollouts_goes_to_the_policys_receivers(store: StateStore) -> None:
    has_stable(store)
    make(store, transitions.quarantine, "000007-77777777", reason="before anybody asked")
    with Receiver() as receiver, delivering(store):
        make(store, transitions.set_policy, RefreshPolicy(webhooks=(Webhook(receiver.url),)))
        rollout_to(store)
        make(store, transitions.quarantine, "000008-88888888", reason="later")
        receiver.wait(taken=2)
    assert [(event["kind"], event["reason"]) for event in receiver.taken] == [
        ("policy_changed", ""),
        ("quarantined", "later"),
    ]


def test_a_receiver_that_refuses_gets_the_event_again_before_the_next(store: StateStore) -> None:
    has_stable(store)
    with Receiver(500, 404, 302) as receiver, delivering(store):
        rollout = rollout_to(store, {"url": receiver.url})
        make(store, transitions.abort, rollout)
        receiver.wait(taken=2, calls=5)
    assert [event["kind"] for event in receiver.taken] == ["started", "rolled_back"]
    assert receiver.num_calls == 5


def test_a_dead_receiver_holds_nobody_up_and_is_reported(store: StateStore) -> None:
    has_stable(store)
    with Receiver() as dead:
        url = dead.url
    with Receiver() as living, delivering(store):
        rollout = rollout_to(store, {"url": url}, {"url": living.url})
        make(store, transitions.abort, rollout)
        living.wait(taken=2)
        progress = wait_for(lambda: read_progress(store, MODEL, url), lambda each: bool(each and each.last_error))
    assert progress is not None
    assert progress.failing_since is not None
    assert "ConnectError" in progress.last_error


def test_the_path_of_a_url_is_shown_to_nobody(store: StateStore, caplog: pytest.LogCaptureFixture) -> None:
    has_stable(store)
    with Receiver() as dead:
        shown, url = "/".join(dead.url.split("/")[:3]) + "/…", f"{dead.url}/hush"
    make(store, transitions.set_policy, RefreshPolicy(webhooks=(Webhook(url),)))
    reader = Reader(store, MODEL, catalog=None)
    with delivering(store):
        rollout_to(store, {"url": url, "secret_env": "WEBHOOK_SECRET_ANN"})
        found = wait_for(reader.receivers, lambda each: len(each) == 2 and all(one.last_error for one in each))
    assert [each.receiver for each in found] == [shown, f"{shown} (WEBHOOK_SECRET_ANN)"]
    overview = reader.overview()
    assert overview.policy["webhooks"] == [{"url": shown}]
    assert overview.rollouts[0].rollout.spec["webhooks"] == [{"url": shown, "secret_env": "WEBHOOK_SECRET_ANN"}]
    assert b"hush" not in msgspec.json.encode(overview)
    assert f"{shown} did not take event" in caplog.text
    assert "hush" not in "".join(each.getMessage() for each in caplog.records if each.name.startswith("rankhouse"))


def test_an_event_is_given_up_after_its_time_and_the_next_one_comes(store: StateStore) -> None:
    has_stable(store)
    with Receiver(500) as receiver, delivering(store, backoff=Backoff(0.01, 0.01, give_up_seconds=0.0)):
        rollout = rollout_to(store, {"url": receiver.url})
        make(store, transitions.abort, rollout)
        receiver.wait(taken=1)
        progress = wait_for(
            lambda: read_progress(store, MODEL, receiver.url), lambda each: bool(each and each.number == 2)
        )
    assert [event["kind"] for event in receiver.taken] == ["rolled_back"]
    assert progress is not None
    assert progress.num_given_up == 1


def test_who_starts_again_goes_on_after_what_was_taken(store: StateStore) -> None:
    has_stable(store)
    with Receiver() as receiver:
        rollout = rollout_to(store, {"url": receiver.url})
        with delivering(store):
            receiver.wait(taken=1)
            wait_for(lambda: read_progress(store, MODEL, receiver.url), lambda each: bool(each and each.number == 1))
        make(store, transitions.abort, rollout)
        with delivering(store):
            receiver.wait(taken=2)
    assert [event["kind"] for event in receiver.taken] == ["started", "rolled_back"]


def test_a_crash_before_the_note_sends_the_event_again_and_loses_none(store: StateStore) -> None:
    has_stable(store)
    with Receiver() as receiver:
        rollout = rollout_to(store, {"url": receiver.url})
        make(store, transitions.abort, rollout)
        # What a process leaves that died after the first event was taken, and before it could say so.
        write_progress(store, MODEL, Progress(receiver.url, 0))
        with delivering(store):
            receiver.wait(taken=2)
    assert [event["number"] for event in receiver.taken] == [1, 2]


def test_a_killed_process_loses_no_event_between_the_commit_and_the_webhook(store: StateStore, tmp_path: Path) -> None:
    """Conductors are killed while the receiver refuses: the transition is committed, and its webhook is not taken."""
    has_stable(store)
    command = [sys.executable, "-m", "tests.serving.admin.conducting", f"sqlite://{tmp_path}/state.db"]
    with Receiver(*[500] * 1000) as receiver:
        rollout = rollout_to(store, {"url": receiver.url})
        for number in range(2):
            process = subprocess.Popen([*command, f"replica-{number}"], stdout=subprocess.PIPE)
            receiver.wait(calls=receiver.num_calls + 1)
            if number == 0:
                make(store, transitions.abort, rollout)
            process.kill()
            process.communicate()
        assert receiver.taken == []
        receiver.statuses.clear()
        process = subprocess.Popen([*command, "replica-2"], stdout=subprocess.PIPE)
        receiver.wait(taken=2)
        process.terminate()
        process.communicate()
    assert [event["kind"] for event in receiver.taken] == ["started", "rolled_back"]


def test_a_subscription_may_name_its_own_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_SECRET_ANN", "own")
    monkeypatch.setenv("AWS_SECRET", "theirs")
    assert Target("http://a/", "WEBHOOK_SECRET_ANN").secret() == b"own"
    assert Target("http://a/", "WEBHOOK_SECRET_BOB").secret() is None
    assert Target("http://a/", "AWS_SECRET").secret() is None


def test_a_new_receiver_begins_with_the_event_that_names_it(store: StateStore) -> None:
    has_stable(store)
    make(store, transitions.set_holdout, 1.0)
    rollout_to(store, {"url": "http://127.0.0.1:9/"})
    assert first_number(store, MODEL, Target("http://127.0.0.1:9/")) == 2
    assert first_number(store, MODEL, Target("")) == 3


def test_the_signature_covers_time_and_body() -> None:
    one = signature(b"secret", b"{}", 1)
    assert one.startswith("t=1,v1=")
    assert len({one, signature(b"secret", b"{}", 2), signature(b"secret", b"[]", 1), signature(b"x", b"{}", 1)}) == 4


def an_event() -> Event:
    return Event(7, 1.0, "conductor", MODEL, "drifted", None, V2, "", "", "scores moved")


def test_a_command_finds_the_event_on_its_standard_input(tmp_path: Path) -> None:
    script = f"import sys; open({str(tmp_path / 'got')!r}, 'w').write(sys.stdin.read())"
    asyncio.run(CommandReceiver([sys.executable, "-c", script]).deliver(an_event()))
    assert json.loads((tmp_path / "got").read_text())["reason"] == "scores moved"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([sys.executable, "-c", "print('no room'); raise SystemExit(3)"], "status 3: no room"),
        (["/nowhere/retrain"], "No such file"),
    ],
)
def test_a_command_that_fails_has_not_taken_the_event(argv: list[str], message: str) -> None:
    with pytest.raises(DeliveryError, match=message):
        asyncio.run(CommandReceiver(argv).deliver(an_event()))


def test_of_much_output_only_the_end_is_kept() -> None:
    script = "for _ in range(20): print('x' * 999_999)\nprint('no room'); raise SystemExit(3)"
    tracemalloc.start()
    try:
        with pytest.raises(DeliveryError, match=r"status 3: x+\nno room$"):
            asyncio.run(CommandReceiver([sys.executable, "-c", script]).deliver(an_event()))
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("hosts", [("127.0.0.1",), ("a.example.com", "*.0.0.1"), ()])
def test_a_host_that_is_allowed_is_posted_to(hosts: tuple[str, ...]) -> None:
    with Receiver() as receiver:
        post(receiver.url, hosts)
        assert receiver.num_calls == 1


@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        ("127.0.0.1", ("a.example.com",)),
        ("127.0.0.1", ("27.0.0.1", "*.27.0.0.1")),
        ("a.example.com", ("*.a.example.com", "example.com")),
        ("a.example.com.evil.org", ("*.example.com",)),
    ],
)
def test_a_host_that_is_not_allowed_is_not_called(host: str, hosts: tuple[str, ...]) -> None:
    with Receiver() as receiver, pytest.raises(DeliveryError, match=f"{host} is none of the hosts"):
        post(f"http://{host}:{receiver.port}/", hosts)
    assert receiver.num_calls == 0


def post(url: str, hosts: tuple[str, ...]) -> None:
    async def deliver() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            await UrlReceiver(url, client, secret=None, hosts=hosts).deliver(an_event())

    asyncio.run(deliver())


def test_waits_grow_to_a_bound() -> None:
    backoff = Backoff(first_seconds=1.0, longest_seconds=10.0)
    assert [backoff.wait(number) for number in (1, 2, 3, 4, 5, 1000)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


def test_progress_is_found_again_by_another_process(store: StateStore, tmp_path: Path) -> None:
    write_progress(store, MODEL, Progress("http://a/", 5))
    other = open_state_store(f"sqlite://{tmp_path}/state.db", timeout_seconds=60.0)
    assert read_progress(other, MODEL, "http://a/") == Progress("http://a/", 5)
    assert read_progress(other, MODEL, "http://b/") is None
    other.close()


def wait_for(read: Callable[[], Any], is_right: Callable[[Any], bool]) -> Any:
    """Reads until it is right, for a minute at most."""
    end = time.monotonic() + 300.0
    while not is_right(value := read()):
        assert time.monotonic() < end, value
        time.sleep(0.01)
    return value
