"""What travels between ranks: bytes of every exchange, and by how much narrower formats round.

Counted are the bytes of tensors that leave this rank and that arrive, not what stays on it, nor the few bytes by which
Horovod negotiates. An all-to-all sends each byte once. A sum is counted as the ring algorithm has it, 2 (R - 1) / R
times its bytes in each direction; a gather as own bytes sent to each other rank; a broadcast as sent by its root.

Counters are variables that a training step updates in its graph, one small operation for each exchange, and that Python
reads when it wants to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Bytes:
    """Bytes of this rank.

    Attributes:
        sent: To other ranks.
        received: From other ranks.
    """

    sent: int = 0
    received: int = 0

    def __add__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.sent + other.sent, self.received + other.received)

    def __sub__(self, other: "Bytes") -> "Bytes":
        return Bytes(self.sent - other.sent, self.received - other.received)


@dataclass(frozen=True)
class Rounding:
    """What a narrower format did to what this rank sent in one exchange, in the steps that were measured.

    Attributes:
        max_error: The largest absolute error of an element.
        max_relative_error: The largest error of an element relative to the largest element of its row.
        num_saturated: Finite elements beyond float16's range, which became its largest number; of all steps.
    """

    max_error: float
    max_relative_error: float
    num_saturated: int


class Traffic:
    """The counters of one rank; `Ranks.traffic` is one.

    `count`, `record_rounding` and `count_saturated` are called while a graph is built (or eagerly), the others outside
    of graphs. One thread per process.

    Attributes:
        choices: How the rows of an exchange travel and why, by its name, once that is decided.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, tf.Variable] = {}
        self._errors: dict[str, tf.Variable] = {}
        self._saturated: dict[str, tf.Variable] = {}
        self._left_out: dict[str, Bytes] = {}
        self.choices: dict[str, str] = {}

    def count(self, exchange: str, sent: tf.Tensor, received: tf.Tensor) -> None:
        """Adds bytes, int64 [] each, to those of the exchange."""
        counter = _variable(self._bytes, exchange, [2], tf.int64)
        counter.assign_add(tf.stack([sent, received]), read_value=False)

    def record_rounding(self, exchange: str, max_error: tf.Tensor, max_relative_error: tf.Tensor) -> None:
        """Keeps the largest of the errors, float32 [] each."""
        errors = _variable(self._errors, exchange, [2], tf.float32)
        errors.assign(tf.maximum(errors, tf.stack([max_error, max_relative_error])), read_value=False)

    def count_saturated(self, exchange: str, num_elements: tf.Tensor) -> None:
        """Adds elements, int64 [], to those that saturated."""
        _variable(self._saturated, exchange, [], tf.int64).assign_add(num_elements, read_value=False)

    def read(self) -> dict[str, Bytes]:
        """Returns the bytes of each exchange, by its name, apart from those that were left out."""
        return {name: count - self._left_out.get(name, Bytes()) for name, count in self._counts().items()}

    def total(self) -> Bytes:
        """Returns the bytes of all exchanges, apart from those that were left out."""
        return sum(self.read().values(), Bytes())

    def roundings(self) -> dict[str, Rounding]:
        """Returns what narrower formats did in each exchange that has one, by its name."""
        found = {}
        for name, errors in self._errors.items():
            saturated = self._saturated.get(name)
            num_saturated = 0 if saturated is None else int(saturated.numpy())
            max_error, max_relative_error = errors.numpy().tolist()
            found[name] = Rounding(max_error, max_relative_error, num_saturated)
        return found

    def document(self) -> dict[str, Any]:
        """Returns all of it as plain data, without exchanges that moved nothing."""
        moved = {name: count for name, count in self.read().items() if count != Bytes()}
        return {
            "bytes": {name: [count.sent, count.received] for name, count in moved.items()},
            "roundings": {name: asdict(rounding) for name, rounding in self.roundings().items()},
            "choices": self.choices,
        }

    def restart(self) -> None:
        """Leaves out all that was exchanged so far."""
        self._left_out = self._counts()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leaves out what is exchanged meanwhile: evaluations and checkpoints are no training step."""
        before = self.read()
        try:
            yield
        finally:
            self._left_out = {name: count - before.get(name, Bytes()) for name, count in self._counts().items()}

    def _counts(self) -> dict[str, Bytes]:
        return {name: Bytes(*counter.numpy().tolist()) for name, counter in self._bytes.items()}


def _variable(variables: dict[str, tf.Variable], name: str, shape: list[int], dtype: tf.DType) -> tf.Variable:
    """Returns the variable of a name, made outside of whatever graph is being built."""
    if name not in variables:
        with tf.init_scope():
            variables[name] = tf.Variable(tf.zeros(shape, dtype), trainable=False)
    return variables[name]
