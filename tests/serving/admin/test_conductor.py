"""Rounds of a conductor over a real store, at times that the test chooses; and a whole one in an event loop."""

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from rankhouse.serving.admin.conductor import Conductor
from rankhouse.serving.admin.judging import Point, read_course, read_findings, thinned
from rankhouse.serving.admin.traffic import read_traffic
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import RefreshPolicy, Rollout
from rankhouse.serving.control.refresh_policy import parse_policy
from rankhouse.serving.control.rollout_spec import parse_rollout
from rankhouse.serving.control.state_store import StateStore, change_state, summary_key
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import NoSuchModelStateError
from tests.serving.admin.conducting import OPTIONS, conducting
from tests.serving.admin.receivers import Receiver
from tests.serving.admin.world import MODEL, SPEC, V1, V2, V3, has_stable, publish, reports

JUDGED = {
    "steps": [{"weight": 5, "analysis": {"max": "1h"}}, {"weight": 50, "analysis": {"max": "1h"}}, {"weight": 100}],
    "analysis": {"min_requests": 100, "metrics": [{"name": "error_rate", "max_increase": 0.02}]},
}


def conductor(store: StateStore, replica: str = "one") -> Conductor:
    return Conductor(store, MODEL, replica=replica, options=OPTIONS)


def rollout_of(store: StateStore, **spec: Any) -> str:
    now = time.time()
    wanted = parse_rollout(SPEC | spec)
    change_state(store, MODEL, lambda state: transitions.start_rollout(state, wanted, actor="ann", now=now))
    return store.read(MODEL).state.rollouts[-1].id


def only(store: StateStore) -> Rollout:
    return store.read(MODEL).state.rollouts[0]


def kinds(store: StateStore) -> list[str]:
    return [event.kind for event in reversed(store.history(MODEL))]


def test_a_rollout_goes_through_its_steps_by_time(store: StateStore) -> None:
    has_stable(store)
    reports(store, "one", "two")
    rollout_of(store, steps=[{"weight": 5, "pause": "10m"}, {"weight": 30, "pause": "10m"}, {"weight": 100}])
    conducts, now = conductor(store), time.time()
    assert conducts.round(now)
    assert (only(store).status, only(store).weight) == ("progressing", 5)
    conducts.round(now + 599)
    assert only(store).step == 0
    conducts.round(now + 601)
    assert (only(store).step, only(store).weight) == (1, 30)
    conducts.round(now + 1202)
    state = store.read(MODEL).state
    assert (state.stable, state.previous, state.rollouts) == (V2, (V1,), ())
    assert kinds(store) == ["started", "stepped", "stepped", "stepped", "promoted"]
    weights = [point.weights for point in read_traffic(store, MODEL)]
    assert weights == [{V2: 5, V1: 95}, {V2: 30, V1: 70}, {V2: 100}]


def test_a_rollout_waits_for_a_replica_that_lacks_the_candidate(store: StateStore) -> None:
    has_stable(store, policy=RefreshPolicy(admit="manual"))
    reports(store, "one")
    reports(store, "two", loaded=(V1,))
    rollout_of(store)
    conductor(store).round(time.time())
    assert only(store).status == "pending"


def test_a_worse_candidate_is_rolled_back_and_an_equal_one_goes_on(store: StateStore) -> None:
    has_stable(store)
    reports(store)
    rollout, now = rollout_of(store, **JUDGED), time.time()
    with conducting(store) as conduct:
        conduct(now)
        publish(store, rollout, stable=5000, candidate=3000)
        conduct(now + 10)
        assert (only(store).step, only(store).status) == (1, "progressing")
        # The first step's observations do not count in the second: at its start there are none.
        conduct(now + 20)
        conduct(now + 21)
        assert only(store).step == 1
        publish(store, rollout, stable=6000, candidate=4000, failures=300)
        conduct(now + 30)
    state = store.read(MODEL).state
    assert (state.stable, state.rollouts) == (V1, ())
    finished = store.finished(MODEL)[0]
    assert finished.status == "rolled_back"
    assert "error_rate" in store.history(MODEL, limit=3)[-1].reason or "error_rate" in str(finished.verdict)
    findings = read_findings(store, MODEL, rollout)
    assert findings is not None
    assert findings.verdicts[V2]["outcome"] == "fail"
    points = read_course(store, MODEL, rollout)
    assert (points[0].step, points[-1].step) == (0, 1)
    assert (points[-1].bands[V2]["error_rate"].low or 0.0) > 0.02


