"""What replicas share of a model, as plain data: which version answers whom, and what is under way."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import msgspec

from rankhouse.embedding_cache.format.version_record import is_version_name, sequence_of
from rankhouse.serving.control.rollout_spec import RolloutSpec, Webhook
from rankhouse.serving.control.states import RolloutStatus
from rankhouse.serving.errors import AdmissionError, CorruptStateError

NUM_BUCKETS = 10_000
PauseCause: TypeAlias = Literal["operator", "step", "failure", "inconclusive"]


class BucketRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Buckets [start, stop) of 0 to 10,000."""

    start: int
    stop: int


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate's share of the buckets.

    Attributes:
        version: The candidate.
        ranges: The buckets that it answers, ascending, without neighbours that touch.
        weight: Their share in percent.
    """

    version: str
    ranges: tuple[BucketRange, ...] = ()
    weight: float = 0.0


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rollout: one candidate that is to become stable, or several that are compared.

    Times are unix seconds.

    Attributes:
        id: Its name, unique in the model: `r000007`.
        spec: What was asked for.
        status: Where it stands (states.py).
        created_at: When it was started.
        created_by: By whom.
        reason: Why.
        arms: The candidates in the order of the spec, with their buckets of now.
        step: Which of the spec's steps it is in, from 0.
        step_since: When that step began, or while it is pending the wait for replicas; later by the pauses since then.
        started_at: When its first step began; None while it waits for replicas.
        pause_cause: Why it is paused: by an `operator`, the `step` itself, a `failure`, an `inconclusive` analysis;
            None in other statuses.
        paused_at: Since when it is paused; None in other statuses.
        waived: Causes of this step's pauses that the operator went over with `resume`.
        is_rollback: It brings back an earlier stable version, so its number may be lower.
        verdict: The analysis' verdicts when it last mattered, by candidate, as plain data; None before.
        finished_at: When it was promoted or rolled back.
    """

    id: str
    spec: RolloutSpec
    status: RolloutStatus
    created_at: float
    created_by: str
    reason: str
    arms: tuple[Arm, ...]
    step: int = 0
    step_since: float = 0.0
    started_at: float | None = None
    pause_cause: PauseCause | None = None
    paused_at: float | None = None
    waived: tuple[PauseCause, ...] = ()
    is_rollback: bool = False
    verdict: dict[str, Any] | None = None
    finished_at: float | None = None

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names of its candidates."""
        return tuple(arm.version for arm in self.arms)

    @property
    def weight(self) -> float:
        """The percent of all buckets that its candidates have together."""
        return round(sum(arm.weight for arm in self.arms), 2)


class RefreshPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens with a new version in the store.

    Attributes:
        admit: `direct` makes it stable as soon as all replicas have it, `rollout` starts a rollout of it, `manual`
            waits for an operator.
        rollout: The rollout's template for `rollout`; its candidates are ignored.
        keep_loaded_bytes: Versions that are not needed stay loaded for an instant rollback within this memory.
        is_held: Nothing is admitted while it is true.
        webhooks: Who is told of events without a rollout, too: admissions, quarantine, drift.
        drift: How live traffic is watched against the training's statistics, as plain data; None: not at all.
    """

    admit: Literal["direct", "rollout", "manual"] = "direct"
    rollout: RolloutSpec | None = None
    keep_loaded_bytes: int = 0
    is_held: bool = False
    webhooks: tuple[Webhook, ...] = ()
    drift: dict[str, Any] | None = None


class ModelState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model's state. Changed as a whole, by a compare-and-set in the state store.

    Attributes:
        model: The model's name.
        stable: The version that answers whatever no rollout has; None before the first was admitted.
        previous: Earlier stable versions that `rollback` may bring back, newest first.
        floor: The highest sequence number that was stable or rolled back; refresh admits only above it.
        salt: Goes into the hash of a request's key; changes only when no rollout is active.
        holdout_percent: Buckets at the end that no candidate gets before its promotion.
        rollouts: The active ones; finished ones are in the store's archive.
        policy: What happens with new versions.
        quarantined: Versions that must not take traffic, and why.
        next_id: The number of the next rollout.
    """

    model: str
    stable: str | None = None
    previous: tuple[str, ...] = ()
    floor: int = 0
    salt: str = ""
    holdout_percent: float = 0.0
    rollouts: tuple[Rollout, ...] = ()
    policy: RefreshPolicy = RefreshPolicy()
    quarantined: dict[str, str] = {}
    next_id: int = 1


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a model's history.

    Attributes:
        number: Its place in the history, from 1; the store gives it.
        at: When, in unix seconds.
        actor: Who: an API key's name, or `conductor`, `refresh`.
        model: The model's name.
        kind: One of states.EVENT_KINDS.
        rollout: The rollout that it is about, if any.
        version: The version that it is about, if any.
        before: What was before, in words.
        after: What is after, in words.
        reason: Why.
    """

    number: int
    at: float
    actor: str
    model: str
    kind: str
    rollout: str | None
    version: str | None
    before: str
    after: str
    reason: str


