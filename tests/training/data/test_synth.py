import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import roc_auc_score

from rankhouse.training.data import synth
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.readers import read_raw
from rankhouse.training.data.synth import read_facts, synthesize
from rankhouse.training.data.teacher import CATEGORICAL, Teacher
from rankhouse.training.errors import SynthesisError

CRITEO = FeatureSpec.load(Path(__file__).parents[3] / "training/data/specs/criteo.yaml")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synth, "_CHUNK_ROWS", 1000)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("name", "file_format"), [("x.tsv", "tsv"), ("x.tsv.gz", "tsv"), ("x.parquet", "parquet")])
def test_every_format_holds_the_same_rows(tmp_path: Path, name: str, file_format: str) -> None:
    facts = synthesize(tmp_path / name, num_rows=2500, file_format=file_format)  # type: ignore[arg-type]
    reference = tmp_path / "reference.parquet"
    assert facts == synthesize(reference, num_rows=2500, file_format="parquet")
    found = pa.concat_tables(read_raw(tmp_path / name, CRITEO))
    assert found.equals(pa.concat_tables(read_raw(reference, CRITEO)))
    assert found.num_rows == facts.num_rows == 2500
    assert sorted(path.name for path in tmp_path.iterdir() if name in path.name) == [name, f"{name}.teacher.json"]


@pytest.mark.usefixtures("small_chunks")
def test_the_facts_are_those_of_the_rows(tmp_path: Path) -> None:
    facts = synthesize(tmp_path / "x.parquet", num_rows=3000, seed=7, file_format="parquet")
    samples = [Teacher(0).sample(np.random.default_rng((7, 0, chunk)), 1000) for chunk in range(3)]
    labels, logits = (np.concatenate([getattr(sample, name) for sample in samples]) for name in ("labels", "logits"))
    assert pq.read_table(tmp_path / "x.parquet")["label"].to_pylist() == labels.astype(int).tolist()
    assert facts.best_auc == pytest.approx(roc_auc_score(labels, logits), abs=1e-4)
    assert facts.click_rate == labels.mean()
    assert read_facts(tmp_path / "x.parquet") == facts
    assert json.loads((tmp_path / "x.parquet.teacher.json").read_text())["day"] == 0


def test_the_best_auc_and_the_click_rate_are_as_planned() -> None:
    sample = Teacher(0).sample(np.random.default_rng(0), 100_000)
    assert roc_auc_score(sample.labels, sample.logits) == pytest.approx(0.807, abs=0.01)
    assert sample.labels.mean() == pytest.approx(0.25, abs=0.02)


def test_values_look_like_criteos() -> None:
    sample = Teacher(0).sample(np.random.default_rng(0), 20_000)
    distinct = [len(np.unique(ids)) for ids in sample.ids]
    assert min(distinct) == 3
    assert max(distinct) > 5_000
    for column, missing in zip(CATEGORICAL, sample.ids_missing, strict=True):
        assert missing.mean() == pytest.approx(column.missing_rate, abs=0.02)
    # Zipf: the most frequent of millions of ids is far from rare.
    assert np.unique(sample.ids[2], return_counts=True)[1].max() > 400
    assert sample.integers.min() == -3


def test_days_drift_and_bring_new_ids() -> None:
    first, same, later = (Teacher(day).sample(np.random.default_rng(0), 20_000) for day in (0, 0, 20))
    np.testing.assert_array_equal(first.ids, same.ids)
    large, small = 2, 8
    known = np.isin(later.ids[large], first.ids[large]).mean()
    assert 0.1 < known < 0.9
    assert np.isin(later.ids[small], first.ids[small]).all()
    assert np.median(later.integers[4]) > np.median(first.integers[4])


def test_the_teacher_is_a_function_of_the_values() -> None:
    """What one row's logit is depends on its raw values only: equal values, equal logits."""
    teacher = Teacher(3)
    sample = teacher.sample(np.random.default_rng(1), 2000)
    repeated = teacher.sample(np.random.default_rng(1), 2000)
    np.testing.assert_array_equal(sample.logits, repeated.logits)
    assert np.isfinite(sample.logits).all()


def test_ids_of_a_feature_never_collide() -> None:
    ranks = np.arange(CATEGORICAL[2].cardinality)
    assert len(np.unique(Teacher(0)._ids(2, ranks))) == len(ranks)


@pytest.mark.parametrize("wrong", [{"num_rows": 0}, {"num_rows": 1, "day": 256}, {"num_rows": 1, "seed": -1}])
def test_impossible_numbers_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(SynthesisError, match="rows are 1 or more"):
        synthesize(tmp_path / "x.tsv", **wrong)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SynthesisError, match="cannot be written"):
        synthesize(tmp_path / "file" / "x.tsv", num_rows=1)
