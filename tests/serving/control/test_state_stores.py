"""Both stores keep the same promises."""

import itertools
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import AnsweredRequest, ApiKey, Change, ModelState, ReplicaReport
from rankhouse.serving.control.sqlite_state_store import SqliteStateStore
from rankhouse.serving.control.state_store import MAX_FINISHED, StateStore, change_state, summary_key
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import ConflictError, NoSuchModelStateError, StateStoreError, TransitionError
from tests.embedding_cache.redis_tier.servers import until
from tests.serving.control.states_of_models import begun, name, spec, stable_at, started

Opened = Callable[..., StateStore]


def pause(state: ModelState) -> Change:
    return transitions.pause(state, "r000001", actor="ann", now=20.0, reason="lunch")


def answer(request_id: str, scores: bytes = bytes(8)) -> AnsweredRequest:
    return AnsweredRequest(request_id, "m", ("r000001",), name(2), "candidate", 1.0, scores)


def test_a_new_store_is_empty(store: StateStore) -> None:
    assert store.revision("m") == 0
    assert store.models() == []
    assert store.history("m") == []
    assert store.finished("m") == []
    assert store.replicas("m") == []
    assert store.summaries("m") == []
    assert store.keys() == []
    assert store.get_value("cursor") is None
    assert store.recall_answer("m", "x") is None


def test_a_model_without_a_state_is_named(store: StateStore) -> None:
    with pytest.raises(NoSuchModelStateError, match="no state of model 'm'"):
        store.read("m")
    with pytest.raises(NoSuchModelStateError, match="no state of model 'm'"):
        store.commit(stable_at(1), expected=0, events=())


def test_create_keeps_what_is_there(store: StateStore) -> None:
    first = store.create(stable_at(1))
    again = store.create(stable_at(7))
    assert again == first
    assert again.state.stable == name(1)
    assert store.revision("m") == again.revision == 1
    assert store.models() == ["m"]


def test_a_state_comes_back_as_it_was(store: StateStore) -> None:
    state = begun(stable_at(1, quarantined={name(9): "größer"}), spec(2, 3, shadow=10, holdout=1))
    assert store.create(state).state == state
    assert store.read("m").state == state


def test_commit_writes_state_and_numbered_history(store: StateStore) -> None:
    store.create(stable_at(1))
    change = transitions.start_rollout(stable_at(1), spec(2), actor="ann", now=10.0, reason="new day")
    assert store.commit(change.state, expected=1, events=change.events) == 2
    assert change_state(store, "m", pause).revision == 3
    assert [event.kind for event in store.history("m")] == ["paused", "started"]
    assert [event.number for event in store.history("m")] == [2, 1]
    [oldest] = store.history("m", before=2)
    assert (oldest.actor, oldest.reason, oldest.rollout, oldest.version) == ("ann", "new day", "r000001", name(2))
    assert [event.number for event in store.history("m", after=0)] == [1, 2]
    assert [event.number for event in store.history("m", after=1)] == [2]
    assert [event.number for event in store.history("m", limit=1)] == [2]


def test_an_event_that_happens_twice_stands_twice(store: StateStore) -> None:
    change = transitions.start_rollout(stable_at(1), spec(2), actor="ann", now=10.0)
    store.create(stable_at(1), change.events * 2)
    store.commit(change.state, expected=1, events=change.events * 2)
    assert [event.number for event in store.history("m")] == [4, 3, 2, 1]


def test_the_second_of_two_writers_is_refused(store: StateStore) -> None:
    store.create(stable_at(1))
    change = transitions.start_rollout(stable_at(1), spec(2), actor="ann", now=10.0)
    store.commit(change.state, expected=1, events=change.events)
    with pytest.raises(ConflictError, match="revision 2, not 1"):
        store.commit(stable_at(5), expected=1, events=change.events)
    assert store.read("m").state == change.state
    assert len(store.history("m")) == 1


