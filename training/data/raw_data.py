"""Raw logs given to `rankhouse train` directly: prepared once, with the last rows held out, and found again later."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rankhouse.embedding_cache.format.files import file_record
from rankhouse.embedding_cache.format.transform import JSON_NAME
from rankhouse.training.data.extend import extend
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.new_folder import Progress
from rankhouse.training.data.prepared import DATASET_NAME, PreparedDataset
from rankhouse.training.data.readers import find_files, read_raw
from rankhouse.training.errors import RawFileError

HELD_OUT_SHARE = 0.1
DEFAULT_SPEC = "criteo"

Say = Callable[[str], None]


def prepare(data: Path, *, spec: str | Path | None, folder: Path, say: Say, extends: Path | None = None) -> Path:
    """Returns the prepared dataset of what a user named: that dataset itself, or one made of raw logs.

    Logs are in the order of time, so the last tenth of the rows is held out as the split "valid". The dataset's name
    ends in a hash of the files' paths, sizes and times, of the feature spec, and of the fit and vocabularies that are
    extended: the same logs are prepared only once.

    Args:
        data: A prepared dataset, a raw file, a folder of raw files, or a pattern.
        spec: The feature spec of raw logs: a shipped one by name, or a YAML file; None is that of `extends`, or criteo.
        folder: Where prepared datasets are kept.
        say: Told what is done.
        extends: The prepared dataset whose fit raw logs keep, and whose vocabularies they extend; None fits anew.

    Raises:
        DataError: The feature spec or a raw file is wrong, or the spec is another than that of `extends`.
    """
    if (data / DATASET_NAME).is_file():
        return data
    known = PreparedDataset.open(extends) if extends is not None else None
    features = known.spec if known is not None and spec is None else FeatureSpec.load(spec or DEFAULT_SPEC)
    prepared = folder / f"{data.name.split('.')[0] or 'raw'}-{_fingerprint(data, features, known)}"
    if (prepared / DATASET_NAME).is_file():
        say(f"{data} was prepared before: {prepared}")
        return prepared
    say(f"preparing {data}: {prepared}" + (f", which extends {known.path}" if known is not None else ""))
    say(f"holding out the last {HELD_OUT_SHARE:.0%} of the rows")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".raw-", dir=folder) as temporary:
        splits = _hold_out(data, features, Path(temporary))
        if known is not None:
            extend(known.path, prepared, splits, spec=features, progress=Progress(on_stage=say))
        else:
            from rankhouse.training.data.preprocess import preprocess  # NVTabular takes seconds to import.

            preprocess(prepared, features, splits, progress=Progress(on_stage=say))
    return prepared


def _fingerprint(data: Path, spec: FeatureSpec, known: PreparedDataset | None) -> str:
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in find_files(data)]
    # All layers: one in which nothing changed is the same over any other.
    fit = [file_record(known.path / JSON_NAME), *known.layer_records] if known is not None else []
    checksums = [record.sha256 for record in fit]
    return hashlib.sha256(json.dumps([stats, spec.document(), *checksums]).encode()).hexdigest()[:8]


def _hold_out(data: Path, spec: FeatureSpec, folder: Path) -> dict[str, Path]:
    """Writes the rows as two folders of Parquet files, in their order, and returns the folders by split."""
    splits = {"train": folder / "train", "valid": folder / "valid"}
    for split in splits.values():
        split.mkdir()
    files: list[Path] = []
    for table in read_raw(data, spec):
        files.append(splits["train"] / f"part-{len(files):06d}.parquet")
        _write(table, files[-1])
    num_rows = sum(pq.read_metadata(file).num_rows for file in files)
    num_left = int(num_rows * HELD_OUT_SHARE)
    if not num_left:
        raise RawFileError(f"{data} has {num_rows} rows; expected at least {int(1 / HELD_OUT_SHARE)}, to hold some out")
    for file in reversed(files):
        table = pq.read_table(file)
        held_out = min(num_left, table.num_rows)
        file.rename(splits["valid"] / file.name)
        if held_out < table.num_rows:
            _write(table.slice(0, table.num_rows - held_out), file)
            _write(table.slice(table.num_rows - held_out), splits["valid"] / file.name)
        num_left -= held_out
        if not num_left:
            break
    return splits


def _write(table: pa.Table, file: Path) -> None:
    pq.write_table(table, file, compression="lz4")
