"""Every path of the admin API: who may call it, what it takes, what it gives, and the function that does it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, get_args

import msgspec

from rankhouse.serving import errors
from rankhouse.serving.admin import bodies
from rankhouse.serving.admin.commands import Commands
from rankhouse.serving.admin.drifting import parse_drift
from rankhouse.serving.admin.keys import Caller, KeyRing, Role
from rankhouse.serving.admin.overview import Overview, Reader
from rankhouse.serving.admin.plans import RolloutPlan
from rankhouse.serving.admin.verdicts import Gate, VerdictAnswer, check_gate, prometheus_answer, verdict_numbers
from rankhouse.serving.admin.views import ReplicaView, RolloutView, VersionView
from rankhouse.serving.admin.webhooks import Progress
from rankhouse.serving.control.model_state import Event, Rollout
from rankhouse.serving.control.refresh_policy import parse_policy, policy_document
from rankhouse.serving.control.rollout_spec import parse_rollout, read_rollout
from rankhouse.serving.control.state_store import StateStore, Stored
from rankhouse.serving.control.webhook_urls import hidden_urls

PREFIX = "/admin/v1"
_ROLLOUT = f"{PREFIX}/rollouts/{{rollout}}"
_VERSION = f"{PREFIX}/versions/{{version}}"


class ReplicaControl(Protocol):
    """The replica that answers, as far as it takes commands. Called in the event loop."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def is_draining(self) -> bool:
        """Whether it tells balancers to look elsewhere."""

    def drain(self) -> None:
        """Becomes not ready, and answers what still comes."""

    def undrain(self) -> None:
        """Becomes ready again."""

    def refresh_now(self) -> None:
        """Looks into the version store now."""


@dataclass(frozen=True)
class Admin:
    """What the operations work on.

    Attributes:
        store: The state store.
        model: The model's name.
        commands: Changes the state.
        reader: Shows it.
        keys: Who may do what.
        replica: The replica that answers.
    """

    store: StateStore
    model: str
    commands: Commands
    reader: Reader
    keys: KeyRing
    replica: ReplicaControl


@dataclass(frozen=True)
class Call:
    """One call: who, and with what.

    Attributes:
        caller: Whose key it has.
        path: The path's parameters.
        query: The query's parameters, read and within their bounds.
        body: The body, as the operation's type.
    """

    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any

    @property
    def how(self) -> dict[str, Any]:
        """What every command takes."""
        return {"by": self.caller, "reason": self.body.reason}


@dataclass(frozen=True)
class Query:
    """A parameter of the query: a whole number within bounds, or where there are no bounds a text."""

    name: str
    description: str
    default: Any
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True)
class Operation:
    """One method of one path.

    Attributes:
        method: The HTTP method.
        path: With parameters in braces.
        role: Who may call it.
        run: Does it; its docstring is the description. Blocks, and runs in a thread, unless `in_loop`.
        answer: What it gives.
        body: What it takes; None takes none.
        query: The query's parameters.
        problems: The errors that it may end with, besides those of all operations.
        in_loop: It runs in the event loop, and does not block.
    """

    method: str
    path: str
    role: Role
    run: Callable[[Admin, Call], Any]
    answer: Any
    body: type[msgspec.Struct] | None = None
    query: tuple[Query, ...] = ()
    problems: tuple[type[Exception], ...] = ()
    in_loop: bool = False
    tag: str = field(default="")


_LIMIT = Query("limit", "How many at most.", 50, (1, 500))
_COMMAND = (errors.ConflictError, errors.TransitionError, errors.InvalidFieldError, errors.MalformedBodyError)
_ON_ROLLOUT = (errors.NoSuchRolloutError, *_COMMAND)
_ON_VERSION = (errors.AdmissionError, *_COMMAND)


def models(admin: Admin, call: Call) -> list[bodies.ModelSummary]:
    """Lists the models that this gateway serves."""
    stored = admin.store.read(admin.model)
    active = [each.id for each in stored.state.rollouts]
    return [bodies.ModelSummary(admin.model, stored.state.stable, stored.revision, active)]


def overview(admin: Admin, call: Call) -> Overview:
    """Shows everything at once: what an operations page polls."""
    return admin.reader.overview()


def versions(admin: Admin, call: Call) -> list[VersionView]:
    """Lists the versions, newest first: their lineage, their bytes, and how they stand on each replica."""
    return admin.reader.versions()


def version(admin: Admin, call: Call) -> VersionView:
    """Shows one version."""
    wanted = call.path["version"]
    found = next((each for each in admin.reader.versions() if each.name == wanted), None)
    if found is None:
        raise errors.UnknownVersionError(
            f"neither the version store nor a replica has a version {wanted[:40]!r}; GET {PREFIX}/versions lists them"
        )
    return found


