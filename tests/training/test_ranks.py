import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.training.auc import grouped_auc, roc_auc
from rankhouse.training.checkpoint.checkpoint import together
from rankhouse.training.errors import AucUndefinedError, CheckpointError, RanksError
from rankhouse.training.ranks import Ranks
from tests.training.launching import run_on_ranks

# What rank r sends to rank s. The last rank receives from itself alone, and the middle one sends to itself alone.
SPLITS = [[2, 1, 0], [0, 3, 0], [4, 0, 1]]


def sent(rank: int, to: int) -> np.ndarray:
    return 100.0 * rank + 10.0 * to + np.arange(SPLITS[rank][to], dtype=np.float32)


def exchange_everything(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Runs on each of three ranks."""
    values = tf.constant(np.concatenate([sent(ranks.rank, to) for to in range(3)]), tf.float32)
    splits = tf.constant(SPLITS[ranks.rank], tf.int32)

    @tf.function
    def exchange(values: tf.Tensor, splits: tf.Tensor) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            received, received_splits = ranks.alltoall(values, splits, name="exchange")
            loss = tf.reduce_sum(received * received * (ranks.rank + 1.0)) / 2
        sums = ranks.sum_tensors([tf.fill([2, 2], float(ranks.rank)), tf.constant([1.0])], name="sums")
        return received, received_splits, tape.gradient(loss, values), *sums

    received, received_splits, gradient, matrix, vector = exchange(values, splits)
    return {
        "rank": [ranks.rank, ranks.size],
        "received": received.numpy().tolist(),
        "received_splits": received_splits.numpy().tolist(),
        "gradient": gradient.numpy().tolist(),
        "sums": [matrix.numpy().tolist(), vector.numpy().tolist()],
        "gathered": ranks.allgather(tf.fill([ranks.rank, 2], ranks.rank), name="gather").numpy().tolist(),
        "broadcast": ranks.broadcast(tf.constant([ranks.rank]), name="broadcast", root=1).numpy().tolist(),
        "documents": ranks.exchange_json({"rank": "é" * ranks.rank}, name="documents"),
        "refusal": refusal(ranks),
        "auc": auc_of_parts(ranks),
        "auc_refusal": auc_refusal(ranks),
        "grouped_auc": grouped_auc_of_parts(ranks),
        "bytes": {name: [each.sent, each.received] for name, each in ranks.traffic.read().items()},
    }


def refusal(ranks: Ranks) -> str:
    def work() -> int:
        if ranks.rank == 1:
            raise OSError("the disk is full")
        return ranks.rank

    with pytest.raises(CheckpointError) as caught:
        together(ranks, work, name="together")
    return str(caught.value)


def samples() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    return generator.integers(0, 2, 999).astype(np.float32), generator.integers(0, 50, 999).astype(np.float32)


# The ranks hold 700, 0 and 299 samples.
PARTS = [slice(0, 700), slice(0, 0), slice(700, 999)]


def auc_of_parts(ranks: Ranks) -> float:
    labels, scores = (values[PARTS[ranks.rank]] for values in samples())
    return roc_auc(labels, scores, ranks=ranks)


def groups() -> np.ndarray:
    """Of 60 groups, most lie on two ranks; the last 20 samples are groups of one class."""
    return np.append(np.random.default_rng(6).integers(-30, 30, 979), np.arange(100, 120))


def grouped_auc_of_parts(ranks: Ranks) -> list[Any]:
    labels, scores, of_samples = (values[PARTS[ranks.rank]] for values in (*samples(), groups()))
    return list(astuple(grouped_auc(labels, scores, of_samples, ranks=ranks)))


def auc_refusal(ranks: Ranks) -> str:
    """One rank's scores are broken: all must refuse, or some would wait for ever."""
    scores = np.array([0.1, np.nan if ranks.rank == 2 else 0.2])
    with pytest.raises(AucUndefinedError) as caught:
        roc_auc(np.array([0.0, 1.0]), scores, ranks=ranks)
    return str(caught.value)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_on_ranks(exchange_everything, tmp_path_factory.mktemp("ranks"), num_ranks=3)


@pytest.mark.horovod
def test_alltoall_delivers_uneven_and_empty_slices(answers: list[Any]) -> None:
    for rank, answer in enumerate(answers):
        assert answer["rank"] == [rank, 3]
        assert answer["received"] == np.concatenate([sent(other, rank) for other in range(3)]).tolist()
        assert answer["received_splits"] == [SPLITS[other][rank] for other in range(3)]


@pytest.mark.horovod
def test_gradients_travel_back_to_the_sender(answers: list[Any]) -> None:
    for rank, answer in enumerate(answers):
        expected = np.concatenate([sent(rank, to) * (to + 1) for to in range(3)])
        assert answer["gradient"] == expected.tolist()


@pytest.mark.horovod
def test_sums_gathers_and_documents_are_the_same_everywhere(answers: list[Any]) -> None:
    for answer in answers:
        assert answer["sums"] == [[[3.0, 3.0], [3.0, 3.0]], [3.0]]
        assert answer["gathered"] == [[1, 1], [2, 2], [2, 2]]
        assert answer["broadcast"] == [1]
        assert answer["documents"] == [{"rank": ""}, {"rank": "é"}, {"rank": "éé"}]


@pytest.mark.horovod
def test_every_byte_between_ranks_is_counted(answers: list[Any]) -> None:
    """Rank r gathers r rows of two int32, and the sum is of five float32."""
    for rank, answer in enumerate(answers):
        sent = 4 * sum(SPLITS[rank][to] for to in range(3) if to != rank)
        received = 4 * sum(SPLITS[other][rank] for other in range(3) if other != rank)
        found = answer["bytes"]
        assert found["exchange"] == [sent, received]
        assert found["exchange_gradient"] == [received, sent]
        assert found["sums"] == [26, 26]
        assert found["gather"] == [8 * rank * 2, 8 * (3 - rank)]
        assert found["broadcast"] == ([8, 0] if rank == 1 else [0, 4])


@pytest.mark.horovod
def test_a_failure_on_one_rank_is_raised_on_all(answers: list[Any]) -> None:
    assert {answer["refusal"] for answer in answers} == {"rank 1: the disk is full"}


@pytest.mark.horovod
def test_auc_over_uneven_ranks_is_that_of_one(answers: list[Any]) -> None:
    labels, scores = samples()
    assert {answer["auc"] for answer in answers} == {roc_auc(labels, scores, ranks=Ranks(0, 1))}


@pytest.mark.horovod
def test_auc_within_groups_that_lie_on_several_ranks_is_the_mean_of_theirs(answers: list[Any]) -> None:
    (labels, scores), of_samples = samples(), groups()
    areas, sizes = [], []
    for group in np.unique(of_samples):
        is_positive, own_scores = labels[of_samples == group] == 1, scores[of_samples == group]
        if is_positive.any() and not is_positive.all():
            difference = own_scores[is_positive][:, np.newaxis] - own_scores[~is_positive]
            areas.append(float((np.sign(difference) + 1.0).mean(dtype=np.float64) / 2))
            sizes.append(len(is_positive))
    assert len(set(of_samples[:700]) & set(of_samples[700:])) > 50
    expected = pytest.approx(np.average(areas, weights=sizes), abs=1e-12)
    for answer in answers:
        assert answer["grouped_auc"] == [expected, len(sizes), sum(sizes)]
    assert len({tuple(answer["grouped_auc"]) for answer in answers}) == 1


@pytest.mark.horovod
def test_auc_is_refused_on_all_ranks_if_one_has_broken_scores(answers: list[Any]) -> None:
    assert {answer["auc_refusal"].split(";")[0] for answer in answers} == {
        "1 of 6 samples have a label other than 0 and 1, or a score that is not a finite number"
    }


def test_one_rank_needs_no_launcher_and_exchanges_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_SIZE", raising=False)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    ranks = Ranks.init()
    assert (ranks.rank, ranks.size) == (0, 1)
    values, splits = tf.constant([1.0, 2.0]), tf.constant([2])
    assert ranks.alltoall(values, splits, name="a")[0] is values
    assert ranks.sum_tensors([values], name="s")[0] is values
    assert ranks.allgather(values, name="g") is values
    assert ranks.broadcast(values, name="b") is values
    assert ranks.exchange_json({"a": [1]}, name="j") == [{"a": [1]}]
    ranks.barrier()


def test_missing_horovod_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    with pytest.raises(RanksError, match=r"several ranks, but Horovod cannot be imported .*; run `make setup`"):
        Ranks.init()


def test_documents_must_be_json() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        Ranks(0, 1).exchange_json({"path": Path()}, name="j")
