"""How rollouts go on by themselves: what the conductor asks again and again."""

from collections.abc import Mapping, Sequence

import msgspec

from rankhouse.serving.analysis.spec import Verdict
from rankhouse.serving.control.model_state import Change, ModelState, ReplicaReport, Rollout, verdict_key
from rankhouse.serving.control.moves import (
    Draft,
    described,
    enter_step,
    make_promoted,
    make_rolled_back,
    pause_for,
)
from rankhouse.serving.errors import TransitionError

CONDUCTOR = "conductor"


def advance(
    state: ModelState, *, now: float, replicas: Sequence[ReplicaReport], verdicts: Mapping[str, Verdict]
) -> Change | None:
    """Moves each active rollout on by one step at most, where its time has come.

    A rollout begins when all living replicas have its candidates. It goes on when a step's pause is over and its
    analysis has passed; a failed analysis rolls it back (or pauses it, `on_failure`), also while it is paused, and of
    several candidates drops the failed ones; an analysis without an outcome in its time does what `on_inconclusive`
    says. After the last step the candidate is promoted; of several, the operator promotes one. No step begins while a
    living replica lacks a candidate.

    Args:
        state: The model's state.
        now: Unix seconds.
        replicas: What the living replicas said last; those that drain are not waited for.
        verdicts: By `verdict_key`; a candidate without one needs more observations.

    Returns:
        None where nothing is to be done yet.
    """
    draft = Draft(state, actor=CONDUCTOR, now=now, reason="")
    for rollout in state.rollouts:
        if any(rollout.id == active.id for active in draft.state.rollouts):
            _advance_one(draft, draft.rollout(rollout.id), replicas, verdicts)
    return draft.change()


def replicas_without(versions: Sequence[str], replicas: Sequence[ReplicaReport]) -> list[str]:
    """The living replicas, but for those that drain, that have not loaded all of some versions."""
    return [each.replica for each in replicas if not each.is_draining and not set(versions) <= set(each.loaded)]


def _advance_one(
    draft: Draft, rollout: Rollout, replicas: Sequence[ReplicaReport], verdicts: Mapping[str, Verdict]
) -> None:
    keys = {version: verdict_key(rollout.id, rollout.step, version) for version in rollout.candidates}
    of_candidates = {version: verdicts[key] for version, key in keys.items() if key in verdicts}
    if rollout.started_at is not None and _ends_by_failure(draft, rollout, of_candidates):
        return
    if rollout.status == "paused" or _waited_too_long(draft, rollout, replicas):
        return
    if rollout.status == "pending":
        if _all_have(rollout, replicas):
            draft.reason = "all replicas have its candidates"
            _enter(draft, rollout, 0)
        return
    _end_step(draft, rollout, replicas, of_candidates)


def _enter(draft: Draft, rollout: Rollout, step: int) -> None:
    """Begins a step; a rollout for which there is no room must not keep the others from going on, or back."""
    try:
        enter_step(draft, rollout, step, "advance")
    except TransitionError as exc:
        pause_for(draft, rollout, "failure", "advance", reason=str(exc))


def _all_have(rollout: Rollout, replicas: Sequence[ReplicaReport]) -> bool:
    living = [each for each in replicas if not each.is_draining]
    if rollout.is_rollback:  # Who has nothing loaded answers nobody, and must not hold the others back.
        living = [each for each in living if each.loaded]
    return bool(living) and not replicas_without(rollout.candidates, living)


def _waited_too_long(draft: Draft, rollout: Rollout, replicas: Sequence[ReplicaReport]) -> bool:
    waits = draft.now - rollout.step_since
    is_over = waits > rollout.spec.ready_seconds and "failure" not in rollout.waived
    if rollout.status == "pending" and is_over and not _all_have(rollout, replicas):
        _fail(draft, rollout, f"after {waits:.0f} s {_missing(rollout, replicas)}")
        return True
    return False


