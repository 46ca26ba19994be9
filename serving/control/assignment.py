"""Which version answers a request: buckets of users, and the table that a replica routes by.

A user's bucket depends on the salt and the key alone, so every replica, protocol and process finds the same one without
asking anybody. Candidates own disjoint ranges of buckets; one that grows keeps what it has and takes the lowest free
ones, so growth only adds users. The last buckets are held out: no candidate gets them before it is promoted.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rankhouse.serving.control.model_state import NUM_BUCKETS, Arm, BucketRange, ModelState, Rollout, number_of
from rankhouse.serving.errors import NoVersionError, TransitionError, UnknownVersionError, VersionNotThereYetError

_DRAW_BYTES = 8
_NUM_DRAWS = 8  # BLAKE2b gives 64 bytes.


def bucket_of(salt: str, key: str) -> int:
    """The bucket of a key: the first 8 bytes of BLAKE2b(salt, NUL, key), big endian, modulo 10,000."""
    digest = hashlib.blake2b(f"{salt}\0{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % NUM_BUCKETS


def buckets_of_percent(percent: float) -> int:
    """How many buckets a share is."""
    return round(percent * NUM_BUCKETS / 100)


def holdout_percent(state: ModelState) -> float:
    """The share that no candidate gets now: the model's holdout, or a larger one that an active rollout asks for."""
    return max((state.holdout_percent, *(rollout.spec.holdout for rollout in state.rollouts)))


def with_weight(state: ModelState, rollout: Rollout, weight: float) -> tuple[Arm, ...]:
    """A rollout's candidates with other shares of the buckets.

    Args:
        state: The model's state; its other rollouts keep their buckets.
        rollout: One of its active rollouts.
        weight: Percent for each candidate; 100 is all but the holdout.

    Raises:
        TransitionError: There are not that many free buckets.
    """
    end = NUM_BUCKETS - buckets_of_percent(holdout_percent(state))
    others = [arm for other in state.rollouts if other.id != rollout.id for arm in other.arms]
    # All candidates give back first what they lose: what one loses, another may take in the same step.
    wanted = min(buckets_of_percent(weight), end)
    kept = [_buckets(arm.ranges, end)[:wanted] for arm in rollout.arms]
    taken = {bucket for arm in others for bucket in _buckets(arm.ranges, NUM_BUCKETS)} | {b for k in kept for b in k}
    free = iter([bucket for bucket in range(end) if bucket not in taken])
    arms = []
    for arm, buckets in zip(rollout.arms, kept, strict=True):
        grown = buckets + [bucket for _, bucket in zip(range(wanted - len(buckets)), free, strict=False)]
        if len(grown) < wanted:
            raise TransitionError(
                f"rollout {rollout.id} cannot give {arm.version} {weight:g} % of the buckets: "
                f"{holdout_percent(state):g} % are held out, "
                f"other rollouts have {_percent(others):g} %; end one of them, or give less weight"
            )
        arms.append(Arm(arm.version, _ranges(sorted(grown)), wanted * 100 / NUM_BUCKETS))
    return tuple(arms)


def _percent(arms: Iterable[Arm]) -> float:
    return round(sum(arm.weight for arm in arms), 2)


def _buckets(ranges: Iterable[BucketRange], end: int) -> list[int]:
    return [bucket for r in ranges for bucket in range(r.start, min(r.stop, end))]


