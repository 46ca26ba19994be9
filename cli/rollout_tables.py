"""How `rankhouse rollout` shows what the admin API says."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rankhouse.serving.admin.bodies import Done, KeyEntry
    from rankhouse.serving.admin.views import ReplicaView, RolloutView, VersionView
    from rankhouse.serving.control.model_state import Event
    from rankhouse.serving.control.rollout_spec import RolloutSpec, Step

_COLORS = {
    "promoted": "green",
    "progressing": "cyan",
    "pending": "yellow",
    "paused": "yellow",
    "rolled_back": "red",
    "pass": "green",
    "fail": "bold red",
    "inconclusive": "yellow",
    "running": "cyan",
    "stable": "green",
    "candidate": "cyan",
    "quarantined": "red",
    "taken_back": "yellow",
    "failed": "red",
    "loaded": "green",
}
_NUMBERS = {"weight", "stable", "candidate", "compared", "limit", "n", "size", "adds", "step"}


def rollout_panel(rollout: "RolloutView") -> Group:
    """A rollout: what it is, its steps, and how its candidates compare with the stable version."""
    is_active = rollout.finished_at is None
    lines: list[RenderableType] = [
        f"[bold]{rollout.id}[/] is {_colored(rollout.status)}"
        + (f" ({rollout.pause_cause})" if rollout.pause_cause else "")
        + f": {', '.join(arm.version + (f' {arm.weight:g} %' if is_active else '') for arm in rollout.arms)}",
        f"[dim]started by {escape(rollout.created_by)} at {when(rollout.created_at)}"
        + (f": {escape(rollout.reason)}" if rollout.reason else "")
        + "[/]",
    ]
    if rollout.waits_for:
        lines.append(escape(rollout.waits_for))
    num_done = len(rollout.spec["steps"]) if rollout.status == "promoted" else rollout.step
    lines += ["", steps_table(rollout.spec["steps"], num_done=num_done, has_now=bool(rollout.started_at) and is_active)]
    for arm in rollout.arms:
        if arm.verdict is not None:
            lines += ["", _verdict_line(arm.version, arm.verdict), verdict_table(arm.verdict)]
    return Group(*lines)


def steps_table(steps: Sequence[Mapping[str, Any]], *, num_done: int = 0, has_now: bool = False) -> Table:
    """Steps as their YAML says them, from 1 on; those that are done are marked, and the one after them if it is now."""
    table = _table("", "step", "weight", "ends")
    for number, step in enumerate(steps):
        mark = "[green]done[/]" if number < num_done else "[bold cyan]now[/]" if has_now and number == num_done else ""
        table.add_row(mark, str(number + 1), f"{step['weight']:g} %", _end_of(step))
    return table


def verdict_table(verdict: Mapping[str, Any]) -> Table:
    """The metrics of a verdict, with what is compared, its confidence interval and the limit."""
    table = _table("metric", "stable", "candidate", "compared", "interval", "limit", "n", "outcome")
    for metric in verdict["metrics"]:
        comparison = {"max_increase": "difference", "max_ratio": "ratio", "max_loss": "loss"}
        what = comparison.get(metric["limit_kind"], "value")
        is_floor = metric["limit_kind"] == "min_value"
        table.add_row(
            metric["name"],
            *(number(metric[name]) for name in ("stable", "candidate")),
            f"{what} {number(metric['difference'])}",
            f"{number(metric['low'], '-∞')} … {number(metric['high'], '∞')}",
            f"{'≥' if is_floor else '≤'} {number(metric['limit'])}",
            f"{metric['n']:,}",
            _colored(metric["outcome"]) + (" (dry run)" if metric.get("dry_run") else ""),
        )
    return table


def rollouts_table(rollouts: Sequence["RolloutView"]) -> Table:
    """Rollouts, a line for each."""
    table = _table("rollout", "status", "candidates", "step", "weight", "started", "by", "reason")
    for each in rollouts:
        table.add_row(
            each.id,
            _colored(each.status),
            ", ".join(arm.version for arm in each.arms),
            f"{each.step + 1}/{each.num_steps}",
            f"{sum(arm.weight for arm in each.arms):g} %" if each.finished_at is None else "",
            when(each.created_at),
            escape(each.created_by),
            escape(each.reason),
        )
    return table


def versions_table(versions: Sequence["VersionView"]) -> Table:
    """Versions: lineage, size, and how they stand on the replicas."""
    table = _table("version", "role", "weight", "made by", "parent", "size", "adds", "replicas", "reason")
    for each in versions:
        states = [on.state for on in each.replicas]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        stored = each.stored
        table.add_row(
            each.name,
            _colored(each.role),
            f"{each.weight:g} %" if each.weight else "",
            stored.made_by if stored else "",
            (stored.parent or "") if stored else "",
            size(stored.num_bytes) if stored else "",
            size(stored.added_bytes) if stored else "",
            counts,
            escape(each.reason or (stored.problem if stored else "")),
        )
    return table


def replicas_table(replicas: Sequence["ReplicaView"]) -> Table:
    """Replicas, a line for each."""
    table = _table("replica", "seen", "revision", "loaded", "preparing", "failed", "")
    for each in replicas:
        table.add_row(
            each.replica,
            f"{each.seconds_ago:.1f} s ago",
            f"{each.routing_revision}{' (behind)' if each.lags else ''}",
            ", ".join(each.loaded),
            escape(", ".join(f"{name}: {how}" for name, how in each.preparing.items())),
            escape(", ".join(f"{name}: {why}" for name, why in each.failed.items())),
            "[yellow]draining[/]" if each.is_draining else "",
        )
    return table


def history_table(events: Sequence["Event"]) -> Table:
    """Events, a line for each."""
    table = _table("#", "at (UTC)", "who", "what", "about", "before", "after", "reason")
    for event in events:
        about = " ".join(filter(None, (event.rollout, event.version)))
        texts = (escape(text) for text in (event.before, event.after, event.reason))
        table.add_row(str(event.number), when(event.at), escape(event.actor), event.kind, about, *texts)
    return table


def keys_table(keys: Sequence["KeyEntry"]) -> Table:
    """Keys, without themselves."""
    table = _table("key", "role", "made", "by")
    for key in keys:
        table.add_row(key.name, key.role, when(key.created_at) if key.created_at else "", escape(key.created_by))
    return table


def done_lines(done: "Done") -> Group:
    """What there is after a command over the model."""
    held = " [yellow](held)[/]" if done.policy.get("held") else ""
    lines = [
        f"stable: [bold]{done.stable or 'none'}[/]",
        f"refresh: {done.policy['admit']}{held}",
        f"holdout: {done.holdout_percent:g} %",
    ]
    lines += [f"active: {', '.join(done.active_rollouts)}"] if done.active_rollouts else []
    lines += [f"quarantined: {name}: {escape(why)}" for name, why in done.quarantined.items()]
    return Group(*lines)


def plan_lines(spec: "RolloutSpec") -> Group:
    """What a rollout will do, in words, before it is started."""
    from rankhouse.serving.control.rollout_spec import rollout_document

    words = {"roll_back": "rolls back", "pause": "pauses", "go_on": "goes on"}
    lines: list[RenderableType] = [
        f"[bold]{', '.join(spec.candidates)}[/]: begins when all replicas have loaded it",
        steps_table(rollout_document(spec)["steps"]),
    ]
    if spec.shadow:
        lines.append(f"shadow: the candidate scores {spec.shadow:g} % of the stable version's requests as well")
    if spec.holdout:
        lines.append(f"holdout: {spec.holdout:g} % of the users keep the stable version until the promotion")
    if spec.analysis is not None:
        names = ", ".join(metric.name for metric in spec.analysis.metrics)
        lines.append(
            f"analysis of {names}, from {spec.analysis.min_requests:,} requests on, alpha {spec.analysis.alpha:g}"
        )
        lines.append(f"a failure {words[spec.on_failure]}; without an outcome it {words[spec.on_inconclusive]}")
    lines += [f"tells {hook.url} of {', '.join(hook.events) or 'everything'}" for hook in spec.webhooks]
    end = "promoted" if len(spec.candidates) == 1 else "compared until one is promoted"
    lines.append(f"after the last step the candidate is {end}")
    return Group(*lines)


def number(value: float | None, missing: str = "") -> str:
    """A number in few digits."""
    return missing if value is None else f"{value:.4g}"


def when(at: float) -> str:
    """A time, in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at))


def size(num_bytes: int) -> str:
    """Bytes in a unit that fits."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def _end_of(step: "Mapping[str, Any] | Step") -> str:
    """When a step ends, in words; of the step's document."""
    assert isinstance(step, Mapping)
    pause, analysis = step.get("pause"), step.get("analysis")
    parts = ["when an operator resumes it"] if pause == "manual" else [f"after {_duration(pause)}"] if pause else []
    if analysis:
        longest = analysis.get("max") if isinstance(analysis, Mapping) else None
        parts.append("when its analysis passes" + (f", which has {_duration(longest)}" if longest else ""))
    return " and ".join(parts) or "at once"


def _duration(value: Any) -> str:
    if isinstance(value, str):
        return value
    seconds = float(value)
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _verdict_line(version: str, verdict: Mapping[str, Any]) -> Text:
    reason = f": {verdict['reason']}" if verdict.get("reason") else ""
    return Text.from_markup(f"{version} against stable: {_colored(verdict['outcome'])}{escape(reason)}")


def _colored(word: str) -> str:
    color = _COLORS.get(word)
    return f"[{color}]{word}[/]" if color else word


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(
            column, justify="right" if column in _NUMBERS else "left", no_wrap=column in ("version", "rollout")
        )
    return table
