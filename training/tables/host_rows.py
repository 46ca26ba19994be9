"""A table that lies in host memory, or in a mapped file, with the rows in use in a variable.

    lookup    rows that the variable lacks come, each with the optimizer's slots of it; those used longest ago make way,
              and are written back with their slots where they were changed; ids become rows of the variable
    update    the optimizer updates rows of the variable and of its slots, as those of any table; then they may leave
    save      what was changed is written back; the arrays are then the table

So a step is that of a table held whole, bit for bit, with every optimizer that moves touched rows only.

Order: bringing rows is one operation that takes the handles of the variable and of all slots. TensorFlow runs those
operations of a `tf.function` that have a handle in common one after the other, in the order of the program. So rows
come after what was asked for before, its update included where that is in the same function, and before what uses them.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.training.errors import HostRowsError
from rankhouse.training.tables.host_rows_arrays import make_array
from rankhouse.training.tables.host_rows_slots import Ids, Moves, SlotMap
from rankhouse.training.tables.variable_rows import array_behind, gather, mark_cached, scatter

Numbers = slice | Ids

# What is changed is written back in blocks of so many rows.
_BLOCK_ROWS = 1 << 16


@dataclass
class HostRowsStats:
    """What was moved for a table on this rank, since it was made.

    Attributes:
        hits: Looked-up ids whose rows were there; also the second of two equal ids of a batch.
        misses: Rows that came.
        written_back: Rows that were written back.
        bytes_moved: In both directions, with all slots.
    """

    hits: int = 0
    misses: int = 0
    written_back: int = 0
    bytes_moved: int = 0

    def __add__(self, other: "HostRowsStats") -> "HostRowsStats":
        mine, others = self.document(), other.document()
        return HostRowsStats(**{name: count + others[name] for name, count in mine.items()})

    @property
    def hit_rate(self) -> float:
        """The share of the ids whose rows were there; 1 where there were none."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 1.0

    def explain(self) -> str:
        """Returns it as words."""
        return (
            f"{self.hit_rate:.1%} of the ids hit the cache; {self.misses:,} rows loaded, {self.written_back:,} written "
            f"back, {self.bytes_moved / 2**20:,.1f} MiB moved"
        )

    def document(self) -> dict[str, int]:
        """Returns the counts as JSON values."""
        return asdict(self)


