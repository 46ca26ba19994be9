from rankhouse.serving.gateway.metrics import Metrics


def test_time_series_end_with_their_version() -> None:
    metrics = Metrics("small", lambda: 0.0)
    for version in ("000001-aaaaaaaa", "000002-bbbbbbbb"):
        metrics.observe_request("rest", version=version, arm="stable", status=200, seconds=0.01)
        metrics.observe_request("grpc", version=version, arm="candidate", status=503, seconds=0.01)
        metrics.observe_answer(version, 4, is_degraded=False)
        metrics.observe_ids(version, 1, 8)
        metrics.observe_shadow(version, "dropped")
    metrics.forget("000001-aaaaaaaa")
    text = metrics.text().decode()
    assert "000001-aaaaaaaa" not in text
    assert text.count("000002-bbbbbbbb") > 40
    metrics.observe_answer("000001-aaaaaaaa", 4, is_degraded=True)
    metrics.observe_ids("000001-aaaaaaaa", 3, 8)
    for name, count in (("degraded_answers", 1), ("values", 8), ("unknown_values", 3)):
        line = f'rankhouse_{name}_total{{model="small",version="000001-aaaaaaaa"}} {count}.0'
        assert line in metrics.text().decode()


def test_an_unknown_version_has_nothing_to_forget() -> None:
    Metrics("small", lambda: 0.0).forget("000001-aaaaaaaa")


def test_a_request_without_a_version_is_counted() -> None:
    metrics = Metrics("small", lambda: 0.0)
    metrics.observe_request("rest", version="", arm="", status=400, seconds=0.01)
    line = 'rankhouse_requests_total{arm="",model="small",protocol="rest",status="400",version=""} 1.0'
    assert line in metrics.text().decode()
