from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.errors import VersionNotFoundError
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import RequestError
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway.problems import kind_of
from rankhouse.serving.gateway.served_model import ServedModel, check_finite
from tests.serving.gateway.bad_requests import BAD_REQUESTS, BadRequest
from tests.serving.small_version import FEATURES, MODEL

# JSON and protobuf refuse these before the model sees them.
DECODED = {name: bad for name, bad in BAD_REQUESTS.items() if "finite" not in bad.message}


@pytest.fixture
def model(served_store: Path, served_version: Version) -> ServedModel:
    return ServedModel.open(served_store, MODEL, served_version.name)


def test_a_model_describes_what_it_takes(model: ServedModel, served_version: Version) -> None:
    description = model.description([served_version.name], max_candidates=50)
    assert [feature.name for feature in description.features] == [feature.name for feature in FEATURES]
    assert description.versions == [served_version.name]
    assert model.raw_batch(ScoreRequest(**description.example), max_candidates=50).num_rows == 2


def test_the_context_is_part_of_every_row(model: ServedModel) -> None:
    request = ScoreRequest(context={"city": "oslo", "age": 4}, candidates=[{"home": "rome"}, {}])
    raw = model.raw_batch(request, max_candidates=2)
    assert raw.text_values.tolist() == [b"oslo", b"rome", b"oslo"]
    assert raw.float_values[:, 0].tolist() == [4.0, 4.0]


@pytest.mark.parametrize("bad", DECODED.values(), ids=DECODED)
def test_a_wrong_request_is_refused(model: ServedModel, bad: BadRequest) -> None:
    with pytest.raises(RequestError) as caught:
        model.raw_batch(ScoreRequest(**bad.request), max_candidates=50)
    assert (kind_of(caught.value).slug, caught.value.path) == (bad.kind, bad.path)
    assert bad.message in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(RequestError, match="expected a finite number"):
        check_finite(value, "context.price")


def test_a_version_that_is_not_there_is_refused(served_store: Path, served_version: Version) -> None:
    with pytest.raises(VersionNotFoundError):
        ServedModel.open(served_store, MODEL, "000099-00000000")
    with pytest.raises(VersionNotFoundError):
        ServedModel.open(served_store, "another")