def test_a_long_course_is_thinned_and_keeps_its_ends() -> None:
    points: list[Point] = []
    for second in range(20_000):
        points = thinned(points, Point(float(second), 0, 5.0, {}))
    assert 100 < len(points) <= 240
    assert points[0].at == 0.0
    assert points[-1].at > 19_800
    assert [point.at for point in points] == sorted({point.at for point in points})


def test_a_step_counts_what_another_conductor_saw_at_its_start(store: StateStore, tmp_path: Path) -> None:
    has_stable(store)
    reports(store)
    rollout, now = rollout_of(store, **JUDGED), time.time()
    with conducting(store) as conduct:
        conduct(now)
        publish(store, rollout, stable=5000, candidate=3000, failures=0)
        conduct(now + 10)
        conduct(now + 20)  # The second step's start is kept.
    store.release_lease(f"conductor/{MODEL}", "one")
    other = open_state_store(f"sqlite://{tmp_path}/state.db", timeout_seconds=60.0)
    with conducting(other, "two") as conduct:
        assert conduct(now + 30)
    assert only(store).step == 1
    findings = read_findings(other, MODEL, rollout)
    assert findings is not None
    assert findings.verdicts[V2]["metrics"][0]["n"] == 0
    other.close()


def test_a_summary_that_is_damaged_is_left_out(store: StateStore, caplog: pytest.LogCaptureFixture) -> None:
    has_stable(store)
    reports(store)
    rollout, now = rollout_of(store, **JUDGED), time.time()
    with conducting(store) as conduct:
        conduct(now)
        store.publish_summaries("bad", MODEL, {summary_key(rollout, V2, "candidate"): b"nonsense"})
        conduct(now + 1)
    assert only(store).step == 0
    assert "replica bad is left out" in caplog.text


def test_new_versions_come_in_by_the_policy(store: StateStore) -> None:
    has_stable(store)
    reports(store, "one", "two", loaded=(V1, V2, V3))
    conducts = conductor(store)
    conducts.round(time.time())
    assert store.read(MODEL).state.stable == V3
    assert store.history(MODEL)[0].reason == "all 2 replicas have loaded it"


def test_a_laggard_is_named_when_a_version_comes_in_without_it(store: StateStore) -> None:
    has_stable(store)
    reports(store, "one")
    reports(store, "slow", loaded=(V1,))
    conducts, now = conductor(store), time.time()
    conducts.round(now)
    assert store.read(MODEL).state.stable == V1
    conducts.round(now + 0.6)
    assert store.read(MODEL).state.stable == V2
    assert "without slow" in store.history(MODEL)[0].reason


def test_a_policy_with_a_rollout_starts_one_for_each_version(store: StateStore) -> None:
    policy = parse_policy({"admit": "rollout", "rollout": {"steps": [{"weight": 5, "pause": "1m"}, {"weight": 100}]}})
    has_stable(store, policy=policy)
    reports(store)
    conducts, now = conductor(store), time.time()
    conducts.round(now)
    assert (only(store).candidates, only(store).created_by, only(store).status) == ((V2,), "refresh", "progressing")
    reports(store, loaded=(V1, V2, V3))
    conducts.round(now + 1)
    assert only(store).candidates == (V2,)
    conducts.round(now + 61)
    conducts.round(now + 62)
    assert only(store).candidates == (V3,)
    assert store.read(MODEL).state.stable == V2


