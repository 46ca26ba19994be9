"""What the trainer's own parts say of held-out rows: golden requests, statistics, and what a row type costs in AUC.

Transformed rows by NVTabular, the lookup op and TensorFlow; of the tables only the rows in use are read.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, score_bins
from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.embedding_cache.format.vocabulary import MISSING_ID, UNKNOWN_ID
from rankhouse.kernels import tf_ops
from rankhouse.training.auc import roc_auc
from rankhouse.training.data.lanes import NUM_LANES
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.raw_sample import load_raw_sample
from rankhouse.training.data.rows import Batch
from rankhouse.training.errors import AucUndefinedError, DatasetError, ExportError
from rankhouse.training.models.trained_model import TrainedModel
from rankhouse.training.ranks import Ranks

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

# Gives rows of a table the values with which serving will read them: (table, ids [n], rows [n, D]) -> rows [n, D].
AsServed = Callable[[str, Ids, Rows], Rows]

NUM_GOLDEN_ROWS = 64
NUM_AUC_ROWS = 65_536
# Enough for a histogram whose noise has a PSI of 0.001, and few enough that a delta's export does not wait for them.
NUM_STATISTICS_ROWS = 16_384
_AUC_BATCH_SIZE = 8192
_CANDIDATES_PER_REQUEST = 16


@dataclass(frozen=True)
class AucLoss:
    """What a row type costs.

    Attributes:
        num_rows: How many held-out rows were scored, the first ones.
        exact: The AUC with the checkpoint's rows.
        served: The AUC with the rows that serving will read.
    """

    num_rows: int
    exact: float
    served: float

    @property
    def loss(self) -> float:
        """How much lower the AUC is; negative if it is higher."""
        return self.exact - self.served


def golden_requests(
    trained: TrainedModel, *, as_served: AsServed | None = None, num_rows: int = NUM_GOLDEN_ROWS
) -> list[GoldenRequest]:
    """Makes requests of held-out raw rows, with the scores that the trainer gives to the same rows transformed.

    Args:
        trained: The model.
        as_served: What serving will read of the tables; None is the checkpoint's rows as they are.
        num_rows: How many raw rows, at most.

    Raises:
        DatasetError: The dataset has no held-out split, or no raw rows of it.
    """
    split = trained.run.config.data.valid_split
    folder = trained.dataset.split_folder(split)
    rows = load_raw_sample(folder)[:num_rows]
    if not rows:
        raise DatasetError(f"{folder} has no raw rows to make golden requests of; preprocess again")
    (batch,) = _held_out(trained, num_rows=len(rows), batch_size=len(rows))
    (scores,) = _scores(trained, batch, as_served)
    return [
        GoldenRequest(
            {"context": {}, "candidates": rows[begin : begin + _CANDIDATES_PER_REQUEST]},
            tuple(scores[begin : begin + _CANDIDATES_PER_REQUEST].tolist()),
        )
        for begin in range(0, len(rows), _CANDIDATES_PER_REQUEST)
    ]


def training_statistics(trained: TrainedModel, *, as_served: AsServed | None = None) -> TrainingStatistics:
    """Says what scores, labels and values look like in held-out rows from all parts of the split.

    Args:
        trained: The model.
        as_served: What serving will read of the tables; None is the checkpoint's rows as they are.

    Raises:
        DatasetError: The dataset has no held-out split.
    """
    split = trained.run.config.data.valid_split
    counts = {label: np.zeros(NUM_SCORE_BINS, np.int64) for label in (0, 1)}
    num_features = len(trained.dataset.spec.categorical)
    num_ids, num_unknown, score_sum = np.zeros(num_features), np.zeros(num_features), 0.0
    for batch in _held_out(trained, num_rows=NUM_STATISTICS_ROWS, batch_size=_AUC_BATCH_SIZE, num_lanes=NUM_LANES):
        (scores,) = _scores(trained, batch, as_served)
        # A model with scores that are no numbers is refused where its rows and golden requests are written.
        labels, scores = batch.labels[np.isfinite(scores)], scores[np.isfinite(scores)]
        score_sum += float(scores.sum(dtype=np.float64))
        for label, found in counts.items():
            found += np.bincount(score_bins(scores[labels == label]), minlength=NUM_SCORE_BINS)
        feature_of_id = np.repeat(np.arange(num_features), batch.lengths.sum(axis=1))
        num_ids += np.bincount(feature_of_id, minlength=num_features)
        num_unknown += np.bincount(feature_of_id[batch.ids == UNKNOWN_ID], minlength=num_features)
    names = [feature.name for feature in trained.dataset.spec.categorical]
    missing_rates = dict(trained.dataset.split(split).missing_rates)
    return TrainingStatistics(
        split=split,
        positives=counts[1],
        negatives=counts[0],
        score_sum=score_sum,
        missing_rate=sum(missing_rates.values()) / max(len(missing_rates), 1),
        unknown_rate=float(num_unknown.sum() / max(num_ids.sum(), 1)),
        missing_rates=missing_rates,
        unknown_rates=dict(zip(names, (num_unknown / np.maximum(num_ids, 1)).tolist(), strict=True)),
    )


def auc_loss(trained: TrainedModel, as_served: AsServed) -> AucLoss:
    """Compares the AUC of the rows that serving will read with that of the checkpoint's.

    Raises:
        DatasetError: The dataset has no held-out split.
        ExportError: The held-out rows have no AUC.
    """
    batches = _held_out(trained, num_rows=NUM_AUC_ROWS, batch_size=_AUC_BATCH_SIZE)
    parts = [(batch.labels, *_scores(trained, batch, None, as_served)) for batch in batches]
    labels, exact, served = (np.concatenate(column) for column in zip(*parts, strict=True))
    alone = Ranks(0, 1)  # Whoever exports has all rows, also where a launcher started several ranks.
    try:
        return AucLoss(len(labels), roc_auc(labels, exact, ranks=alone), roc_auc(labels, served, ranks=alone))
    except AucUndefinedError as exc:
        raise ExportError(
            f"what the row type costs cannot be measured on the first {len(labels)} rows of the split "
            f"{trained.run.config.data.valid_split!r}: {exc}; export in float32, or take any loss with --max-auc-loss 1"
        ) from exc


def _held_out(trained: TrainedModel, *, num_rows: int, batch_size: int, num_lanes: int = 1) -> Iterator[Batch]:
    """Reads the first rows of the held-out split, or of each lane of it, in batches of equal size but for the last.

    Their ids are those that serving will find.
    """
    split = trained.run.config.data.valid_split
    loader = BatchLoader(trained.dataset, split, batch_size=batch_size, shuffle=False, num_lanes=num_lanes)
    for batch in itertools.islice(loader.batches(), -(-num_rows // batch_size)):
        yield _with_ids(trained, batch)


def _with_ids(trained: TrainedModel, batch: Batch) -> Batch:
    """Puts ids in the place of the keys that tables have learnt; serving has one for a missing key, too."""
    lengths = batch.lengths.copy()
    ids = np.split(batch.ids, np.cumsum(lengths.sum(axis=1))[:-1])
    for number, feature in enumerate(trained.dataset.spec.categorical):
        if feature.is_learnt:
            ids[number] = trained.learnt[feature.table].find(ids[number])
        if feature.is_learnt and not feature.is_list:
            present, ids[number] = ids[number], np.full(batch.num_samples, MISSING_ID)
            ids[number][lengths[number] == 1] = present
            lengths[number] = 1
    return replace(batch, ids=np.concatenate(ids), lengths=lengths) if trained.learnt else batch


def _scores(trained: TrainedModel, batch: Batch, *reads: AsServed | None) -> list[npt.NDArray[np.float32]]:
    """Scores a batch once for each way to read the tables; the rows are gathered once."""
    features = trained.dataset.spec.categorical
    names = list(trained.dataset.tables)
    feature_tables = [names.index(feature.table) for feature in features]
    table_of_id = np.repeat(feature_tables, batch.lengths.sum(axis=1))
    ids, used = batch.ids.copy(), {}
    for number, name in enumerate(names):
        unique, ids[table_of_id == number] = np.unique(batch.ids[table_of_id == number], return_inverse=True)
        # Without verifying files: exporting all rows does so before it is done.
        used[name] = unique, trained.gather(name, unique)
    offsets = np.concatenate([[0], np.cumsum(batch.lengths.ravel(), dtype=np.int64)])
    found = []
    for read in reads:
        rows = [rows if read is None else read(name, unique, rows) for name, (unique, rows) in used.items()]
        embeddings = tf_ops.pooled_lookup(
            [tf.Variable(table) for table in rows],
            tf.constant(ids),
            tf.constant(offsets),
            feature_tables=feature_tables,
            combiners=[feature.combiner for feature in features],
        )
        found.append(tf.sigmoid(trained.dense((tf.constant(batch.dense), embeddings))).numpy())
    return found
