"""Exchanges of rows between ranks that take fewer bytes on the wire than in memory.

Rows travel in one format and their gradients in another (`WireFormat`); what is calculated with them is float32. Where
the format is float32 the exchange is `Ranks.alltoall`'s, to the bit.

The first exchange of a direction that has anything but zeros to send, on any rank, measures by how much the rounding
moves it. All ranks learn the largest error before anything was rounded, and where it is above the bound they send
float32, in this exchange and in all that follow, and say so in the log. Both ways are in the graph, and a variable
chooses: nothing is traced anew.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from rankhouse.training.exchange.wire_codec import Segment, decode, encode, measure, num_saturated, unit_bytes
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.ranks import Ranks

log = logging.getLogger(__name__)

_UNDECIDED, _AS_ASKED, _FLOAT32 = 0, 1, 2


@dataclass(frozen=True)
class Rows:
    """Rows of one width and format that lie one after the other in a message.

    Attributes:
        num_rows: int32 or int64 [].
        width: Elements of a row, known when the graph is built.
        wire: Says by `forward` how they travel, by `backward` how their gradients do.
    """

    num_rows: tf.Tensor
    width: int
    wire: WireFormat

    @property
    def num_elements(self) -> tf.Tensor:
        """Elements of the rows, int64 []."""
        return tf.cast(self.num_rows, tf.int64) * self.width


# What lies in a message: for each rank, the rows that go to it or come from it.
Layout = Sequence[Sequence[Rows]]


class RowExchange:
    """The exchange of a layer's rows, and of their gradients.

    Collective: all ranks make it alike and call it in the same order. It may be called in several graphs; what it found
    out about its formats holds for all of them. One thread per process.
    """

    def __init__(self, ranks: Ranks, formats: Sequence[WireFormat], *, name: str) -> None:
        """Makes an exchange.

        Args:
            ranks: The ranks.
            formats: Those of all rows that any rank will ever send, the same on all ranks, at least one. The first one
                says for all of them how gradients are scaled and how rounding is measured and bounded.
            name: Of the exchange; that of gradients is called `<name>_gradient`.
        """
        self._ranks = ranks
        self._forward = _Direction(ranks, formats, "forward", name=name)
        self._backward = _Direction(ranks, formats, "backward", name=f"{name}_gradient")

    def __call__(self, message_T: tf.Tensor, send: Layout, receive: Layout) -> tf.Tensor:
        """Sends each rank its part of a message; differentiable, also inside `tf.function`.

        Args:
            message_T: float32 [T], the rows for rank 0, then those for rank 1, and so on.
            send: What lies in it.
            receive: What comes from each rank: what that rank's `send` says of this one.

        Returns:
            float32 [what `receive` says], the rows from rank 0, then those from rank 1, and so on; on one rank the
            message itself.
        """
        if self._ranks.size == 1:
            return message_T

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def exchange(message_T: tf.Tensor) -> Any:
            received = self._forward.exchange(message_T, send, receive)
            return received, lambda upstream: self._backward.exchange(upstream, receive, send)

        return exchange(message_T)


class _Direction:
    """One direction of an exchange: the formats that it was asked for, and whether they will do."""

    def __init__(
        self, ranks: Ranks, formats: Sequence[WireFormat], side: Literal["forward", "backward"], *, name: str
    ) -> None:
        self._ranks, self._side, self._name, self._wire = ranks, side, name, formats[0]
        self._asked = sorted({getattr(wire, side) for wire in formats})
        self._unit = unit_bytes(self._asked)
        self._scale = self._wire.gradient_scale if side == "backward" else 1.0
        with tf.init_scope():
            self._state = tf.Variable(_UNDECIDED, trainable=False)
            self._num_calls = tf.Variable(0, dtype=tf.int64, trainable=False)

    def exchange(self, message_T: tf.Tensor, send: Layout, receive: Layout) -> tf.Tensor:
        """Returns what arrives; not differentiable."""
        leaving, arriving = self._segments(send), self._segments(receive)
        if self._asked == ["float32"]:
            return self._plain(message_T, leaving)
        scaled = message_T * self._scale
        received = tf.cond(
            self._is_narrow(scaled, _all(leaving)),
            lambda: self._narrow(scaled, leaving, arriving),
            lambda: self._plain(scaled, leaving),
        )
        return received / self._scale

    def _segments(self, layout: Layout) -> list[list[Segment]]:
        return [
            [Segment(rows.num_rows, rows.width, getattr(rows.wire, self._side)) for rows in part] for part in layout
        ]

    def _plain(self, message_T: tf.Tensor, leaving: Sequence[Sequence[Segment]]) -> tf.Tensor:
        splits = [tf.add_n([segment.num_elements for segment in part]) if part else 0 for part in leaving]
        return self._ranks.alltoall(message_T, int32_splits(splits, name=self._name), name=self._name)[0]

    def _narrow(
        self, message_T: tf.Tensor, leaving: Sequence[Sequence[Segment]], arriving: Sequence[Sequence[Segment]]
    ) -> tf.Tensor:
        unit = self._unit
        if "float16" in self._asked:
            self._ranks.traffic.count_saturated(self._name, num_saturated(message_T, _all(leaving)))
        splits = [tf.add_n([segment.num_units(unit) for segment in part]) if part else 0 for part in leaving]
        units = encode(message_T, _all(leaving), unit)
        received, _ = self._ranks.alltoall(units, int32_splits(splits, name=self._name), name=self._name)
        return decode(received, _all(arriving), unit)

    def _is_narrow(self, message_T: tf.Tensor, segments: Sequence[Segment]) -> tf.Tensor:
        """Returns whether to send the formats that were asked for, the same on all ranks; measures where it is due."""
        state = self._state.read_value()
        number = self._num_calls.assign_add(1) - 1
        undecided = tf.equal(state, _UNDECIDED)
        due = tf.logical_and(tf.equal(number % self._wire.measure_every, 0), tf.equal(state, _AS_ASKED))

        def measured() -> tf.Tensor:
            errors = measure(message_T, segments)
            self._ranks.traffic.record_rounding(self._name, errors.max_error / self._scale, errors.max_relative_error)
            return tf.stack([errors.max_relative_error, tf.cast(errors.has_values, tf.float32)])

        found = tf.cond(tf.logical_or(undecided, due), measured, lambda: tf.zeros([2]))
        return tf.cond(undecided, lambda: self._decide(found), lambda: tf.equal(state, _AS_ASKED))

    def _decide(self, found: tf.Tensor) -> tf.Tensor:
        """Takes the worst of what all ranks measured; decides nothing while all that any rank has to send is zeros."""
        errors_R, has_values_R = tf.unstack(
            self._ranks.allgather(found[tf.newaxis], name=f"{self._name}_check"), axis=1
        )
        narrow = tf.reduce_max(errors_R) <= self._wire.max_relative_error
        decided = tf.where(narrow, _AS_ASKED, _FLOAT32)
        decides = tf.reduce_any(has_values_R > 0)
        self._state.assign(tf.where(decides, decided, _UNDECIDED))
        tf.cond(decides, lambda: tf.numpy_function(self._say, [errors_R, narrow], []), tf.no_op)
        return narrow

    def _say(self, errors_R: NDArray[np.float32], narrow: np.bool_) -> None:
        what = "gradients" if self._side == "backward" else "rows"
        asked = " and ".join(self._asked)
        worst, rank = float(errors_R.max()), int(errors_R.argmax())
        error = f"rounding moves an element by at most {worst:.2%} of the largest of its row, on rank {rank}"
        if narrow:
            text = f"{what} travel as {asked}: {error}"
        else:
            text = (
                f"{what} travel as float32 and not as {asked}: {error}, but max_relative_error is "
                f"{self._wire.max_relative_error:.2%}; take another format, or for small gradients a gradient_scale"
            )
        self._ranks.traffic.choices[self._name] = text
        if self._ranks.rank == 0:
            log.log(logging.INFO if narrow else logging.WARNING, "%s: %s", self._name, text)


def int32_splits(splits: Sequence[tf.Tensor | int], *, name: str) -> tf.Tensor:
    """Returns how many elements of a message go to each rank as an exchange takes them, int32 [R].

    Args:
        splits: By rank, int64 [].
        name: Of the exchange.

    Raises:
        tf.errors.InvalidArgumentError: They are too many for one exchange.
    """
    counts = tf.stack([tf.cast(split, tf.int64) for split in splits])
    said = f"{name}: a rank sends 2**31 or more elements (bytes, where int8 is among the formats); take smaller batches"
    with tf.control_dependencies([tf.debugging.assert_less(tf.reduce_sum(counts), tf.constant(2**31, tf.int64), said)]):
        return tf.cast(counts, tf.int32)


def _all(parts: Sequence[Sequence[Segment]]) -> list[Segment]:
    return [segment for part in parts for segment in part]