@dataclass(frozen=True)
class Change:
    """What a command makes of a state.

    Attributes:
        state: The state after it.
        events: What happened, in order; the store numbers them.
        finished: Rollouts that it ended, for the archive.
    """

    state: ModelState
    events: tuple[Event, ...]
    finished: tuple[Rollout, ...] = ()


class ReplicaReport(msgspec.Struct, frozen=True):
    """What a replica says of itself. Replicas of another release may say more, which is passed over.

    Attributes:
        replica: Its name, new at each start of its process.
        model: The model that it serves.
        at: When it said so, in unix seconds.
        loaded: The versions that it can answer with.
        preparing: Versions on their way, and how far they are.
        failed: Versions that it could not load, and why.
        routing_revision: The revision of the state that its requests are routed by.
        urls: Its addresses: `rest`, `grpc`, `admin`.
        is_draining: It is about to stop; nobody waits for it.
        details: More for operators: freshness, bytes of memory.
    """

    replica: str
    model: str
    at: float
    loaded: tuple[str, ...] = ()
    preparing: dict[str, str] = {}
    failed: dict[str, str] = {}
    routing_revision: int = 0
    urls: dict[str, str] = {}
    is_draining: bool = False
    details: dict[str, Any] = {}


class AnsweredRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An answer that feedback may come for.

    Attributes:
        request_id: The request's id.
        model: The model's name.
        rollouts: The rollout whose candidate answered; for a stable version's answer, those that were active then.
        version: The version that answered.
        arm: `stable` or `candidate`.
        at: When, in unix seconds.
        scores: By candidate of the request: float32, little endian.
    """

    request_id: str
    model: str
    rollouts: tuple[str, ...]
    version: str
    arm: str
    at: float
    scores: bytes = b""


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key of the admin API.

    Attributes:
        name: Stands in the history as the actor.
        role: `viewer`, `operator` or `admin`.
        sha256: The hash of the key, in hexadecimal; the key itself is kept nowhere.
        created_at: When it was made, in unix seconds.
        created_by: By whom.
    """

    name: str
    role: str
    sha256: str
    created_at: float
    created_by: str


def number_of(version: str) -> int:
    """The sequence number in a version's name.

    Raises:
        AdmissionError: That is no version's name.
    """
    if not is_version_name(version):
        raise AdmissionError(f"{version!r} is not a version's name; names are like 000012-c873e97f")
    return sequence_of(version)


def verdict_key(rollout: str, step: int, version: str) -> str:
    """The name of a candidate's verdict for `transitions.advance`; that of an earlier step ends no later one."""
    return f"{rollout}/{step}/{version}"


def encode_state(state: ModelState) -> bytes:
    """The state as JSON."""
    return msgspec.json.encode(state)


def decode_state(content: bytes) -> ModelState:
    """The state of its JSON.

    Raises:
        CorruptStateError: It is not a state, or has fields that this release does not know.
    """
    try:
        return msgspec.json.decode(content, type=ModelState)
    except msgspec.MsgspecError as exc:
        raise CorruptStateError(
            f"the stored state cannot be read: {exc}; it is damaged, or a newer release wrote it: upgrade this replica"
        ) from exc


def encode_answer(answer: AnsweredRequest) -> bytes:
    """The answer as MessagePack."""
    return msgspec.msgpack.encode(answer)


def decode_answer(content: bytes) -> AnsweredRequest:
    """The answer of its MessagePack.

    Raises:
        CorruptStateError: It is none.
    """
    try:
        return msgspec.msgpack.decode(content, type=AnsweredRequest)
    except msgspec.MsgspecError as exc:
        raise CorruptStateError(f"a stored answer cannot be read: {exc}") from exc
