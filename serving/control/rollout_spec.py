"""What a rollout is to do, as users write it: YAML to RolloutSpec, with every mistake named by its place."""

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import msgspec
import yaml

from rankhouse.embedding_cache.format.version_record import is_version_name
from rankhouse.serving.analysis.spec import LIMITS, AnalysisSpec, MetricSpec
from rankhouse.serving.control.spec_section import Section, duration_seconds, one_of, shown
from rankhouse.serving.control.states import EVENT_KINDS
from rankhouse.serving.control.webhook_urls import url_fault
from rankhouse.serving.errors import RolloutSpecError

LATEST = "latest"
MAX_STEPS = 100
MAX_CANDIDATES = 8
MAX_METRICS = 50
MAX_WEBHOOKS = 20
SECRET_PREFIX = "WEBHOOK_SECRET"

_KEYS = (
    *("candidate", "candidates", "steps", "shadow", "holdout", "analysis", "on_failure", "on_inconclusive", "webhooks"),
    *("ready_within", "may_shrink"),
)


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step of a rollout.

    Attributes:
        weight: Percent of all buckets that each candidate gets; 100 is all but the holdout.
        pause_seconds: How long the step takes at least.
        is_manual: The step ends only by `resume`.
        analysis_seconds: The step ends when the analysis passes, and is inconclusive after this time; None: it does not
            wait for a pass.
    """

    weight: float
    pause_seconds: float = 0.0
    is_manual: bool = False
    analysis_seconds: float | None = None


class Webhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is told of a rollout's events.

    Attributes:
        url: Gets a POST for each event.
        events: Kinds of events (states.EVENT_KINDS); empty means all of this rollout.
        secret_env: The variable whose value signs the body; its name begins with WEBHOOK_SECRET. Empty: not signed.
    """

    url: str
    events: tuple[str, ...] = ()
    secret_env: str = ""


class RolloutSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rollout is to do.

    Attributes:
        candidates: The versions; one that is to become stable, or several that are compared. `latest` has to be
            resolved before a rollout of it starts.
        steps: In order.
        shadow: Percent of the stable version's requests that each candidate scores as well, off the path.
        holdout: Percent of the buckets that no candidate gets before its promotion.
        analysis: How candidates are judged; None: not at all.
        on_failure: What a failed analysis does, or the end of the wait for replicas.
        on_inconclusive: What an analysis without an outcome does when its time is over.
        webhooks: Who is told.
        ready_seconds: How long the rollout waits for all replicas to have its candidates.
        may_shrink: A step may have less weight than the one before it.
    """

    candidates: tuple[str, ...]
    steps: tuple[Step, ...]
    shadow: float = 0.0
    holdout: float = 0.0
    analysis: AnalysisSpec | None = None
    on_failure: Literal["roll_back", "pause"] = "roll_back"
    on_inconclusive: Literal["pause", "roll_back", "go_on"] = "pause"
    webhooks: tuple[Webhook, ...] = ()
    ready_seconds: float = 600.0
    may_shrink: bool = False

    @property
    def max_weight(self) -> float:
        """The most percent that all candidates have together in any step; the holdout is not taken off."""
        return max(step.weight for step in self.steps) * len(self.candidates)

    def with_candidates(self, *versions: str) -> "RolloutSpec":
        """The same for other versions: `latest` resolved, or a template filled.

        Raises:
            RolloutSpecError: They are not versions' names, twice the same, or too many for the weights.
        """
        return checked(msgspec.structs.replace(self, candidates=versions))


def read_rollout(text: str) -> RolloutSpec:
    """Reads a rollout of its YAML.

    Raises:
        RolloutSpecError: It is not YAML, or a key or value does not work.
    """
    try:
        document = yaml.load(text, _PlainLoader)
    except RecursionError as exc:
        raise RolloutSpecError("the rollout is not YAML that can be read: it is nested too deeply") from exc
    except (yaml.YAMLError, ValueError) as exc:  # ValueError: what looks like a date, and is none.
        raise RolloutSpecError(f"the rollout is not YAML: {exc}") from exc
    return parse_rollout(document)


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases: a few lines of them are a document of gigabytes once it is printed."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*name); write out what it stands for")
        return super().compose_node(parent, index)


def parse_rollout(document: object, *, is_template: bool = False) -> RolloutSpec:
    """Reads a rollout of its document: what YAML or JSON gives.

    Args:
        document: A mapping.
        is_template: It has no candidate of its own: a refresh policy fills it for each version.

    Raises:
        RolloutSpecError: A key or value does not work.
    """
    section = Section(document, "", _KEYS[2:] if is_template else _KEYS)
    steps = tuple(_step(item, f"steps[{index}]") for index, item in enumerate(section.items("steps")))
    analysis = None if section.raw("analysis") is None else _analysis(section.raw("analysis"))
    max_seconds = 3600.0 if analysis is None else analysis.max_seconds
    spec = RolloutSpec(
        candidates=(LATEST,) if is_template else _candidates(section),
        steps=tuple(_with_default(step, max_seconds) for step in steps),
        shadow=section.number("shadow", 0.0, low=0.0, high=100.0),
        holdout=section.number("holdout", 0.0, low=0.0, high=50.0),
        analysis=analysis,
        on_failure=cast(Any, section.choice("on_failure", "roll_back", ("roll_back", "pause"))),
        on_inconclusive=cast(Any, section.choice("on_inconclusive", "pause", ("pause", "roll_back", "go_on"))),
        webhooks=parse_webhooks(section),
        ready_seconds=section.duration("ready_within", 600.0),
        may_shrink=section.flag("may_shrink", default=False),
    )
    return checked(spec)


def checked(spec: RolloutSpec) -> RolloutSpec:
    """A spec that holds together, whoever made it.

    Raises:
        RolloutSpecError: Names the place and the fix.
    """
    _check_candidates(spec)
    _check_steps(spec)
    _check_percent(spec.holdout, "holdout")
    return spec


def parse_webhooks(section: Section) -> tuple[Webhook, ...]:
    """Reads the key `webhooks` of a section.

    Raises:
        RolloutSpecError: A key or value does not work.
    """
    items = section.items("webhooks")
    if len(items) > MAX_WEBHOOKS:
        raise RolloutSpecError(f"{section.place('webhooks')} has {len(items)} entries; give at most {MAX_WEBHOOKS}")
    return tuple(_webhook(item, section.place(f"webhooks[{index}]")) for index, item in enumerate(items))


def webhook_documents(webhooks: tuple[Webhook, ...]) -> list[dict[str, Any]]:
    """The list that `parse_webhooks` makes the same webhooks of."""
    return [_webhook_document(webhook) for webhook in webhooks]


def rollout_document(spec: RolloutSpec, *, is_template: bool = False) -> dict[str, Any]:
    """The document that `parse_rollout` makes the same spec of, without what is left at its default."""
    document: dict[str, Any] = {}
    if len(spec.candidates) > 1:
        document["candidates"] = list(spec.candidates)
    elif not is_template:
        document["candidate"] = spec.candidates[0]
    document["steps"] = [_step_document(step) for step in spec.steps]
    defaults = RolloutSpec(candidates=spec.candidates, steps=spec.steps)
    for key in ("shadow", "holdout", "on_failure", "on_inconclusive", "may_shrink"):
        if getattr(spec, key) != getattr(defaults, key):
            document[key] = getattr(spec, key)
    if spec.ready_seconds != defaults.ready_seconds:
        document["ready_within"] = spec.ready_seconds
    if spec.analysis is not None:
        analysis = spec.analysis
        metrics = [_metric_document(metric) for metric in analysis.metrics]
        document["analysis"] = {
            "alpha": analysis.alpha,
            "min_requests": analysis.min_requests,
            "max": analysis.max_seconds,
            "metrics": metrics,
        }
    if spec.webhooks:
        document["webhooks"] = webhook_documents(spec.webhooks)
    return document


def _metric_document(metric: MetricSpec) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(metric)
    defaults = {"event": "click", "dry_run": False}
    return {key: value for key, value in values.items() if value is not None and value != defaults.get(key)}


def _webhook_document(webhook: Webhook) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(webhook)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in document.items() if value}


def _step_document(step: Step) -> dict[str, Any]:
    document: dict[str, Any] = {"weight": step.weight}
    if step.is_manual:
        document["pause"] = "manual"
    elif step.pause_seconds:
        document["pause"] = step.pause_seconds
    if step.analysis_seconds is not None:
        document["analysis"] = {"max": step.analysis_seconds}
    return document


def _candidates(section: Section) -> tuple[str, ...]:
    if ("candidate" in section) == ("candidates" in section):
        raise RolloutSpecError("give either candidate (one version) or candidates (a list of versions)")
    if "candidate" in section:
        return (section.text("candidate"),)
    for index, item in enumerate(items := section.items("candidates")):
        if not isinstance(item, str):
            raise RolloutSpecError(f"candidates[{index}] is {shown(item)}; expected a version's name")
    return tuple(items)


def _step(item: object, place: str) -> Step:
    section = Section(item, place, ("weight", "pause", "analysis"))
    if "weight" not in section:
        raise RolloutSpecError(
            f"{place} has no weight: the percent of requests that the candidate answers in this step"
        )
    weight = section.number("weight", 0.0, low=0.0, high=100.0)
    pause, analysis = section.raw("pause"), section.raw("analysis")
    seconds: float | None = None
    if isinstance(analysis, Mapping):
        seconds = Section(analysis, f"{place}.analysis", ("max",)).duration("max", math.inf)
    elif analysis is not None and section.flag("analysis", default=False):
        seconds = math.inf  # The analysis' own time takes its place.
    if pause is None or pause == "manual":
        return Step(weight=weight, is_manual=pause == "manual", analysis_seconds=seconds)
    return Step(weight=weight, pause_seconds=duration_seconds(pause, place=f"{place}.pause"), analysis_seconds=seconds)


def _with_default(step: Step, max_seconds: float) -> Step:
    return msgspec.structs.replace(step, analysis_seconds=max_seconds) if step.analysis_seconds == math.inf else step


def _analysis(value: object) -> AnalysisSpec:
    section = Section(value, "analysis", ("alpha", "min_requests", "max", "metrics"))
    metrics = tuple(parse_metric(item, f"analysis.metrics[{i}]") for i, item in enumerate(section.items("metrics")))
    if not metrics or len(metrics) > MAX_METRICS:
        raise RolloutSpecError(f"analysis.metrics has {len(metrics)} entries; give 1 to {MAX_METRICS}")
    names = [metric.name for metric in metrics]
    for name in names:
        if names.count(name) > 1:
            raise RolloutSpecError(f"analysis.metrics has {name} twice: each metric has one limit")
    alpha = section.number("alpha", 0.05, low=1e-9, high=0.5)
    min_requests = int(section.number("min_requests", 1000, low=1, high=1e12))
    max_seconds = section.duration("max", 3600.0)
    try:
        return AnalysisSpec(metrics=metrics, min_requests=min_requests, max_seconds=max_seconds, alpha=alpha)
    except ValueError as exc:
        raise RolloutSpecError(f"analysis: {exc}") from exc


def parse_metric(item: object, place: str) -> MetricSpec:
    """Reads a metric with its limit, of an analysis or a drift monitor.

    Raises:
        RolloutSpecError: A key or value does not work.
    """
    section = Section(item, place, ("name", *LIMITS, "event", "dry_run"))
    given = [limit for limit in LIMITS if limit in section]
    if len(given) != 1:
        raise RolloutSpecError(f"{place} has {len(given)} limits; give one of {', '.join(LIMITS)}")
    limit = section.number(given[0], 0.0, low=-1e12, high=1e12)
    event, dry_run = section.text("event", "click"), section.flag("dry_run", default=False)
    try:
        return MetricSpec(section.text("name"), event=event, dry_run=dry_run, **{given[0]: limit})
    except ValueError as exc:  # The analysis knows its metrics.
        raise RolloutSpecError(f"{place}: {exc}") from exc


def _webhook(item: object, place: str) -> Webhook:
    section = Section(item, place, ("url", "events", "secret_env"))
    url = section.text("url")
    if fault := url_fault(url):
        raise RolloutSpecError(f"{place}.url {fault}")
    events = tuple(one_of(event, EVENT_KINDS, place=f"{place}.events") for event in section.items("events"))
    secret_env = section.text("secret_env", "")
    if secret_env and not secret_env.startswith(SECRET_PREFIX):  # Else any variable of the gateway's could be used up.
        raise RolloutSpecError(f"{place}.secret_env is {shown(secret_env)}; its name has to begin with {SECRET_PREFIX}")
    return Webhook(url=url, events=events, secret_env=secret_env)


def _check_candidates(spec: RolloutSpec) -> None:
    if not 1 <= len(spec.candidates) <= MAX_CANDIDATES:
        raise RolloutSpecError(f"candidates has {len(spec.candidates)} versions; give 1 to {MAX_CANDIDATES}")
    for name in spec.candidates:
        if name != LATEST and not is_version_name(name):
            raise RolloutSpecError(
                f"the candidate {shown(name)} is no version's name; expected one like 000012-c873e97f"
            )
        if spec.candidates.count(name) > 1:
            raise RolloutSpecError(f"the candidate {name} is given twice")


def _check_steps(spec: RolloutSpec) -> None:
    if not 1 <= len(spec.steps) <= MAX_STEPS:
        raise RolloutSpecError(f"steps has {len(spec.steps)} entries; give 1 to {MAX_STEPS}")
    before = 0.0
    for index, step in enumerate(spec.steps):
        _check_percent(step.weight, f"steps[{index}].weight")
        if step.weight < before and not spec.may_shrink:
            raise RolloutSpecError(
                f"steps[{index}].weight is {step.weight:g} after {before:g}: fewer users would keep the candidate; "
                "raise it, or give may_shrink: true"
            )
        if step.analysis_seconds is not None and spec.analysis is None:
            raise RolloutSpecError(f"steps[{index}] waits for an analysis, but the rollout has none: give analysis")
        before = step.weight
    if spec.max_weight > (most := 100.0 if len(spec.candidates) == 1 else 100.0 - spec.holdout):
        raise RolloutSpecError(
            f"{len(spec.candidates)} candidates of {max(step.weight for step in spec.steps):g} % each take "
            f"{spec.max_weight:g} % of the buckets; with a holdout of {spec.holdout:g} % there are {most:g} %"
        )
    for index, step in enumerate(spec.steps):
        if 100.0 - spec.holdout < step.weight < 100.0:
            raise RolloutSpecError(
                f"steps[{index}].weight is {step.weight:g}, which takes from the holdout of {spec.holdout:g} %; "
                f"give at most {100.0 - spec.holdout:g}, or 100 for all but the holdout"
            )


def _check_percent(value: float, place: str) -> None:
    if abs(value * 100 - round(value * 100)) > 1e-6:
        raise RolloutSpecError(f"{place} is {value:g}; a bucket is 0.01 %, so give two decimals at most")
