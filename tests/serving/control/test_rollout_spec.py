"""Rollouts as users write them: what is read, and how mistakes are told."""

from typing import Any

import pytest
import yaml

from rankhouse.serving.control.model_state import RefreshPolicy
from rankhouse.serving.control.refresh_policy import parse_policy, policy_document
from rankhouse.serving.control.rollout_spec import Step, Webhook, parse_rollout, read_rollout, rollout_document
from rankhouse.serving.control.spec_section import duration_seconds
from rankhouse.serving.errors import RolloutSpecError

WHOLE = """
candidate: 000012-c873e97f
steps: [{weight: 5, pause: 10m}, {weight: 25, analysis: {max: 2h}}, {weight: 50, pause: manual}, {weight: 100}]
shadow: 10
holdout: 1
analysis: {alpha: 0.01, min_requests: 500, max: 30m, metrics: [{name: error_rate, max_increase: 0.001}]}
on_failure: pause
on_inconclusive: go_on
webhooks: [{url: "https://example.com/x", events: [promoted, rolled_back], secret_env: WEBHOOK_SECRET_A}]
ready_within: 90s
"""
SMALL: dict[str, Any] = {"candidate": "000012-c873e97f", "steps": [{"weight": 5}, {"weight": 100}]}
METRICS = {"metrics": [{"name": "error_rate", "max_increase": 0.1}]}


def test_everything_that_can_be_said_is_read() -> None:
    spec = read_rollout(WHOLE)
    assert spec.candidates == ("000012-c873e97f",)
    assert spec.steps == (
        Step(5.0, pause_seconds=600.0),
        Step(25.0, analysis_seconds=7200.0),
        Step(50.0, is_manual=True),
        Step(100.0),
    )
    assert (spec.shadow, spec.holdout, spec.on_failure, spec.on_inconclusive) == (10.0, 1.0, "pause", "go_on")
    assert spec.analysis is not None
    assert (spec.analysis.alpha, spec.analysis.min_requests, spec.analysis.max_seconds) == (0.01, 500, 1800.0)
    hook = Webhook("https://example.com/x", ("promoted", "rolled_back"), "WEBHOOK_SECRET_A")
    assert (spec.webhooks, spec.ready_seconds) == ((hook,), 90.0)


def test_a_step_takes_the_time_of_the_analysis() -> None:
    spec = parse_rollout(SMALL | {"steps": [{"weight": 5, "analysis": True}], "analysis": {"max": "20m", **METRICS}})
    assert spec.steps[0].analysis_seconds == 1200.0