def test_writers_in_many_threads_lose_no_change(store: StateStore, store_url: str, opened: Opened) -> None:
    store.create(stable_at(1))
    stores = [store, opened(store_url, timeout_seconds=60.0)]

    def work(number: int) -> None:
        for turn in range(10):
            command = partial(
                transitions.quarantine, version=name(100 * number + turn + 2), actor="w", now=1.0, reason="r"
            )
            change_state(stores[number % 2], "m", command, wait_seconds=60.0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = store.read("m")
    assert len(stored.state.quarantined) == 40
    assert stored.revision == 41
    assert [event.number for event in store.history("m")] == list(range(40, 0, -1))


def test_change_state_tells_what_the_command_refuses(store: StateStore) -> None:
    store.create(started(stable_at(1), spec(2)))
    change_state(store, "m", pause)
    with pytest.raises(TransitionError, match="r000001 is paused"):
        change_state(store, "m", pause)
    assert store.revision("m") == 2


def test_change_state_gives_up_where_others_are_always_faster(store: StateStore) -> None:
    store.create(stable_at(1))
    numbers = itertools.count(2)

    def overtaken(state: ModelState) -> Change:
        change = transitions.quarantine(state, name(next(numbers)), actor="b", now=1.0, reason="r")
        store.commit(change.state, expected=store.revision("m"), events=change.events)
        return change

    with pytest.raises(ConflictError):
        change_state(store, "m", overtaken, wait_seconds=0.05)


def test_finished_rollouts_go_into_the_archive(store: StateStore) -> None:
    store.create(begun(stable_at(1), spec(2)))
    change_state(store, "m", lambda state: transitions.abort(state, "r000001", actor="ann", now=20.0, reason="bad"))
    [rollout] = store.finished("m")
    assert (rollout.id, rollout.status, rollout.finished_at) == ("r000001", "rolled_back", 20.0)
    assert store.read("m").state.rollouts == ()
    assert store.finished("m", limit=0) == []


def test_the_archive_and_the_history_are_bounded(store: StateStore) -> None:
    state = begun(stable_at(1), spec(2))
    [rollout] = state.rollouts
    many = [type(rollout)(**{**_fields(rollout), "id": f"r{number:06d}"}) for number in range(MAX_FINISHED + 5)]
    store.create(state)
    store.commit(state, expected=1, events=(), finished=many)
    kept = store.finished("m", limit=10_000)
    assert [rollout.id for rollout in kept] == [rollout.id for rollout in many[:4:-1]]


def _fields(rollout: object) -> dict[str, object]:
    return {field: getattr(rollout, field) for field in rollout.__struct_fields__}  # type: ignore[attr-defined]


def test_replicas_live_as_long_as_they_report(store: StateStore) -> None:
    store.report(ReplicaReport("b", "m", 1.0, loaded=(name(1),)), ttl_seconds=60.0)
    store.report(ReplicaReport("a", "m", 1.0), ttl_seconds=60.0)
    store.report(ReplicaReport("a", "m", 2.0, is_draining=True), ttl_seconds=60.0)
    store.report(ReplicaReport("c", "other", 1.0), ttl_seconds=60.0)
    assert [(each.replica, each.at) for each in store.replicas("m")] == [("a", 2.0), ("b", 1.0)]
    store.retire("m", "a")
    store.report(ReplicaReport("b", "m", 3.0), ttl_seconds=0.001)
    until("b is gone", lambda: store.replicas("m") == [])
    assert [each.replica for each in store.replicas("other")] == ["c"]


def test_reports_of_other_releases_blind_nobody(store: StateStore, caplog: pytest.LogCaptureFixture) -> None:
    class LaterReport(ReplicaReport, frozen=True):
        mood: str = "fine"

    store.report(ReplicaReport("a", "m", 1.0), ttl_seconds=60.0)
    store.report(LaterReport("b", "m", 1.0, loaded=(name(1),)), ttl_seconds=60.0)
    store.report(ReplicaReport("c", "m", "noon"), ttl_seconds=60.0)  # type: ignore[arg-type]
    assert store.replicas("m") == [ReplicaReport("a", "m", 1.0), ReplicaReport("b", "m", 1.0, loaded=(name(1),))]
    assert "Expected `float`, got `str` - at `$.at`" in caplog.text
    store.report(ReplicaReport("c", "m", "one"), ttl_seconds=60.0)  # type: ignore[arg-type]
    assert len(store.replicas("m")) == 2
    assert caplog.text.count("is passed over") == 1  # It comes each second.


def test_a_lease_has_one_holder(store: StateStore) -> None:
    assert store.take_lease("conductor", "a", ttl_seconds=60.0)
    assert store.take_lease("conductor", "a", ttl_seconds=60.0)
    assert not store.take_lease("conductor", "b", ttl_seconds=60.0)
    assert store.take_lease("another", "b", ttl_seconds=60.0)
    store.release_lease("conductor", "b")
    assert not store.take_lease("conductor", "b", ttl_seconds=60.0)
    store.release_lease("conductor", "a")
    assert store.take_lease("conductor", "b", ttl_seconds=0.001)
    until("the lease ended", lambda: store.take_lease("conductor", "a", ttl_seconds=60.0))


def test_a_clock_that_was_set_back_keeps_no_lease_and_no_replica_alive(tmp_path: Path) -> None:
    hours = 3600.0
    before = SqliteStateStore(tmp_path / "state.db", clock=lambda: 10 * hours)
    after = SqliteStateStore(tmp_path / "state.db", clock=lambda: 9 * hours)
    assert before.take_lease("conductor", "dead", ttl_seconds=3.0)
    before.report(ReplicaReport("dead", "m", 0.0), ttl_seconds=5.0)
    assert after.take_lease("conductor", "alive", ttl_seconds=3.0)
    assert not after.take_lease("conductor", "another", ttl_seconds=3.0)
    after.report(ReplicaReport("alive", "m", 0.0), ttl_seconds=5.0)
    assert [each.replica for each in after.replicas("m")] == ["alive"]
    before.close()
    after.close()


def test_a_holder_that_lost_its_lease_cannot_overwrite(store: StateStore) -> None:
    """The fence is the compare-and-set: what was decided on an older state is refused, whoever decided it."""
    stored = store.create(begun(stable_at(1), spec(2)))
    assert store.take_lease("conductor", "slow", ttl_seconds=0.001)
    late = transitions.promote(stored.state, "r000001", actor="slow", now=30.0)
    until("another has the lease", lambda: store.take_lease("conductor", "quick", ttl_seconds=60.0))
    change_state(store, "m", lambda state: transitions.abort(state, "r000001", actor="quick", now=20.0))
    with pytest.raises(ConflictError):
        store.commit(late.state, expected=stored.revision, events=late.events, finished=late.finished)
    assert store.read("m").state.stable == name(1)
    assert [event.kind for event in store.history("m")][-1] == "rolled_back"


def test_summaries_replace_what_a_replica_published(store: StateStore) -> None:
    key, other = summary_key("r000001", name(2), "candidate"), summary_key("", name(1), "stable")
    store.publish_summaries("a", "m", {key: b"1", other: b"\x00\xff"})
    store.publish_summaries("b", "m", {key: b"2"})
    store.publish_summaries("a", "m", {key: b"3"})
    found = store.summaries("m")
    assert [(each.replica, each.key, each.content) for each in found] == [("a", key, b"3"), ("b", key, b"2")]
    assert all(each.at > 1e9 for each in found)
    assert store.summaries("other") == []


def test_summaries_of_finished_rollouts_are_gone_and_stay_gone(store: StateStore) -> None:
    ended, kept = summary_key("r000001", name(2), "candidate"), summary_key("r0000010", name(3), "shadow")
    store.create(begun(stable_at(1), spec(2)))
    store.publish_summaries("a", "m", {ended: b"1", kept: b"2"})
    change_state(store, "m", lambda state: transitions.abort(state, "r000001", actor="ann", now=20.0))
    assert [each.key for each in store.summaries("m")] == [kept]
    store.publish_summaries("b", "m", {ended: b"late", kept: b"3"})
    assert [(each.replica, each.key) for each in store.summaries("m")] == [("a", kept), ("b", kept)]


def test_answers_are_recalled_until_their_time_is_over(store: StateStore) -> None:
    store.remember_answers([answer("x"), answer("y")], ttl_seconds=60.0)
    store.remember_answers([answer("x", bytes(4))], ttl_seconds=60.0)
    assert store.recall_answer("m", "x") == answer("x", bytes(4))
    assert store.recall_answer("m", "y") == answer("y")
    store.remember_answers([answer("y")], ttl_seconds=0.001)
    until("y is forgotten", lambda: store.recall_answer("m", "y") is None)
    store.remember_answers([], ttl_seconds=60.0)
    assert store.recall_answer("m", "x") is not None


def test_one_request_id_may_come_to_several_models(store: StateStore) -> None:
    other = AnsweredRequest("x", "other", (), name(7), "stable", 2.0)
    store.remember_answers([answer("x"), other], ttl_seconds=60.0)
    assert (store.recall_answer("m", "x"), store.recall_answer("other", "x")) == (answer("x"), other)
    assert store.claim_feedback("m", [("x", "click")], ttl_seconds=60.0) == [True]
    assert store.claim_feedback("other", [("x", "click")], ttl_seconds=60.0) == [True]
    assert store.claim_feedback("m", [("x", "click")], ttl_seconds=60.0) == [False]


def test_the_oldest_answers_and_claims_make_way(store: StateStore, store_url: str) -> None:
    small = type(store)(_place(store_url), max_answers=3, timeout_seconds=60.0)  # type: ignore[call-arg]
    for number in range(10):
        small.remember_answers([answer(str(number))], ttl_seconds=60.0 + number)
        small.claim_feedback("m", [(str(number), "click")], ttl_seconds=60.0 + number)
    assert [number for number in range(10) if small.recall_answer("m", str(number))] == [7, 8, 9]
    assert small.claim_feedback("m", [("9", "click"), ("1", "click")], ttl_seconds=60.0) == [False, True]
    small.close()


def _place(url: str) -> object:
    return Path(urlsplit(url).path) if url.startswith("sqlite") else url


def test_feedback_counts_once(store: StateStore) -> None:
    claims = [("x", "click"), ("y", "click"), ("x", "click"), ("x", "conversion")]
    assert store.claim_feedback("m", claims, ttl_seconds=60.0) == [True, True, False, True]
    assert store.claim_feedback("m", claims, ttl_seconds=60.0) == [False] * 4
    assert store.claim_feedback("m", [("z", "click")], ttl_seconds=0.001) == [True]
    until("the claim ended", lambda: store.claim_feedback("m", [("z", "click")], ttl_seconds=60.0) == [True])
    assert store.claim_feedback("m", [], ttl_seconds=60.0) == []


def test_keys_and_values(store: StateStore, store_url: str, opened: Opened) -> None:
    ann, bob = ApiKey("ann", "admin", "ab" * 32, 1.0, "setup"), ApiKey("bob", "viewer", "cd" * 32, 2.0, "ann")
    store.put_key(bob)
    store.put_key(ann)
    store.put_value("cursor", b"\x00\xff")
    other = opened(store_url)
    assert other.keys() == [ann, bob]
    assert other.get_value("cursor") == b"\x00\xff"
    assert other.remove_key("bob")
    assert not other.remove_key("bob")
    assert store.keys() == [ann]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://x/y", "begins with 'mysql'"),
        ("state.db", "begins with 'state.db'"),
        ("sqlite://host/x.db", "expected sqlite:///absolute"),
        ("sqlite:///", "expected sqlite:///absolute"),
        ("redis://user:secret@host/0", "holds a password"),
        ("redis://host/0?pasword_env=X", "did you mean password_env"),
        ("redis://host/zero", "expected redis://host:port/0"),
        ("redis:///0", "names no host"),
        ("redis://host/0?ca_file=x", "begins with rediss://"),
        ("rediss://host/0?ca_file=/none/ca.pem", "does not exist"),
        ("redis://host/0?password_env=NO_SUCH_VARIABLE", "NO_SUCH_VARIABLE"),
    ],
)
def test_urls_that_do_not_work_say_why(url: str, said: str) -> None:
    with pytest.raises(StateStoreError, match=said) as caught:
        open_state_store(url)
    assert "secret" not in str(caught.value)
