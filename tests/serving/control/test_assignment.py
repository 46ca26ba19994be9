"""Who gets which version: stable in every process, balanced, disjoint, and growing only adds."""

import hashlib
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from rankhouse.serving.control.assignment import RoutingTable, bucket_of, buckets_of_percent, with_weight
from rankhouse.serving.control.model_state import NUM_BUCKETS, ModelState
from rankhouse.serving.errors import (
    AdmissionError,
    NoVersionError,
    TransitionError,
    UnknownVersionError,
    VersionNotThereYetError,
)
from tests.serving.control.states_of_models import begun, name, spec, stable_at, started

KEYS = ["", "user-1", "ключ", "\udcff", "a\0b", "x" * 10_000]
PERCENT = st.integers(0, 4000).map(lambda hundredths: hundredths / 100)


def table(state: ModelState, *numbers: int) -> RoutingTable:
    return RoutingTable.of(state, [name(number) for number in numbers], revision=1)


def weighted(state: ModelState, rollout_id: str, weight: float) -> ModelState:
    """The state with another weight of a rollout's."""
    rollouts = []
    for rollout in state.rollouts:
        arms = with_weight(state, rollout, weight) if rollout.id == rollout_id else rollout.arms
        rollouts.append(type(rollout)(**{f: getattr(rollout, f) for f in rollout.__struct_fields__} | {"arms": arms}))
    return type(state)(**{f: getattr(state, f) for f in state.__struct_fields__} | {"rollouts": tuple(rollouts)})


def test_the_bucket_is_what_the_documentation_says() -> None:
    digest = hashlib.blake2b(b"salt\0user-1").digest()
    assert bucket_of("salt", "user-1") == int.from_bytes(digest[:8], "big") % 10_000
    assert bucket_of("salt", "user-1") == 7657


def test_another_process_finds_the_same_buckets() -> None:
    code = "import sys, json; from rankhouse.serving.control.assignment import bucket_of;"
    code += "print([bucket_of('s', f'user-{n}') for n in range(1000)])"
    environment = {"PYTHONHASHSEED": "77", "PATH": ""}
    printed = subprocess.run((sys.executable, "-c", code), check=True, capture_output=True, text=True, env=environment)
    assert printed.stdout.strip() == str([bucket_of("s", f"user-{n}") for n in range(1000)])


@pytest.mark.parametrize("key", KEYS)
def test_every_key_has_a_bucket_and_the_table_finds_the_same(key: str) -> None:
    state = begun(stable_at(1), spec(2))
    assert table(state, 1, 2).version_for(key).bucket == bucket_of(state.salt, key)