def test_only_one_conducts_until_its_lease_ends(store: StateStore) -> None:
    has_stable(store)
    for_long, for_short = (dataclasses.replace(OPTIONS, lease_seconds=seconds) for seconds in (600.0, 0.2))
    one, two = (Conductor(store, MODEL, replica=name, options=for_long) for name in ("one", "two"))
    assert one.round(time.time())
    assert not two.round(time.time())
    store.release_lease(f"conductor/{MODEL}", "one")
    assert Conductor(store, MODEL, replica="one", options=for_short).round(time.time())
    end = time.monotonic() + 300
    while not two.round(time.time()):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert not one.round(time.time())


def test_without_a_state_nothing_is_conducted(store: StateStore) -> None:
    with pytest.raises(NoSuchModelStateError):
        conductor(store).round(time.time())


def test_news_are_not_waited_for(store: StateStore) -> None:
    has_stable(store)

    async def conduct() -> None:
        slow = dataclasses.replace(OPTIONS, interval_seconds=3600.0)
        conducts = Conductor(store, MODEL, replica="one", options=slow)
        task = asyncio.create_task(conducts.run())
        while not conducts.is_conducting:
            await asyncio.sleep(0.01)
        reports(store)
        conducts.wake()
        end = time.monotonic() + 300
        while store.read(MODEL).state.stable != V2:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(conduct())


def test_a_value_that_nobody_can_read_does_not_end_the_conductor(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    has_stable(store)
    reports(store)
    store.put_value(f"traffic/{MODEL}", b"nonsense")

    async def conduct() -> None:
        task = asyncio.create_task(conductor(store).run())
        end = time.monotonic() + 300
        while "a round failed" not in caplog.text:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        store.put_value(f"traffic/{MODEL}", b"[]")
        while not read_traffic(store, MODEL):
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(conduct())
    assert store.read(MODEL).state.stable == V2


def test_two_whole_conductors_take_turns_and_every_event_is_told(store: StateStore, tmp_path: Path) -> None:
    """Two run at once; the first is stopped in the middle, and gives its lease back."""
    has_stable(store)
    reports(store)
    stores = [open_state_store(f"sqlite://{tmp_path}/state.db", timeout_seconds=60.0) for _ in range(2)]

    async def conduct(receiver: Receiver) -> None:
        # No lease ends by itself: two that conduct at once, as after a pause of the whole machine, tell things twice.
        for_long = dataclasses.replace(OPTIONS, lease_seconds=600.0)
        conductors = [
            Conductor(each, MODEL, replica=f"replica-{number}", options=for_long) for number, each in enumerate(stores)
        ]
        tasks = [asyncio.create_task(each.run()) for each in conductors]
        hooks = [{"url": receiver.url}]
        steps = [{"weight": 5, "pause": "100ms"}, {"weight": 20, "pause": "manual"}, {"weight": 100}]
        rollout = rollout_of(store, steps=steps, webhooks=hooks)
        await asyncio.to_thread(receiver.wait_for, "stepped", 2)
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        change_state(store, MODEL, lambda state: transitions.resume(state, rollout, actor="ann", now=time.time()))
        await asyncio.to_thread(receiver.wait_for, "promoted", 1)
        tasks[1].cancel()
        await asyncio.gather(tasks[1], return_exceptions=True)

    with Receiver() as receiver:
        asyncio.run(conduct(receiver))
    for each in stores:
        each.close()
    # Who is stopped after an event was taken and before it could note that leaves it to be sent again.
    told = {event["number"]: event["kind"] for event in receiver.taken}
    assert list(told.values()) == kinds(store)
    assert [event["number"] for event in receiver.taken] == sorted(event["number"] for event in receiver.taken)
    assert store.read(MODEL).state.stable == V2
