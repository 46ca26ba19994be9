"""What the trained model's AUC is worth: beside the best reachable one and a logistic regression on the same data.

    rankhouse bench ranking_quality            after `rankhouse demo`

The logistic regression sees the same transformed features, ids as one-hot columns, and may take several passes; the
best of them counts.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score

from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.rows import Batch
from rankhouse.training.data.synth import FACTS_SUFFIX
from rankhouse.training.runs.folder import RunFolder

NUM_PASSES = 5
LEARNING_RATES = (0.003, 0.01, 0.03)


def main() -> None:
    """Prints the three AUCs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"), help="the demo's folder")
    demo = parser.parse_args().demo
    result = RunFolder.open(demo / "dlrm").result
    facts = json.loads((demo / "logs" / f"valid.tsv{FACTS_SUFFIX}").read_text())
    table = Table(title=f"AUC on {facts['num_rows']:,} held-out rows")
    table.add_column("model")
    table.add_column("AUC", justify="right")
    table.add_row("best reachable (the teacher's own probabilities)", f"{facts['best_auc']:.4f}")
    table.add_row("DLRM, this run", "unfinished" if result is None else f"{result.auc:.4f}")
    table.add_row("logistic regression", f"{logistic_regression_auc(PreparedDataset.open(demo / 'dataset')):.4f}")
    Console().print(table)


def logistic_regression_auc(dataset: PreparedDataset) -> float:
    """Returns the best held-out AUC over learning rates and passes."""
    best = 0.0
    for rate in LEARNING_RATES:
        model = SGDClassifier(loss="log_loss", alpha=1e-7, learning_rate="constant", eta0=rate, average=True)
        for epoch in range(NUM_PASSES):
            for columns, labels in _batches(dataset, "train", epoch):
                model.partial_fit(columns, labels, classes=[0, 1])
            valid = list(_batches(dataset, "valid", 0))
            scores = np.concatenate([model.decision_function(columns) for columns, _ in valid])
            best = max(best, roc_auc_score(np.concatenate([labels for _, labels in valid]), scores))
    return best


def _batches(dataset: PreparedDataset, split: str, epoch: int) -> Iterator[tuple[scipy.sparse.csr_matrix, np.ndarray]]:
    loader = BatchLoader(dataset, split, batch_size=16384, rank=0, num_ranks=1, seed=1, shuffle=split == "train")
    for batch in loader.batches(0, epoch):
        yield _one_hot(dataset, batch), batch.labels


def _one_hot(dataset: PreparedDataset, batch: Batch) -> scipy.sparse.csr_matrix:
    """Puts each table's ids into columns of their own, beside the dense features."""
    sizes = [table.num_rows for table in dataset.tables.values()]
    begins = dict(zip(dataset.tables, np.cumsum([0, *sizes[:-1]]), strict=True))
    num_features, num_samples = batch.lengths.shape
    begin_F = np.array([begins[feature.table] for feature in dataset.spec.categorical])
    columns = batch.ids + np.repeat(begin_F, batch.lengths.sum(axis=1))
    samples = np.repeat(np.tile(np.arange(num_samples), num_features), batch.lengths.ravel())
    ones = np.ones(len(columns), np.float32)
    ids = scipy.sparse.csr_matrix((ones, (samples, columns)), shape=(num_samples, sum(sizes)))
    return scipy.sparse.hstack([scipy.sparse.csr_matrix(batch.dense), ids], format="csr")


if __name__ == "__main__":
    main()
