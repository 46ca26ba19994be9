import msgspec
import pytest

from rankhouse.serving.analysis.errors import AnalysisSpecError
from rankhouse.serving.analysis.spec import LIMITS, METRICS, AnalysisSpec, MetricSpec


@pytest.mark.parametrize(("name", "limit"), [(name, limit) for name in METRICS for limit in METRICS[name]])
def test_each_metric_takes_its_limits(name: str, limit: str) -> None:
    metric = MetricSpec(name, **{limit: 0.5})
    assert (metric.limit_kind, metric.limit) == (limit, 0.5)


@pytest.mark.parametrize(
    ("name", "limit"), [(name, limit) for name in METRICS for limit in LIMITS if limit not in METRICS[name]]
)
def test_no_metric_takes_another_limit(name: str, limit: str) -> None:
    with pytest.raises(AnalysisSpecError, match=f"{name} has the limits {limit}; give one of"):
        MetricSpec(name, **{limit: 0.5})


def test_an_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(AnalysisSpecError, match="did you mean latency_p99"):
        MetricSpec("latency_p999", max_ratio=1.2)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "has the limits none"),
        ({"max_increase": 0.1, "max_ratio": 2.0}, "max_increase, max_ratio"),
        ({"max_increase": -0.1}, "expected a number from 0"),
        ({"max_increase": float("nan")}, "expected a number from 0"),
    ],
)
def test_one_limit_is_given(limits: dict[str, float], message: str) -> None:
    with pytest.raises(AnalysisSpecError, match=message):
        MetricSpec("error_rate", **limits)


def test_a_loss_is_a_share() -> None:
    with pytest.raises(AnalysisSpecError, match="a share of the stable version's value"):
        MetricSpec("ctr", max_loss=5.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"alpha": 0.0}, "alpha is 0"),
        ({"alpha": 0.9}, "alpha is 0.9"),
        ({"min_requests": 0}, "min_requests is 0"),
        ({"max_seconds": 0.0}, "max_seconds 0"),
        ({"metrics": (MetricSpec("ctr", max_loss=0.1), MetricSpec("ctr", min_value=0.1))}, "ctr stands twice"),
    ],
)
def test_an_analysis_checks_itself(values: dict[str, object], message: str) -> None:
    with pytest.raises(AnalysisSpecError, match=message):
        AnalysisSpec(**values)


def test_a_metric_may_be_asked_of_several_events() -> None:
    metrics = tuple(MetricSpec("ctr", max_loss=0.1, event=event) for event in ("click", "order"))
    assert AnalysisSpec(metrics=metrics).metrics == metrics


def test_specs_travel_as_json_and_are_checked_again() -> None:
    spec = AnalysisSpec(metrics=(MetricSpec("ctr", max_loss=0.1),))
    content = msgspec.json.encode(spec)
    assert msgspec.json.decode(content, type=AnalysisSpec) == spec
    with pytest.raises(msgspec.ValidationError, match="did you mean ctr"):
        msgspec.json.decode(content.replace(b'"ctr"', b'"cttr"'), type=AnalysisSpec)