@pytest.mark.parametrize("text", [WHOLE, yaml.safe_dump(SMALL)])
def test_the_document_of_a_spec_gives_the_same_spec(text: str) -> None:
    spec = read_rollout(text)
    assert read_rollout(yaml.safe_dump(rollout_document(spec))) == spec


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("10m", 600.0), ("1h30m", 5400.0), ("500ms", 0.5), ("2d", 172800.0), ("1.5s", 1.5), (90, 90.0), (0.25, 0.25)],
)
def test_durations(value: object, seconds: float) -> None:
    assert duration_seconds(value, place="x") == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["10", "10 m", "m", "", "-5m", 0, -1, True, None, "10m!", float("inf"), float("nan")])
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(RolloutSpecError, match=r"^steps\[0\]\.pause is "):
        duration_seconds(value, place="steps[0].pause")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"candidat": "x"}, "unknown key 'candidat'; did you mean candidate"),
        ({"steps": [{"wieght": 5}]}, r"steps\[0\] has the unknown key 'wieght'; did you mean weight"),
        (
            {"steps": [{"weight": 5, "analysis": {"maximum": "1h"}}]},
            r"steps\[0\]\.analysis has the unknown key 'maximum'",
        ),
        ({"steps": []}, "steps has 0 entries; give 1 to 100"),
        ({"steps": [{"weight": 5}] * 101}, "steps has 101 entries"),
        ({"steps": [{}]}, r"steps\[0\] has no weight"),
        ({"steps": [5]}, r"steps\[0\] is 5; expected keys and values"),
        ({"steps": [{"weight": 101}]}, r"steps\[0\]\.weight is 101; expected a number from 0 to 100"),
        ({"steps": [{"weight": True}]}, r"steps\[0\]\.weight is True"),
        ({"steps": [{"weight": "5"}]}, r"steps\[0\]\.weight is '5'"),
        ({"steps": [{"weight": float("nan")}]}, r"steps\[0\]\.weight is nan"),
        ({"steps": [{"weight": 0.125}]}, r"steps\[0\]\.weight is 0\.125; a bucket is 0\.01 %"),
        ({"steps": [{"weight": 25}, {"weight": 5}]}, r"steps\[1\]\.weight is 5 after 25.*may_shrink"),
        ({"steps": [{"weight": 5, "pause": "soon"}]}, r"steps\[0\]\.pause is 'soon'; a duration is like"),
        ({"steps": [{"weight": 5, "analysis": True}]}, r"steps\[0\] waits for an analysis, but the rollout has none"),
        ({"holdout": 5, "steps": [{"weight": 97}]}, "takes from the holdout of 5 %; give at most 95, or 100"),
        ({"holdout": 51}, "holdout is 51; expected a number from 0 to 50"),
        ({"shadow": -1}, "shadow is -1"),
        ({"on_failure": "rollback"}, "on_failure is 'rollback'; did you mean roll_back"),
        ({"on_inconclusive": "fail"}, "on_inconclusive is 'fail'"),
        ({"may_shrink": "yes"}, "may_shrink is 'yes'; expected true or false"),
        ({"candidates": ["000013-c873e97f"]}, "give either candidate"),
        ({"candidate": "12"}, "the candidate '12' is no version's name"),
        ({"candidate": 12}, "candidate is 12; expected a text"),
        ({"analysis": {"alpha": 0.05}}, r"analysis\.metrics has 0 entries"),
        ({"analysis": {"alpha": 1, **METRICS}}, r"analysis\.alpha is 1; expected a number from 1e-09 to 0\.5"),
        ({"analysis": {"metrics": METRICS["metrics"] * 2}}, "analysis.metrics has error_rate twice"),
        ({"analysis": {"metrics": [{"name": "error_rate"}]}}, r"metrics\[0\] has 0 limits; give one of"),
        ({"analysis": {"metrics": [{"name": "ctr", "max_los": 1}]}}, "'max_los'; did you mean max_loss"),
        ({"webhooks": [{"url": "file:///etc/passwd"}]}, r"webhooks\[0\]\.url is no address; expected http"),
        ({"webhooks": [{"url": "http://x:port/"}]}, r"webhooks\[0\]\.url is no URL: Port could not be cast"),
        ({"webhooks": [{"url": "http://ann:pw@x/"}]}, r"webhooks\[0\]\.url has a user or password before its host"),
        ({"webhooks": [{"url": "http://x/…"}]}, r"webhooks\[0\]\.url ends with …, so it was copied .*give the whole"),
        ({"webhooks": [{"url": "http://x", "events": ["promotd"]}]}, "'promotd'; did you mean promoted"),
        ({"webhooks": [{"url": "http://x", "secret_env": "PATH"}]}, "has to begin with WEBHOOK_SECRET"),
        ({"webhooks": [{"url": "http://x"}] * 21}, "webhooks has 21 entries"),
        ({"webhooks": {"url": "http://x"}}, "webhooks is .* expected a list"),
        ({"ready_within": "0s"}, "ready_within is '0s'; a duration is more than 0"),
    ],
)
def test_mistakes_are_told_with_their_place(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RolloutSpecError, match=said):
        parse_rollout(SMALL | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"candidates": []}, "candidates has 0 versions; give 1 to 8"),
        ({"candidates": ["000012-c873e97f"] * 2}, "the candidate 000012-c873e97f is given twice"),
        ({"candidates": ["000012-c873e97f", 7]}, r"candidates\[1\] is 7"),
        ({"candidates": ["000012-c873e97f", "000013-c873e97f"]}, "2 candidates of 100 % each take 200 %"),
        ({"candidates": [f"0000{n}-c873e97f" for n in range(10, 19)]}, "candidates has 9 versions"),
    ],
)
def test_mistakes_with_several_candidates(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RolloutSpecError, match=said):
        parse_rollout({"steps": SMALL["steps"]} | changes)


@pytest.mark.parametrize("text", ["{", "- 1", "", "x", "candidate: [", "!!python/object:os.system {}"])
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(RolloutSpecError):
        read_rollout(text)


def test_long_values_are_cut_in_messages() -> None:
    with pytest.raises(RolloutSpecError) as caught:
        parse_rollout(SMALL | {"candidate": "x" * 100_000})
    assert len(str(caught.value)) < 300


def test_a_template_is_filled_with_a_version() -> None:
    policy = parse_policy({"admit": "rollout", "rollout": {"steps": SMALL["steps"]}, "keep_loaded_bytes": 10})
    assert policy.rollout is not None
    assert policy.rollout.with_candidates("000012-c873e97f") == parse_rollout(SMALL)
    assert parse_policy(policy_document(policy)) == policy


def test_policies_come_back_as_they_were() -> None:
    document = {"admit": "manual", "held": True, "webhooks": [{"url": "http://x"}], "drift": {"psi": 0.2}}
    policy = parse_policy(document)
    assert policy == RefreshPolicy("manual", is_held=True, webhooks=(Webhook("http://x"),), drift={"psi": 0.2})
    assert parse_policy(policy_document(policy)) == policy


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"admit": "derect"}, "admit is 'derect'; did you mean direct"),
        ({"admit": "rollout"}, "admit: rollout needs the key rollout"),
        ({"rollout": {"steps": SMALL["steps"]}}, "admit: rollout needs the key rollout"),
        ({"admit": "rollout", "rollout": SMALL}, "unknown key 'candidate'"),
        ({"keep_loaded_bytes": -1}, "keep_loaded_bytes is -1"),
        ({"drift": 5}, "drift is 5"),
        ([], "the document is"),
    ],
)
def test_policies_that_do_not_work_are_refused(document: object, said: str) -> None:
    with pytest.raises(RolloutSpecError, match=said):
        parse_policy(document)