class HostRows:
    """A table's rows of one rank, or a rectangle of them; a RowMap of its variable.

    One thread at a time calls it, in step with the functions that look up.

    Attributes:
        table: The table's name.
        num_ids: One behind the last of the table's rows that lie here.
        stats: What was moved.
    """

    def __init__(
        self, table: str, variable: tf.Variable, *, num_rows: int, first_row: int = 0, folder: Path | str | None = None
    ) -> None:
        """Makes a table of zeros.

        Args:
            table: The table's name.
            variable: [rows of the cache, columns], without rows as yet.
            num_rows: Rows of the table that lie here.
            first_row: The first of them.
            folder: Where the table and its slots lie, in files without names; None: in memory.

        Raises:
            HostRowsError: The folder cannot hold it.
        """
        self.table = table
        self.num_ids: int | None = first_row + num_rows
        self.stats = HostRowsStats()
        self._first_row, self._num_rows = first_row, num_rows
        self._folder = Path(folder) if folder is not None else None
        self._slots = SlotMap(table, num_rows, variable.shape[0])
        self._lock = threading.Lock()
        self._arrays: list[_HostArray] = []
        # An update ends an epoch: until then, the rows of lookups that wait for it stay.
        self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False, name=f"{table}_epoch")
        self._has_optimizer = False
        self.attach(variable)

    def attach(self, variable: tf.Variable, *, fill: float = 0.0) -> None:
        """Has a variable, such as a slot of an optimizer, keep rows of the same numbers as the table's variable.

        Args:
            variable: [rows of the cache, ...], the same value everywhere.
            fill: That value.

        Raises:
            HostRowsError: The folder cannot hold it.
        """
        shape = (self._num_rows, *variable.shape[1:])
        name = f"table {self.table}"
        values = make_array(shape, variable.dtype.as_numpy_dtype, fill=fill, folder=self._folder, name=name)
        array = _HostArray(variable, values, fill, self)
        self._arrays.append(array)
        mark_cached(variable, array)

    def rows(self, ids: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Brings rows of the table; eagerly or in a `tf.function`.

        Args:
            ids: int64 [n], rows of the table that lie here.
            training: Whether an update will follow. Until then the rows stay where they are; else until the next call.

        Returns:
            int64 [n], the rows of the variable that have them.

        Raises:
            tf.errors.InvalidArgumentError: These rows, and those of lookups whose update is still to come, are more
                than the variable has.
        """
        return self._in_order(lambda rows, epoch: self._bring(rows, epoch, training), ids - self._first_row)

    def note_optimizer(self) -> None:
        """Notes that an optimizer has attached all that it remembers, and will say when it has updated the table."""
        self._has_optimizer = True

    def before_update(self, rows: tf.Tensor) -> tf.Tensor:
        """Notes that rows of the variable are about to be updated, which are still those that were looked up.

        Args:
            rows: int64 [n], rows of the variable; eagerly or in a `tf.function`.

        Returns:
            The same: what needs them waits for the check.

        Raises:
            tf.errors.InvalidArgumentError: They were looked up with training=False, and may have left since.
        """
        return self._in_order(lambda slots, epoch: self._slots.note_update(slots, epoch=epoch), rows)

    def after_update(self) -> None:
        """Ends the epoch: rows of lookups so far may leave; eagerly or in a `tf.function`."""
        self._epoch.assign_add(1)

    def check_optimizer(self) -> None:
        """Checks that somebody knows of the rows that are elsewhere; called where a gradient is taken.

        Raises:
            HostRowsError: No optimizer has said so: what it remembers of a row would stay when the row leaves.
        """
        if not self._has_optimizer:
            raise HostRowsError(
                f"table {self.table} lies in host memory, and its gradient was asked for before an optimizer was made "
                "that knows how to update it; make an Optimizer of rankhouse.training.optimizers first, or a "
                "distributed_optimizer and call its build"
            )

    def start(self, rows: Ids) -> Ids:
        """Notes that rows of the table, which were just brought for an update, start anew.

        Args:
            rows: int64 [n]; not in a `tf.function`.

        Returns:
            int64 [n], the rows of the variable that have them, to be overwritten.
        """
        with self._lock:
            slots = self._slots.slots_of(rows - self._first_row).astype(np.int64)
            self._slots.changed[slots] = True
            return slots

    def start_all(self) -> None:
        """Has the table and what is remembered of its rows start anew, as they were when they were attached."""
        with self._lock:
            self._slots = SlotMap(self.table, self._num_rows, self._slots.num_slots)
            for array in self._arrays:
                for start in range(0, self._num_rows, _BLOCK_ROWS):
                    array.values[start : start + _BLOCK_ROWS] = array.fill

    def write_back(self) -> None:
        """Writes back what was changed: the arrays are then the table."""
        with self._lock:
            changed = np.flatnonzero(self._slots.changed)
            for at in range(0, len(changed), _BLOCK_ROWS):
                self._store(changed[at : at + _BLOCK_ROWS])
            self._slots.changed[changed] = False

    def refresh(self, array: "_HostArray", rows: Numbers) -> None:
        """Gives the variable of an array the rows that it has of those that were overwritten."""
        with self._lock:
            slots = self._slots.slots_of(rows)
            slots = slots[slots >= 0]
            scatter(array.variable, slots, array.values[self._slots.rows_in(slots)])

    def _in_order(self, work: Callable[[Ids, int], Ids], rows: tf.Tensor) -> tf.Tensor:
        """Has NumPy work on rows, as an operation that keeps to the order of those on the variable and its slots."""

        def run(rows: tf.Tensor, epoch: tf.Tensor, *_: tf.Tensor) -> tuple[Any, str]:
            try:
                return work(rows.numpy(), int(epoch)), ""
            except HostRowsError as exc:
                return np.empty(0, np.int64), str(exc)

        handles = [array.variable.handle for array in self._arrays]
        done, error = tf.py_function(run, [rows, self._epoch.read_value(), *handles], [tf.int64, tf.string])
        with tf.control_dependencies([tf.debugging.Assert(tf.strings.length(error) == 0, [error])]):
            return tf.ensure_shape(tf.identity(done), rows.shape)

    def _bring(self, ids: Ids, epoch: int, training: bool) -> Ids:
        with self._lock:
            moves = self._slots.bring(ids, epoch=epoch, keep=training)
            self._move(moves)
            self.stats.misses += len(moves.coming)
            self.stats.hits += len(ids) - len(moves.coming)
            return self._slots.slots_of(ids).astype(np.int64)

    def _move(self, moves: Moves) -> None:
        if not len(moves.coming):
            return
        self._store(moves.slots[moves.changed], moves.leaving[moves.changed])
        for array in self._arrays:
            came = np.take(array.values, moves.coming, axis=0)
            scatter(array.variable, moves.slots, came)
            self.stats.bytes_moved += came.nbytes

    def _store(self, slots: Ids, rows: Ids | None = None) -> None:
        """Writes back the rows that are in slots, or were until now."""
        if not len(slots):
            return
        rows = self._slots.rows_in(slots) if rows is None else rows
        for array in self._arrays:
            left = gather(array.variable, slots)
            array.values[rows] = left
            self.stats.bytes_moved += left.nbytes
        self.stats.written_back += len(slots)


@dataclass(frozen=True, eq=False)
class _HostArray:
    """All rows of what a variable has some of; see `CachedArray`."""

    variable: tf.Variable
    values: npt.NDArray[Any]
    fill: float
    owner: HostRows

    def read(self, rows: Numbers) -> npt.NDArray[Any]:
        self.owner.write_back()
        return np.array(self.values[rows])

    def write(self, rows: Numbers, values: npt.NDArray[Any]) -> None:
        self.owner.write_back()
        self.values[rows] = values
        self.owner.refresh(self, rows)


def check_gradient(rows: tf.Tensor, tables: Sequence[HostRows]) -> tf.Tensor:
    """Returns looked-up rows; where their gradient is asked for, an optimizer must know how to update the tables.

    Raises:
        HostRowsError: When the gradient is taken, no optimizer has said that it does.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def checked(rows: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            for table in tables:
                table.check_optimizer()
            return upstream

        return tf.identity(rows), gradient

    return checked(rows)


def check_weights(weights: tf.Tensor, tables: Sequence[HostRows], training: bool | tf.Tensor) -> tf.Tensor:
    """Returns the weights of a lookup; where their gradient is asked for, it is calculated from rows of the variable.

    Raises:
        tf.errors.InvalidArgumentError: When the gradient is taken, of a lookup with training=False: rows may have left.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def checked(weights: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            said = (
                f"the gradient of weights needs rows of table {tables[0].table}, which lies in host memory, but they "
                "need not be there any more; look them up with training=True"
            )
            with tf.control_dependencies([tf.debugging.Assert(training, [said])]):
                return tf.identity(upstream)

        return tf.identity(weights), gradient

    return checked(weights)


def host_rows_of(variable: tf.Variable) -> HostRows | None:
    """Returns who brings the rows of a table's variable; None of a table that is held whole."""
    array = array_behind(variable)
    return array.owner if isinstance(array, _HostArray) else None