def quarantine(admin: Admin, call: Call) -> bodies.Done:
    """Keeps a version from traffic; rollouts that have it are rolled back."""
    return _done(admin.commands.quarantine(call.path["version"], **call.how))


def release(admin: Admin, call: Call) -> bodies.Done:
    """Takes a version out of quarantine."""
    return _done(admin.commands.release(call.path["version"], **call.how))


def admit(admin: Admin, call: Call) -> bodies.Done:
    """Makes a newer version stable, whatever the refresh policy says: at once, or by a rollout that has it loaded."""
    return _done(admin.commands.admit(call.path["version"], **call.how))


def rollback(admin: Admin, call: Call) -> bodies.Done:
    """Brings an earlier stable version back: at once where all replicas still have it. Holds refresh."""
    return _done(admin.commands.rollback(call.body.version, **call.how))


def rollouts(admin: Admin, call: Call) -> list[RolloutView]:
    """Lists active rollouts, then finished ones, the newest first."""
    return admin.reader.rollouts(limit=call.query["limit"])


def start(admin: Admin, call: Call) -> RolloutView:
    """Starts a rollout. Sent again while it is active, by the same key and with the same spec, it is that rollout."""
    return _view(admin, admin.commands.start(parse_rollout(call.body.spec), **call.how))


def check_rollout(admin: Admin, call: Call) -> RolloutPlan:
    """Checks a rollout's YAML against the state of now, and says what starting it would do. Changes nothing."""
    return admin.commands.plan(read_rollout(call.body.yaml), by=call.caller)


def rollout(admin: Admin, call: Call) -> RolloutView:
    """Shows a rollout; `latest` is the one that was started last."""
    return _view(admin, admin.commands.find(call.path["rollout"]))


def pause(admin: Admin, call: Call) -> RolloutView:
    """Stops a rollout where it is. Its candidates keep their share, and a failing analysis still rolls it back."""
    return _view(admin, admin.commands.pause(call.path["rollout"], **call.how))


def resume(admin: Admin, call: Call) -> RolloutView:
    """Lets a paused rollout go on."""
    return _view(admin, admin.commands.resume(call.path["rollout"], **call.how))


def promote(admin: Admin, call: Call) -> RolloutView:
    """Makes a rollout's candidate the stable version at once."""
    return _view(admin, admin.commands.promote(call.path["rollout"], version=call.body.version, **call.how))


def abort(admin: Admin, call: Call) -> RolloutView:
    """Rolls a rollout back: all users get the stable version at once."""
    return _view(admin, admin.commands.abort(call.path["rollout"], **call.how))


def skip_step(admin: Admin, call: Call) -> RolloutView:
    """Ends a rollout's step at once; after the last one the candidate is promoted."""
    return _view(admin, admin.commands.skip_step(call.path["rollout"], step=call.body.step, **call.how))


def set_weight(admin: Admin, call: Call) -> RolloutView:
    """Gives a rollout's candidates another share now; its steps go on from there."""
    return _view(admin, admin.commands.set_weight(call.path["rollout"], call.body.weight, **call.how))


def verdict(admin: Admin, call: Call) -> VerdictAnswer:
    """Gives a rollout's verdict flat, for Argo Rollouts' web metric: jsonPath `{$.data}`."""
    return VerdictAnswer(verdict_numbers(rollout(admin, call)))


def gate(admin: Admin, call: Call) -> VerdictAnswer:
    """Answers 200 where a gate is open, for Flagger's webhooks: `advance`, `promote` or `rollback`."""
    name = call.path["gate"]
    if name not in get_args(Gate):
        raise errors.InvalidFieldError(f"is {name[:40]!r}; expected one of {', '.join(get_args(Gate))}", "gate")
    numbers = verdict_numbers(rollout(admin, call))
    check_gate(numbers, cast(Gate, name))
    return VerdictAnswer(numbers)


def query(admin: Admin, call: Call) -> dict[str, Any]:
    """Answers as Prometheus would, for Flagger's metric templates of that type: one number of the verdict."""
    numbers = verdict_numbers(rollout(admin, call))
    return prometheus_answer(numbers, call.query["query"], time.time())


def refresh(admin: Admin, call: Call) -> bodies.Done:
    """Shows what happens with new versions."""
    return _done(admin.store.read(admin.model))


def hold_refresh(admin: Admin, call: Call) -> bodies.Done:
    """Stops refresh: no new version is admitted until it is resumed."""
    return _done(admin.commands.hold(is_held=True, **call.how))


def resume_refresh(admin: Admin, call: Call) -> bodies.Done:
    """Lets refresh go on."""
    return _done(admin.commands.hold(is_held=False, **call.how))


