from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.raw_data import prepare
from rankhouse.training.errors import FeatureSpecError, PreprocessError, RawFileError
from tests.training.tiny_dataset import write_tiny_dataset

SPEC = """
name: small
label: label
features:
  - {name: age, kind: continuous}
  - {name: shop, kind: categorical, dim: 4}
"""
NUM_ROWS = 55


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    path = tmp_path / "logs.tsv"
    path.write_text("".join(f"{row % 2}\t{row}\tshop{row % 5}\n" for row in range(NUM_ROWS)))
    return path


def test_a_prepared_dataset_is_used_as_it_is(tmp_path: Path) -> None:
    dataset = write_tiny_dataset(tmp_path / "tiny")
    assert prepare(dataset, spec="none", folder=tmp_path / "prepared", say=print) == dataset
    assert not (tmp_path / "prepared").exists()


def test_raw_logs_are_prepared_once_with_the_last_tenth_held_out(tmp_path: Path, spec: Path, logs: Path) -> None:
    said: list[str] = []
    first = prepare(logs, spec=spec, folder=tmp_path / "prepared", say=said.append)
    assert first.name.startswith("logs-")
    dataset = PreparedDataset.open(first)
    assert {name: split.num_rows for name, split in dataset.splits.items()} == {"train": 50, "valid": 5}
    ages = {
        name: pa.concat_tables([pq.read_table(first / file.name) for file in split.files])["age"].to_pylist()
        for name, split in dataset.splits.items()
    }
    # They are normalized, which keeps their order.
    assert ages["train"] + ages["valid"] == sorted(ages["train"] + ages["valid"])
    said.clear()
    assert prepare(logs, spec=spec, folder=tmp_path / "prepared", say=said.append) == first
    assert said == [f"{logs} was prepared before: {first}"]
    assert [path.name for path in (tmp_path / "prepared").iterdir()] == [first.name]


def test_changed_logs_and_another_spec_are_prepared_anew(tmp_path: Path, spec: Path, logs: Path) -> None:
    def fingerprint() -> str:
        return prepare(logs, spec=spec, folder=tmp_path / "prepared", say=lambda _: None).name

    first = fingerprint()
    logs.write_text(logs.read_text() * 2)
    second = fingerprint()
    spec.write_text(SPEC.replace("dim: 4", "dim: 8"))
    assert len({first, second, fingerprint()}) == 3


def test_raw_logs_may_extend_what_was_prepared_before(tmp_path: Path, spec: Path, logs: Path) -> None:
    folder, said = tmp_path / "prepared", []
    first = prepare(logs, spec=spec, folder=folder, say=said.append)
    later = tmp_path / "later.tsv"
    later.write_text("".join(f"{row % 2}\t{row}\tshop{row % 7}\n" for row in range(NUM_ROWS)))
    second = prepare(later, spec=None, folder=folder, say=said.append, extends=first)
    assert said[-1] != f"{later} was prepared before: {second}"
    before, after = PreparedDataset.open(first), PreparedDataset.open(second)
    assert (len(before.layers), len(after.layers)) == (1, 2)
    assert after.layers[0].read_bytes() == before.layers[0].read_bytes()
    assert after.tables["shop"].num_rows == before.tables["shop"].num_rows + 2
    assert {name: split.num_rows for name, split in after.splits.items()} == {"train": 50, "valid": 5}
    # Once for each dataset that is extended.
    assert prepare(later, spec=None, folder=folder, say=said.append, extends=first) == second
    assert said[-1] == f"{later} was prepared before: {second}"
    assert prepare(later, spec=None, folder=folder, say=said.append, extends=second) != second


def test_the_same_last_layer_over_another_fit_is_something_else(tmp_path: Path, spec: Path) -> None:
    made = []
    for shops in ("ab", "ba"):
        logs, again = (tmp_path / f"{shops}-{day}.tsv" for day in (1, 2))
        for file in (logs, again):
            file.write_text("".join(f"{row % 2}\t{row}\t{shops[row % 3 % 2]}\n" for row in range(NUM_ROWS)))
        fitted = prepare(logs, spec=spec, folder=tmp_path / "prepared", say=print)
        made.append(prepare(again, spec=None, folder=tmp_path / "prepared", say=print, extends=fitted))
    one, other = (PreparedDataset.open(path).layers for path in made)
    assert one[0].read_bytes() != other[0].read_bytes()
    assert one[1].read_bytes() == other[1].read_bytes()
    later = tmp_path / "later.tsv"
    later.write_text(logs.read_text())
    names = {prepare(later, spec=None, folder=tmp_path / "prepared", say=print, extends=path).name for path in made}
    assert len(names) == 2


def test_another_spec_than_that_of_what_is_extended_is_refused(tmp_path: Path, spec: Path, logs: Path) -> None:
    first = prepare(logs, spec=spec, folder=tmp_path / "prepared", say=print)
    spec.write_text(SPEC.replace("dim: 4", "dim: 8"))
    with pytest.raises(PreprocessError, match="was made with another feature spec"):
        prepare(logs, spec=spec, folder=tmp_path / "prepared", say=print, extends=first)


def test_a_wrong_row_is_named_and_leaves_nothing_behind(tmp_path: Path, spec: Path, logs: Path) -> None:
    logs.write_text(logs.read_text() + "1\told\tshop1\n")
    with pytest.raises(RawFileError, match=r"logs\.tsv, row 56, column 'age'"):
        prepare(logs, spec=spec, folder=tmp_path / "prepared", say=print)
    assert not list((tmp_path / "prepared").iterdir())


def test_too_few_rows_to_hold_some_out_are_refused(tmp_path: Path, spec: Path, logs: Path) -> None:
    logs.write_text("1\t2\tshop\n" * 9)
    with pytest.raises(RawFileError, match="has 9 rows; expected at least 10"):
        prepare(logs, spec=spec, folder=tmp_path / "prepared", say=print)


def test_a_missing_file_is_refused(tmp_path: Path, spec: Path) -> None:
    with pytest.raises(RawFileError, match="is no file"):
        prepare(tmp_path / "nothing.tsv", spec=spec, folder=tmp_path / "prepared", say=print)


def test_an_unknown_feature_spec_is_refused(tmp_path: Path, logs: Path) -> None:
    with pytest.raises(FeatureSpecError, match="no feature spec 'ctireo': give a YAML file, or one of criteo"):
        prepare(logs, spec="ctireo", folder=tmp_path / "prepared", say=print)