def _ranges(buckets: list[int]) -> tuple[BucketRange, ...]:
    ranges: list[BucketRange] = []
    for bucket in buckets:
        if ranges and ranges[-1].stop == bucket:
            ranges[-1] = BucketRange(ranges[-1].start, bucket + 1)
        else:
            ranges.append(BucketRange(bucket, bucket + 1))
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes.

    Attributes:
        version: The version that answers.
        rollout: The rollout whose candidate that is; empty for the stable arm and for a version that was asked for.
        arm: `stable` or `candidate`; `override` where the request asked for a version, or got another than its
            own by `min_version`: no analysis counts it.
        bucket: The key's bucket.
        shadows: Candidates that score the request as well, off the path.
        is_fallback: The bucket belongs to a version that this replica has not loaded; another stands in for it.
    """

    version: str
    rollout: str
    arm: str
    bucket: int
    shadows: tuple[str, ...] = ()
    is_fallback: bool = False


@dataclass(frozen=True, slots=True)
class _Shadow:
    version: str
    limit: int  # Draws of 0 to 9,999 below this are shadowed.


class RoutingTable:
    """Who answers whom in one replica. Immutable: a change makes a new table, and a request keeps the one that it took.

    Attributes:
        revision: The revision of the state that it was made of.
        stable: The version of the stable arm here; None while nothing can answer.
        salt: What keys are hashed with.
        loaded: The versions that this replica has.
        rollouts: Ids of the active rollouts that have begun.
        rollout_of: The rollout of each of their candidates; a version is a candidate of one rollout at most.
        is_stale: The state store was not reachable when it was made.
    """

    def __init__(
        self,
        *,
        revision: int,
        salt: str,
        stable: str | None,
        wanted_stable: str | None,
        loaded: frozenset[str],
        rollouts: tuple[Rollout, ...],
        is_stale: bool,
    ) -> None:
        self.revision, self.salt, self.stable, self.loaded = revision, salt, stable, loaded
        self.rollouts = tuple(rollout.id for rollout in rollouts)
        self.rollout_of = {version: rollout.id for rollout in rollouts for version in rollout.candidates}
        self.is_stale = is_stale
        self._is_fallback = stable != wanted_stable
        self._hash = hashlib.blake2b(f"{salt}\0".encode("utf-8", "surrogatepass"))
        self._arms = [(rollout.id, arm) for rollout in rollouts for arm in rollout.arms]
        self._owners = self._owners_of_buckets()
        self._shadows = tuple(
            _Shadow(arm.version, buckets_of_percent(rollout.spec.shadow))
            for rollout in rollouts
            for arm in rollout.arms
            if rollout.spec.shadow > 0 and arm.version in loaded
        )
        self._numbers: Mapping[str, int] = {version: number_of(version) for version in loaded}

    @classmethod
    def of(cls, state: ModelState, loaded: Collection[str], *, revision: int, is_stale: bool = False) -> "RoutingTable":
        """The table of a state in a replica.

        A replica that has not loaded the stable version answers with the newest earlier stable version that it has; one
        that has none of them cannot answer.

        Args:
            state: The model's state.
            loaded: The versions that this replica can answer with.
            revision: The state's revision.
            is_stale: The state is the last known one, as the store is not reachable.
        """
        wanted = (state.stable, *state.previous)
        return cls(
            revision=revision,
            salt=state.salt,
            stable=next((version for version in wanted if version is not None and version in loaded), None),
            wanted_stable=state.stable,
            loaded=frozenset(loaded),
            rollouts=tuple(rollout for rollout in state.rollouts if rollout.started_at is not None),
            is_stale=is_stale,
        )

    def version_for(
        self, key: str, *, request_id: str = "", override: str | None = None, min_version: str | int | None = None
    ) -> Route:
        """The version that answers a request.

        Args:
            key: The request's key: who asks.
            request_id: Draws which requests are shadowed; empty: the key does.
            override: The version that the request asks for by name.
            min_version: A version's name or number; the answer must be of that number or a higher one.

        Raises:
            UnknownVersionError: `override` is not loaded here.
            VersionNotThereYetError: No version that is loaded here has that number; another replica's or later one may.
            NoVersionError: Nothing is loaded that may answer.
        """
        bucket = self._bucket(key)
        if override is not None:
            return self._overridden(override, bucket, min_version)
        owner = self._owners[bucket]
        if owner:
            rollout, arm = self._arms[owner - 1]
            if arm.version in self.loaded:
                route = Route(arm.version, rollout, "candidate", bucket)
                return route if min_version is None else self._at_least(route, min_version)
        if self.stable is None:
            raise NoVersionError("no version is loaded that may answer: the replica is starting, or a load failed")
        route = Route(
            self.stable,
            "",
            "stable",
            bucket,
            self._drawn(request_id or key) if self._shadows else (),
            self._is_fallback or bool(owner),
        )
        return route if min_version is None else self._at_least(route, min_version)

    def _bucket(self, key: str) -> int:
        hashed = self._hash.copy()
        hashed.update(key.encode("utf-8", "surrogatepass"))
        return int.from_bytes(hashed.digest()[:8], "big") % NUM_BUCKETS

    def _owners_of_buckets(self) -> list[int]:
        owners = [0] * NUM_BUCKETS  # 0 is stable; else one more than the arm's place.
        for place, (_, arm) in enumerate(self._arms, 1):
            for r in arm.ranges:
                owners[r.start : r.stop] = [place] * (r.stop - r.start)
        return owners

    def _drawn(self, text: str) -> tuple[str, ...]:
        digest = hashlib.blake2b(f"shadow\0{self.salt}\0{text}".encode("utf-8", "surrogatepass")).digest()
        drawn = []
        for place, shadow in enumerate(self._shadows):
            start = place % _NUM_DRAWS * _DRAW_BYTES
            if int.from_bytes(digest[start : start + _DRAW_BYTES], "big") % NUM_BUCKETS < shadow.limit:
                drawn.append(shadow.version)
        return tuple(drawn)

    def _overridden(self, override: str, bucket: int, min_version: str | int | None) -> Route:
        if override not in self.loaded:
            raise UnknownVersionError(
                f"version {override[:60]!r} is not loaded here; loaded are {', '.join(sorted(self.loaded)) or 'none'}"
            )
        if min_version is not None and self._numbers[override] < _lowest_number(min_version):
            raise VersionNotThereYetError(f"the request asks for version {override} and for min_version {min_version}")
        return Route(override, "", "override", bucket)

    def _at_least(self, route: Route, min_version: str | int) -> Route:
        lowest = _lowest_number(min_version)
        if self._numbers[route.version] >= lowest:
            return route
        takes_traffic = {self.stable, *(arm.version for _, arm in self._arms if arm.ranges)}
        fitting = [version for version in takes_traffic if version in self.loaded and self._numbers[version] >= lowest]
        if not fitting:
            raise VersionNotThereYetError(
                f"no version from {min_version} on takes traffic here yet; this request's is {route.version}; "
                "try again soon"
            )
        return Route(min(fitting, key=lambda version: self._numbers[version]), "", "override", route.bucket)


def _lowest_number(min_version: str | int) -> int:
    if isinstance(min_version, int):
        return min_version
    return int(min_version) if min_version.isascii() and min_version.isdigit() else number_of(min_version)