def set_policy(admin: Admin, call: Call) -> bodies.Done:
    """Changes what happens with new versions: `admit` is `direct`, `rollout` or `manual`.

    What is held stays held, and without `keep_loaded_bytes` that stays as it is.
    """
    policy = parse_policy(call.body.policy)
    if policy.drift is not None:
        parse_drift(policy.drift)  # It is kept as it was written; what does not work is refused here.
    keeps_bytes = "keep_loaded_bytes" not in call.body.policy
    return _done(admin.commands.set_policy(policy, keeps_bytes=keeps_bytes, **call.how))


def set_holdout(admin: Admin, call: Call) -> bodies.Done:
    """Changes the share of the request keys that no candidate gets before its promotion."""
    return _done(admin.commands.set_holdout(call.body.percent, **call.how))


def refresh_now(admin: Admin, call: Call) -> bodies.Drained:
    """Has this replica look into the version store now, not at its next time."""
    admin.replica.refresh_now()
    return _drained(admin)


def drain(admin: Admin, call: Call) -> bodies.Drained:
    """Makes this replica not ready, so that balancers look elsewhere; it answers what still comes."""
    admin.replica.drain()
    return _drained(admin)


def undrain(admin: Admin, call: Call) -> bodies.Drained:
    """Makes this replica ready again."""
    admin.replica.undrain()
    return _drained(admin)


def replicas(admin: Admin, call: Call) -> list[ReplicaView]:
    """Lists the living replicas, and what each has loaded."""
    return admin.reader.replicas()


def history(admin: Admin, call: Call) -> list[Event]:
    """Lists what happened, newest first; with `before`, what is older than that event's number."""
    return admin.store.history(admin.model, before=call.query["before"] or None, limit=call.query["limit"])


def webhooks(admin: Admin, call: Call) -> list[Progress]:
    """Lists the receivers of events, how far each has come, and what it last said instead of taking one."""
    return admin.reader.receivers()


def keys(admin: Admin, call: Call) -> list[bodies.KeyEntry]:
    """Lists the keys, without themselves."""
    return [bodies.KeyEntry(each.name, each.role, each.created_at, each.created_by) for each in admin.keys.records()]


def add_key(admin: Admin, call: Call) -> bodies.NewKey:
    """Makes a key. The answer is the only place where it is ever seen."""
    body = call.body
    return bodies.NewKey(body.name, body.role, admin.keys.add(body.name, body.role, by=call.caller, now=time.time()))


def revoke_key(admin: Admin, call: Call) -> list[bodies.KeyEntry]:
    """Makes a key invalid at once, on all replicas."""
    admin.keys.revoke(call.path["key"])
    return keys(admin, call)


def who_am_i(admin: Admin, call: Call) -> Caller:
    """Says whose key the call has, and what it may do."""
    return call.caller


def _done(stored: Stored) -> bodies.Done:
    state = stored.state
    return bodies.Done(
        revision=stored.revision,
        stable=state.stable,
        policy=hidden_urls(policy_document(state.policy)),
        holdout_percent=state.holdout_percent,
        quarantined=state.quarantined,
        active_rollouts=[each.id for each in state.rollouts],
    )


def _drained(admin: Admin) -> bodies.Drained:
    return bodies.Drained(admin.replica.name, admin.replica.is_draining)


def _view(admin: Admin, rollout: Rollout) -> RolloutView:
    return admin.reader.rollout(rollout)


