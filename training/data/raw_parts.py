"""Raw logs in parts of one size, and what a split's description says of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from rankhouse.training.data.feature_spec import AnyFeature, FeatureSpec
from rankhouse.training.data.prepared import Split, SplitFile
from rankhouse.training.data.raw_sample import NUM_SAMPLED_ROWS, save_raw_sample
from rankhouse.training.data.readers import read_raw, read_rows
from rankhouse.training.errors import PreprocessError

# What a file of a prepared split holds, and what one worker has in memory at a time.
_PART_ROWS = 131_072


def read_parts(path: Path | str, spec: FeatureSpec) -> Iterator[pa.Table]:
    """Reads raw logs as `read_raw` does, cut anew: each table has `_PART_ROWS` rows, and only the last has less.

    Raises:
        RawFileError: A file is missing or wrong.
        PreprocessError: There are no rows.
    """
    pending: list[pa.Table] = []
    num_rows = 0
    found = False
    for table in read_raw(path, spec):
        pending.append(table)
        num_rows += table.num_rows
        while num_rows >= _PART_ROWS:
            joined = pa.concat_tables(pending)
            yield joined.slice(0, _PART_ROWS)
            pending = [joined.slice(_PART_ROWS)]
            num_rows -= _PART_ROWS
            found = True
    if num_rows:
        yield pa.concat_tables(pending)
    elif not found:
        raise PreprocessError(f"{path} has no rows")


def sample(split: Path, path: Path | str, spec: FeatureSpec) -> None:
    """Makes a split's folder and puts the first rows of its raw logs into it.

    Raises:
        RawFileError: A file is missing or wrong.
    """
    split.mkdir()
    save_raw_sample(split, read_rows(path, spec, NUM_SAMPLED_ROWS))


class RawStatistics:
    """Counts rows, clicks and missing values of a split, part by part. For one thread."""

    def __init__(self, spec: FeatureSpec) -> None:
        self._spec = spec
        self._missing: Counter[str] = Counter()
        self._positives = 0
        self._newest_event: float | None = None
        self.num_rows = 0

    def add(self, table: pa.Table) -> None:
        """Counts a part."""
        for feature in self._spec.features:
            self._missing[feature.name] += _num_missing(table[feature.name], feature)
        self._positives += int(pc.sum(table[self._spec.label]).as_py())
        if self._spec.timestamp:
            newest = pc.max(table[self._spec.timestamp]).as_py()
            self._newest_event = max((time for time in (self._newest_event, newest) if time is not None), default=None)
        self.num_rows += table.num_rows

    @property
    def missing_rates(self) -> dict[str, float]:
        """For each feature the share of rows without a value."""
        return {feature.name: self._missing[feature.name] / self.num_rows for feature in self._spec.features}

    def split(self, files: Sequence[SplitFile]) -> Split:
        """Describes the split, whose rows lie transformed in `files`.

        Raises:
            PreprocessError: The spec names a timestamp, and no row has one.
        """
        if self._spec.timestamp and self._newest_event is None:
            raise PreprocessError(
                f"the timestamp {self._spec.timestamp!r} has no value in any row; take it out of the feature spec"
            )
        return Split(tuple(files), self._positives / self.num_rows, self.missing_rates, self._newest_event)


def _num_missing(column: pa.ChunkedArray, feature: AnyFeature) -> int:
    missing = pc.equal(pc.list_value_length(column), 0) if feature.is_list else pc.is_null(column)
    return int(pc.sum(missing).as_py() or 0)