def _missing(rollout: Rollout, replicas: Sequence[ReplicaReport]) -> str:
    """Which replicas lack a candidate, and why. That a load failed is no end by itself: replicas try again."""
    names = replicas_without(rollout.candidates, replicas)
    if not names:
        return "no replica lives"
    told = {
        version: f"; {each.replica} cannot load {version}: {each.failed[version]}"
        for each in replicas
        for version in rollout.candidates
        if each.replica in names and version in each.failed
    }
    return f"not all replicas have the candidates, without them: {', '.join(names)}{''.join(told.values())}"


def _ends_by_failure(draft: Draft, rollout: Rollout, verdicts: Mapping[str, Verdict]) -> bool:
    failed = [version for version, verdict in verdicts.items() if verdict.outcome == "fail"]
    if not failed:
        return False
    if rollout.spec.on_failure == "pause" and (rollout.status == "paused" or "failure" in rollout.waived):
        return False
    reason = "; ".join(f"{version}: {_explained(verdicts[version])}" for version in failed)
    judged = _judged(rollout, verdicts)
    if rollout.spec.on_failure == "roll_back" and len(failed) < len(rollout.arms):
        kept = tuple(arm for arm in rollout.arms if arm.version not in failed)
        moved = draft.put(rollout, "advance", arms=kept, verdict=judged.verdict)
        for version in failed:
            draft.note(
                "dropped",
                rollout=moved,
                version=version,
                before=described(rollout),
                after=described(moved),
                reason=reason,
            )
        return True
    _fail(draft, judged, reason)
    return True


def _fail(draft: Draft, rollout: Rollout, reason: str) -> None:
    if rollout.spec.on_failure == "pause":
        pause_for(draft, rollout, "failure", "advance", reason=reason)
    else:
        make_rolled_back(draft, rollout, "advance", reason=reason)


def _end_step(
    draft: Draft, rollout: Rollout, replicas: Sequence[ReplicaReport], verdicts: Mapping[str, Verdict]
) -> None:
    step = rollout.spec.steps[rollout.step]
    if step.is_manual and "step" not in rollout.waived:
        pause_for(draft, rollout, "step", "advance", reason="the step waits for an operator")
        return
    passed = len(verdicts) == len(rollout.arms) and all(verdict.outcome == "pass" for verdict in verdicts.values())
    judged = _judged(rollout, verdicts)
    draft.reason = "the step's time is over"
    if step.analysis_seconds is not None:
        draft.reason = "the analysis passed"
        if not passed and "inconclusive" not in rollout.waived:
            if draft.now < rollout.step_since + step.analysis_seconds:
                return
            if rollout.spec.on_inconclusive != "go_on":
                _stop_inconclusive(draft, judged, step.analysis_seconds)
                return
            draft.reason = f"the analysis has no outcome after {step.analysis_seconds:g} s"
    if draft.now < rollout.step_since + step.pause_seconds or not _all_have(rollout, replicas):
        return
    if rollout.step + 1 < len(rollout.spec.steps):
        _enter(draft, judged, rollout.step + 1)
    elif len(rollout.arms) == 1:
        make_promoted(draft, judged, rollout.arms[0].version, "advance")
    else:
        pause_for(
            draft, judged, "step", "advance", reason="all steps are done: promote one of the candidates, or abort"
        )


def _stop_inconclusive(draft: Draft, rollout: Rollout, seconds: float) -> None:
    reason = f"the analysis has no outcome after {seconds:g} s"
    if rollout.spec.on_inconclusive == "pause":
        pause_for(draft, rollout, "inconclusive", "advance", reason=reason)
    else:
        make_rolled_back(draft, rollout, "advance", reason=reason)


def _judged(rollout: Rollout, verdicts: Mapping[str, Verdict]) -> Rollout:
    if not verdicts:
        return rollout
    plain = msgspec.json.decode(msgspec.json.encode(verdicts))
    return msgspec.structs.replace(rollout, verdict=plain)


def _explained(verdict: Verdict) -> str:
    failed = [f"{metric.name}: {metric.reason}" for metric in verdict.metrics if metric.outcome == "fail"]
    return ", ".join(failed) or verdict.reason or "the analysis failed"
