"""Synthetic logs in Criteo's layout, from a planted teacher, in constant memory for any number of rows."""

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rankhouse.training.data.teacher import CATEGORICAL, INTEGERS, Sample, Teacher
from rankhouse.training.errors import SynthesisError

LABEL = "label"
FACTS_SUFFIX = ".teacher.json"

_CHUNK_ROWS = 65_536
_LOGIT_BINS, _LOGIT_RANGE = 1 << 16, 16.0
_MAX_DAY = 255


@dataclass(frozen=True)
class Facts:
    """What is known of synthetic logs because they were planted.

    Attributes:
        num_rows: Rows.
        day: The day.
        seed: The seed of the rows.
        click_rate: Share of rows with label 1.
        best_auc: AUC of the true probabilities against the sampled labels: no model can expect more.
        best_log_loss: Mean log loss of the true probabilities.
    """

    num_rows: int
    day: int
    seed: int
    click_rate: float
    best_auc: float
    best_log_loss: float


def synthesize(
    path: Path | str,
    *,
    num_rows: int,
    day: int = 0,
    seed: int = 0,
    file_format: Literal["tsv", "parquet"] = "tsv",
    on_progress: Callable[[int], None] = lambda num_rows: None,
) -> Facts:
    """Writes a file of logs, and beside it what is known of them (`<path>.teacher.json`).

    Args:
        path: The file; with the ending .gz a TSV is compressed.
        num_rows: Rows.
        day: From 0 to 255; later days drift and bring new ids.
        seed: Other rows of the same teacher. A held-out file of the same day has another seed.
        file_format: "tsv" (no header, as Criteo's) or "parquet" (columns label, I1..I13, C1..C26).
        on_progress: Called with the number of rows written since the last call.

    Raises:
        SynthesisError: An impossible number of rows, day or seed, or the file cannot be written.
    """
    path = Path(path)
    if num_rows < 1 or not 0 <= day <= _MAX_DAY or seed < 0:
        raise SynthesisError(
            f"rows are 1 or more, days 0 to {_MAX_DAY}, seeds 0 or more; not {num_rows}, {day}, {seed}"
        )
    teacher = Teacher(day)
    scores = _ScoreHistogram()
    # The file gets its name when it is whole.
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _writer(unfinished, file_format, compressed=path.suffix == ".gz") as write:
                for chunk, first in enumerate(range(0, num_rows, _CHUNK_ROWS)):
                    count = min(_CHUNK_ROWS, num_rows - first)
                    sample = teacher.sample(np.random.default_rng((seed, day, chunk)), count)
                    write(_table(sample))
                    scores.add(sample)
                    on_progress(count)
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as exc:
        raise SynthesisError(f"{path} cannot be written: {exc}") from exc
    facts = Facts(num_rows, day, seed, scores.click_rate(), scores.auc(), scores.log_loss())
    path.with_name(path.name + FACTS_SUFFIX).write_text(json.dumps(asdict(facts), indent=1) + "\n", encoding="utf-8")
    return facts


def read_facts(path: Path | str) -> Facts | None:
    """What is known of a file of logs; None where it was not synthesized."""
    facts = Path(f"{path}{FACTS_SUFFIX}")
    return Facts(**json.loads(facts.read_text(encoding="utf-8"))) if facts.is_file() else None


class _ScoreHistogram:
    """Counts labels by logit, so that an AUC over any number of rows needs constant memory."""

    def __init__(self) -> None:
        self._counts = np.zeros((2, _LOGIT_BINS), dtype=np.int64)
        self._log_loss = 0.0

    def add(self, sample: Sample) -> None:
        bins = ((sample.logits / _LOGIT_RANGE + 1.0) * (_LOGIT_BINS / 2)).astype(np.int64).clip(0, _LOGIT_BINS - 1)
        for label in (0, 1):
            self._counts[label] += np.bincount(bins[sample.labels == label], minlength=_LOGIT_BINS)
        self._log_loss += float(np.logaddexp(0.0, np.where(sample.labels, -sample.logits, sample.logits)).sum())

    def auc(self) -> float:
        """The chance that a click has a higher logit than another row; rows of one bin count half. NaN without both."""
        negatives, positives = self._counts
        below = np.cumsum(negatives) - negatives
        wins = float((positives * (below + negatives / 2.0)).sum())
        pairs = float(negatives.sum()) * float(positives.sum())
        return wins / pairs if pairs else math.nan

    def click_rate(self) -> float:
        return float(self._counts[1].sum() / self._counts.sum())

    def log_loss(self) -> float:
        return self._log_loss / float(self._counts.sum())


@contextmanager
def _writer(path: Path, file_format: str, *, compressed: bool) -> Iterator[Callable[[pa.Table], None]]:
    schema = pa.schema(
        [(LABEL, pa.int32())]
        + [(column.name, pa.int64()) for column in INTEGERS]
        + [(column.name, pa.string()) for column in CATEGORICAL]
    )
    if file_format == "parquet":
        with pq.ParquetWriter(path, schema) as writer:
            yield writer.write_table
        return
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with (
        pa.output_stream(path, compression="gzip" if compressed else None) as stream,
        pyarrow.csv.CSVWriter(stream, schema, write_options=options) as writer,
    ):
        yield writer.write_table


def _table(sample: Sample) -> pa.Table:
    columns = {LABEL: pa.array(sample.labels.astype(np.int32))}
    for index, column in enumerate(INTEGERS):
        columns[column.name] = pa.array(sample.integers[index], mask=sample.integers_missing[index])
    for index, category in enumerate(CATEGORICAL):
        columns[category.name] = _hexadecimal(sample.ids[index], sample.ids_missing[index])
    return pa.table(columns)


# The four hexadecimal digits of each 16-bit number.
_DIGITS = np.frombuffer("".join(f"{number:04x}" for number in range(1 << 16)).encode(), dtype=np.uint32)


def _hexadecimal(ids: npt.NDArray[np.uint32], missing: npt.NDArray[np.bool_]) -> pa.StringArray:
    texts = np.stack([_DIGITS[ids >> np.uint32(16)], _DIGITS[ids & np.uint32(0xFFFF)]], axis=1)
    offsets = np.arange(0, 8 * len(ids) + 1, 8, dtype=np.int32)
    validity = pa.array(~missing).buffers()[1]
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(texts), validity)