OPERATIONS = (
    Operation("GET", f"{PREFIX}/overview", "viewer", overview, Overview, tag="models"),
    Operation("GET", f"{PREFIX}/models", "viewer", models, list[bodies.ModelSummary], tag="models"),
    Operation("GET", f"{PREFIX}/replicas", "viewer", replicas, list[ReplicaView], tag="replicas"),
    Operation("POST", f"{PREFIX}/drain", "operator", drain, bodies.Drained, in_loop=True, tag="replicas"),
    Operation("POST", f"{PREFIX}/undrain", "operator", undrain, bodies.Drained, in_loop=True, tag="replicas"),
    Operation("GET", f"{PREFIX}/versions", "viewer", versions, list[VersionView], tag="versions"),
    Operation(
        *("GET", _VERSION, "viewer", version, VersionView), problems=(errors.UnknownVersionError,), tag="versions"
    ),
    *(
        Operation(
            "POST",
            f"{_VERSION}/{run.__name__}",
            "operator",
            run,
            bodies.Done,
            bodies.Why,
            (),
            _ON_VERSION,
            tag="versions",
        )
        for run in (quarantine, release, admit)
    ),
    Operation(
        *("POST", f"{PREFIX}/rollback", "operator", rollback, bodies.Done, bodies.Rollback, (), _ON_VERSION),
        tag="versions",
    ),
    Operation("GET", f"{PREFIX}/rollouts", "viewer", rollouts, list[RolloutView], query=(_LIMIT,), tag="rollouts"),
    Operation(
        *("POST", f"{PREFIX}/rollouts", "operator", start, RolloutView, bodies.StartRollout, ()),
        problems=(errors.RolloutSpecError, errors.AdmissionError, *_COMMAND),
        tag="rollouts",
    ),
    Operation(
        *("POST", f"{PREFIX}/rollouts/check", "operator", check_rollout, RolloutPlan, bodies.CheckRollout, ()),
        problems=(errors.RolloutSpecError, errors.AdmissionError, *_COMMAND),
        tag="rollouts",
    ),
    Operation("GET", _ROLLOUT, "viewer", rollout, RolloutView, problems=(errors.NoSuchRolloutError,), tag="rollouts"),
    *(
        Operation("POST", f"{_ROLLOUT}/{name}", "operator", run, RolloutView, body, (), _ON_ROLLOUT, tag="rollouts")
        for name, run, body in (
            ("pause", pause, bodies.Why),
            ("resume", resume, bodies.Why),
            ("promote", promote, bodies.Promote),
            ("abort", abort, bodies.Why),
            ("skip", skip_step, bodies.SkipStep),
            ("weight", set_weight, bodies.SetWeight),
        )
    ),
    Operation(
        *("GET", f"{_ROLLOUT}/verdict", "viewer", verdict, VerdictAnswer),
        problems=(errors.NoSuchRolloutError,),
        tag="other tools",
    ),
    Operation(
        *("POST", f"{_ROLLOUT}/gates/{{gate}}", "viewer", gate, VerdictAnswer, bodies.FlaggerWebhook, ()),
        problems=(errors.NoSuchRolloutError, errors.GateClosedError, errors.InvalidFieldError),
        tag="other tools",
    ),
    Operation(
        *("GET", f"{_ROLLOUT}/api/v1/query", "viewer", query, bodies.PrometheusAnswer),
        query=(
            Query("query", "`ok`, `done`, `failed`, `weight`, `step`, or a metric's number as `ctr.candidate`.", "ok"),
        ),
        problems=(errors.NoSuchRolloutError, errors.InvalidFieldError),
        tag="other tools",
    ),
    Operation("GET", f"{PREFIX}/refresh", "viewer", refresh, bodies.Done, tag="refresh"),
    Operation(
        *("POST", f"{PREFIX}/refresh/hold", "operator", hold_refresh, bodies.Done, bodies.Why, (), _COMMAND),
        tag="refresh",
    ),
    Operation(
        *("POST", f"{PREFIX}/refresh/resume", "operator", resume_refresh, bodies.Done, bodies.Why, (), _COMMAND),
        tag="refresh",
    ),
    Operation("POST", f"{PREFIX}/refresh/now", "operator", refresh_now, bodies.Drained, in_loop=True, tag="refresh"),
    Operation(
        *("PUT", f"{PREFIX}/refresh/policy", "operator", set_policy, bodies.Done, bodies.SetPolicy, ()),
        problems=(errors.RolloutSpecError, *_COMMAND),
        tag="refresh",
    ),
    Operation(
        *("PUT", f"{PREFIX}/holdout", "operator", set_holdout, bodies.Done, bodies.SetHoldout, (), _COMMAND),
        tag="rollouts",
    ),
    Operation(
        *("GET", f"{PREFIX}/history", "viewer", history, list[Event]),
        query=(Query("before", "An event's number; 0: from the newest.", 0, (0, 1 << 53)), _LIMIT),
        problems=(errors.InvalidFieldError,),
        tag="history",
    ),
    Operation("GET", f"{PREFIX}/webhooks", "viewer", webhooks, list[Progress], tag="history"),
    Operation("GET", f"{PREFIX}/whoami", "viewer", who_am_i, Caller, in_loop=True, tag="keys"),
    Operation("GET", f"{PREFIX}/keys", "admin", keys, list[bodies.KeyEntry], tag="keys"),
    Operation(
        *("POST", f"{PREFIX}/keys", "admin", add_key, bodies.NewKey, bodies.AddKey, ()),
        problems=(errors.KeyExistsError, errors.InvalidFieldError, errors.MalformedBodyError),
        tag="keys",
    ),
    Operation(
        *("DELETE", f"{PREFIX}/keys/{{key}}", "admin", revoke_key, list[bodies.KeyEntry]),
        problems=(errors.NoSuchKeyError, errors.InvalidFieldError),
        tag="keys",
    ),
)