@pytest.mark.parametrize("salt", ["", "m/r000001", "m/r000002"])
def test_users_are_spread_evenly(salt: str) -> None:
    counts = Counter(bucket_of(salt, f"user-{number}") // 100 for number in range(100_000))
    assert chisquare([counts[cell] for cell in range(100)]).pvalue > 1e-4


def test_buckets_under_two_salts_are_independent() -> None:
    cells = Counter((bucket_of("a", f"u{n}") // 1000, bucket_of("b", f"u{n}") // 1000) for n in range(50_000))
    assert chisquare([cells[x, y] for x in range(10) for y in range(10)]).pvalue > 1e-4


def test_shares_are_what_was_asked_for() -> None:
    routes = table(begun(stable_at(1), spec(2, 3, steps=[{"weight": 20}])), 1, 2, 3)
    versions = Counter(routes.version_for(f"user-{number}").version for number in range(50_000))
    assert chisquare([versions[name(n)] for n in (1, 2, 3)], [30_000, 10_000, 10_000]).pvalue > 1e-4


@given(first=PERCENT, second=PERCENT, third=PERCENT, holdout=st.integers(0, 15))
@settings(max_examples=60, deadline=None)
def test_growing_only_adds_users_and_candidates_are_disjoint(
    first: float, second: float, third: float, holdout: int
) -> None:
    state = begun(stable_at(1), spec(2, 3, steps=[{"weight": 20}], holdout=holdout))
    state = begun(state, spec(4, steps=[{"weight": 40}]))
    before: dict[int, str] = {}
    for weight in sorted([first, second, third]):
        state = weighted(weighted(state, "r000001", weight / 2), "r000002", weight)
        owners = owners_of(state)
        assert len(owners) == sum(buckets_of_percent(arm.weight) for each in state.rollouts for arm in each.arms)
        assert all(bucket < NUM_BUCKETS - holdout * 100 for bucket in owners)
        assert {bucket: owners[bucket] for bucket in before if bucket in owners} == before
        before = owners


@given(weights=st.lists(PERCENT, min_size=2, max_size=6))
@settings(max_examples=60, deadline=None)
def test_shrinking_only_takes_users_away(weights: list[float]) -> None:
    state = begun(stable_at(1), spec(2, steps=[{"weight": 0}]))
    owned: set[int] = set()
    for weight in weights:
        state = weighted(state, "r000001", weight)
        now = set(owners_of(state))
        assert now <= owned or owned <= now
        owned = now


def owners_of(state: ModelState) -> dict[int, str]:
    """Each bucket's candidate; fails where a bucket has two."""
    owners: dict[int, str] = {}
    for rollout in state.rollouts:
        for arm in rollout.arms:
            for each in arm.ranges:
                for bucket in range(each.start, each.stop):
                    assert bucket not in owners
                    owners[bucket] = arm.version
    return owners


def test_a_candidate_grows_around_another() -> None:
    state = begun(begun(stable_at(1), spec(2, steps=[{"weight": 10}])), spec(3, steps=[{"weight": 10}]))
    state = weighted(state, "r000001", 30.0)
    assert [(r.start, r.stop) for r in state.rollouts[0].arms[0].ranges] == [(0, 1000), (2000, 4000)]


def test_more_buckets_than_are_free_are_refused() -> None:
    state = begun(begun(stable_at(1), spec(2, steps=[{"weight": 60}])), spec(3, steps=[{"weight": 30}]))
    with pytest.raises(TransitionError, match=r"r000002 cannot give 000003-\w+ 50 % .* other rollouts have 60 %"):
        with_weight(state, state.rollouts[1], 50.0)


def test_all_users_but_the_holdout_at_100_percent() -> None:
    routes = table(begun(stable_at(1), spec(2, steps=[{"weight": 100}], holdout=2)), 1, 2)
    for number in range(5000):
        route = routes.version_for(f"user-{number}")
        assert (route.version == name(2)) == (route.bucket < 9800)
        assert route.arm == ("candidate" if route.bucket < 9800 else "stable")


def test_a_pending_rollout_has_no_users_and_no_shadow() -> None:
    state = stable_at(1)
    routes = table(started(state, spec(2, steps=[{"weight": 100}], shadow=100)), 1, 2)
    assert routes.rollouts == ()
    assert {routes.version_for(f"u{n}").version for n in range(100)} == {name(1)}
    assert routes.version_for("u").shadows == ()


def test_who_lacks_the_candidate_answers_with_stable_and_says_so() -> None:
    routes = table(begun(stable_at(1), spec(2, steps=[{"weight": 100}])), 1)
    route = routes.version_for("u")
    assert (route.version, route.arm, route.rollout, route.is_fallback) == (name(1), "stable", "", True)


def test_who_lacks_the_stable_version_answers_with_an_earlier_one() -> None:
    state = stable_at(5, previous=(name(4), name(3)))
    route = table(state, 3, 4).version_for("u")
    assert (route.version, route.is_fallback) == (name(4), True)
    assert not table(state, 3, 5).version_for("u").is_fallback


@pytest.mark.parametrize("loaded", [(), (7,)])
def test_nothing_answers_that_may_not(loaded: tuple[int, ...]) -> None:
    with pytest.raises(NoVersionError, match="no version is loaded that may answer"):
        table(stable_at(5), *loaded).version_for("u")


def test_a_request_may_name_a_loaded_version() -> None:
    routes = table(stable_at(5), 5, 7)
    route = routes.version_for("u", override=name(7))
    assert (route.version, route.arm, route.shadows) == (name(7), "override", ())
    with pytest.raises(UnknownVersionError, match=r"'000006-\w+' is not loaded here; loaded are 000005-\w+, 000007-"):
        routes.version_for("u", override=name(6))
    with pytest.raises(VersionNotThereYetError):
        routes.version_for("u", override=name(7), min_version=8)


@pytest.mark.parametrize("asked", [2, "2", name(2)])
def test_min_version_is_answered_by_what_takes_traffic(asked: str | int) -> None:
    state = begun(stable_at(1), spec(2, steps=[{"weight": 10}]))
    routes = table(state, 1, 2)
    arms = Counter(
        (route.version, route.arm) for route in (routes.version_for(f"u{n}", min_version=asked) for n in range(500))
    )
    assert set(arms) == {(name(2), "candidate"), (name(2), "override")}
    assert routes.version_for("u", min_version=1).arm in ("stable", "candidate")


@pytest.mark.parametrize("weight", [0, 100])
def test_min_version_waits_for_a_version_that_takes_traffic(weight: int) -> None:
    state = begun(stable_at(1), spec(3, steps=[{"weight": weight}]))
    with pytest.raises(VersionNotThereYetError, match="no version from 4 on takes traffic here yet"):
        table(state, 1, 3, 4).version_for("u", min_version=4)
    if weight == 0:
        with pytest.raises(VersionNotThereYetError):
            table(state, 1, 3).version_for("u", min_version=3)


def test_a_min_version_that_is_none_is_refused() -> None:
    with pytest.raises(AdmissionError, match="'new' is not a version's name"):
        table(stable_at(1), 1).version_for("u", min_version="new")


def test_shadows_are_drawn_by_the_request_from_the_stable_arm() -> None:
    state = begun(stable_at(1), spec(2, 3, steps=[{"weight": 10}], shadow=20))
    routes = table(state, 1, 2, 3)
    found = [routes.version_for("one user", request_id=f"r{n}") for n in range(20_000)]
    if found[0].arm == "candidate":
        raise AssertionError("take another user")
    assert found == [routes.version_for("one user", request_id=f"r{n}") for n in range(20_000)]
    for version in (name(2), name(3)):
        num_drawn = sum(version in route.shadows for route in found)
        assert chisquare([num_drawn, 20_000 - num_drawn], [4000, 16_000]).pvalue > 1e-4
    both = sum(len(route.shadows) == 2 for route in found)
    assert chisquare([both, 20_000 - both], [800, 19_200]).pvalue > 1e-4
    assert routes.rollout_of == {name(2): "r000001", name(3): "r000001"}


def test_candidates_have_no_shadows() -> None:
    routes = table(begun(stable_at(1), spec(2, steps=[{"weight": 100}], shadow=100)), 1, 2)
    assert {routes.version_for(f"u{n}").shadows for n in range(100)} == {()}


def test_a_shadow_needs_the_candidate_loaded() -> None:
    routes = table(begun(stable_at(1), spec(2, steps=[{"weight": 0}], shadow=100)), 1)
    assert routes.version_for("u").shadows == ()
