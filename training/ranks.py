"""The ranks of a training run, and every exchange between them: the one seam to Horovod.

A rank is a process. Without a launcher there is one rank, no exchange at all, and Horovod need not be installed. Each
exchange costs a round of negotiation (1 to 4 ms on Gloo), so callers fuse what they can into few of them.

Order of sums: every rank receives the same bits. Over 2 ranks a sum is bit-reproducible; over more, Gloo's and NCCL's
rings add in an order that depends only on the number of ranks and the length of the tensor, which `sum_tensors` keeps
fixed by sending one flat tensor.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.training.errors import RanksError
from rankhouse.training.exchange.traffic import Traffic

# What launchers set: horovodrun, Open MPI, and MPICH, Intel MPI or Slurm with PMI.
_LAUNCHER_SIZES = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def _launched() -> bool:
    return any(os.environ.get(name, "1") != "1" for name in _LAUNCHER_SIZES)


class Ranks:
    """The group of ranks that trains together; make it with `Ranks.init()`.

    Every method is collective unless it says otherwise: all ranks call it, in the same order and with the same `name`
    (which must differ from that of any exchange in flight at the same time). One thread per process may call it.

    Attributes:
        rank: This process, 0 <= rank < size. Rank 0 writes what is written once.
        size: How many processes train together.
        traffic: The bytes of every exchange.
    """

    def __init__(self, rank: int, size: int, horovod: Any = None) -> None:
        self.rank = rank
        self.size = size
        self.traffic = Traffic()
        self._horovod = horovod

    @property
    def local_size(self) -> int:
        """How many of the ranks share this machine. Not collective."""
        return int(self._horovod.local_size()) if self._horovod is not None else 1

    @classmethod
    def init(cls) -> "Ranks":
        """Joins the ranks that the launcher started, or makes a group of one where there is no launcher.

        Raises:
            RanksError: A launcher started several ranks, but Horovod is missing.
        """
        if not _launched():
            return cls(0, 1)
        try:
            import horovod.tensorflow as hvd
        except ImportError as exc:
            raise RanksError(
                f"a launcher started several ranks, but Horovod cannot be imported ({exc}); run `make setup` to build "
                "it, or start the command without a launcher to train on one rank"
            ) from exc
        hvd.init()
        return cls(hvd.rank(), hvd.size(), hvd)

    def alltoall(self, values: tf.Tensor, splits: tf.Tensor, *, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        """Sends a slice of `values` to each rank; differentiable, also inside `tf.function`.

        Inside a `tf.function`, make sure that the result is used: TensorFlow prunes an exchange whose result nobody
        needs, and the other ranks then wait for it for ever.

        Args:
            values: [N, ...] with N below 2**31; the trailing shape is the same on all ranks.
            splits: int32 [size], how many leading elements go to each rank; their sum is N. Zeros are fine.
            name: Name of the exchange; the backward one is called `<name>_gradient`.

        Returns:
            The received slices in the order of the ranks, [M, ...], and how many came from each, int32 [size].
        """
        if self.size == 1:
            return values, splits

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def exchange(values: tf.Tensor) -> Any:
            received, received_splits = self._alltoall(values, splits, name)

            def gradient(upstream: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
                # Horovod's own gradient names itself after the graph, and graphs differ where ranks own other tables.
                return self._alltoall(upstream, received_splits, f"{name}_gradient")[0]

            return (received, received_splits), gradient

        received, received_splits = exchange(values)
        return received, received_splits

    def _alltoall(self, values: tf.Tensor, splits: tf.Tensor, name: str) -> tuple[tf.Tensor, tf.Tensor]:
        received, received_splits = self._horovod.alltoall(values, splits=splits, name=name, ignore_name_scope=True)
        sent, arrived = (
            tf.cast(tf.reduce_sum(counts) - counts[self.rank], tf.int64) * _item_bytes(values)
            for counts in (splits, received_splits)
        )
        self.traffic.count(name, sent, arrived)
        return received, received_splits

    def sum_tensors(self, tensors: Sequence[tf.Tensor], *, name: str) -> list[tf.Tensor]:
        """Adds up dense float tensors over all ranks, in one exchange.

        Inside a `tf.function` no rank may give constants alone: TensorFlow makes such a sum once, while it optimizes
        the graph, and the other ranks wait for it in every step after.

        Args:
            tensors: The same shapes on every rank, known when the graph is built.
            name: Name of the exchange.

        Returns:
            The sums, shaped like `tensors`; the same bits on every rank.
        """
        if self.size == 1 or not tensors:
            return list(tensors)
        flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
        total = self._horovod.allreduce(flat, op=self._horovod.Sum, name=name, ignore_name_scope=True)
        ring = _bytes(flat) * 2 * (self.size - 1) // self.size
        self.traffic.count(name, ring, ring)
        parts = tf.split(total, [tensor.shape.num_elements() for tensor in tensors])
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def allgather(self, values: tf.Tensor, *, name: str) -> tf.Tensor:
        """Concatenates [n_r, ...] of every rank r on the first dimension, in the order of the ranks, on every rank."""
        values = tf.convert_to_tensor(values)
        if self.size == 1:
            return values
        gathered = self._horovod.allgather(values, name=name, ignore_name_scope=True)
        own = _bytes(values)
        self.traffic.count(name, own * (self.size - 1), _bytes(gathered) - own)
        return gathered

    def broadcast(self, values: tf.Tensor, *, name: str, root: int = 0) -> tf.Tensor:
        """Returns the root's tensor on every rank; all give one of the same shape and dtype."""
        values = tf.convert_to_tensor(values)
        if self.size == 1:
            return values
        if values.dtype == tf.bfloat16:  # Which Horovod does not know.
            return tf.bitcast(self.broadcast(tf.bitcast(values, tf.uint16), name=name, root=root), tf.bfloat16)
        copy = _bytes(values)
        sent, received = ((self.size - 1) * copy, 0 * copy) if self.rank == root else (0 * copy, copy)
        self.traffic.count(name, sent, received)
        return self._horovod.broadcast(values, root_rank=root, name=name, ignore_name_scope=True)

    def exchange_json(self, document: Any, *, name: str) -> list[Any]:
        """Returns the JSON documents of all ranks, in the order of the ranks, on every rank (not in `tf.function`)."""
        encoded = np.frombuffer(json.dumps(document).encode(), np.uint8)
        if self.size == 1:
            return [json.loads(encoded.tobytes())]
        sizes = self.allgather(tf.constant([encoded.size], tf.int64), name=f"{name}_sizes").numpy()
        gathered = self.allgather(tf.constant(encoded), name=name).numpy()
        return [json.loads(part.tobytes()) for part in np.split(gathered, np.cumsum(sizes)[:-1])]

    def barrier(self, *, name: str = "barrier") -> None:
        """Waits until every rank has come here (not in `tf.function`)."""
        self.allgather(tf.zeros([1], tf.uint8), name=name)


def _bytes(values: tf.Tensor) -> tf.Tensor:
    return tf.size(values, tf.int64) * values.dtype.size


def _item_bytes(values: tf.Tensor) -> tf.Tensor:
    """Returns the bytes of one element of the first dimension, int64 []."""
    return tf.reduce_prod(tf.shape(values, tf.int64)[1:]) * values.dtype.size
