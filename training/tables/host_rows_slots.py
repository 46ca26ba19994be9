"""Which rows of a table lie in the slots of its cache, and which make way: the least recently used.

    slot_of   the slot of each row of the table, or -1
    row_of    the row in each slot, or -1
    used      at which call each slot was last asked for
    kept      until which epoch a slot's row stays where it is: that in which a lookup waits for its update

Who makes way is found in bulk. A queue has the sixteenth of the slots that were used longest ago, in that order. A slot
that was used since it was queued is passed over; and as all slots that are not in the queue were used later than those
that are, this is the order of use exactly, at a few operations a row.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankhouse.training.errors import HostRowsError

Ids = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int32]

_QUEUED_SHARE = 16


@dataclass(frozen=True)
class Moves:
    """What must be moved so that rows lie in slots.

    Attributes:
        slots: int64 [m], the slots that get other rows.
        coming: int64 [m], the rows that they get.
        leaving: int64 [m], the rows that they have had; -1 where there was none.
        changed: bool [m], which of the leaving rows must be written back.
    """

    slots: Ids
    coming: Ids
    leaving: Ids
    changed: npt.NDArray[np.bool_]


class SlotMap:
    """Of one table. One thread at a time uses it.

    Attributes:
        num_slots: How many rows the cache holds.
        changed: bool [num_slots], whose rows may differ from those of the table.
    """

    def __init__(self, table: str, num_rows: int, num_slots: int) -> None:
        """Has all slots empty; takes 4 bytes for each row of the table and 33 for each slot."""
        self._table = table
        self.num_slots = num_slots
        self._slot_of = np.full(num_rows, -1, np.int32)
        self._row_of = np.full(num_slots, -1, np.int64)
        self.changed = np.zeros(num_slots, np.bool_)
        self._used = np.zeros(num_slots, np.int64)
        self._kept = np.full(num_slots, -1, np.int64)
        self._clock = 0
        self._queue = self._queued_at = np.empty(0, np.int64)
        self._next = 0

    def slots_of(self, rows: Ids | slice) -> Slots:
        """Returns the slots of rows; -1 where one has none."""
        slots: Slots = self._slot_of[rows]
        return slots

    def rows_in(self, slots: Ids | Slots) -> Ids:
        """Returns the rows in slots; -1 where one is empty."""
        rows: Ids = self._row_of[slots]
        return rows

    def bring(self, rows: Ids, *, epoch: int, keep: bool) -> Moves:
        """Gives rows slots, and says what must be moved for that.

        Args:
            rows: int64 [n], rows of the table, in any order and several times.
            epoch: Grows with each update of the table.
            keep: Whether an update will follow, and so the rows stay until the epoch has ended.

        Raises:
            HostRowsError: These rows and those that must stay are more than there are slots; no row has moved.
        """
        self._clock += 1
        slots = self._slot_of[rows]
        there = slots >= 0
        self._used[slots[there]] = self._clock
        coming = np.unique(rows[~there])
        taken = self._make_room(len(coming), epoch)
        if taken is None:
            raise self._too_many(rows, epoch)
        moves = Moves(taken, coming, self._row_of[taken], self.changed[taken])
        self._slot_of[moves.leaving[moves.leaving >= 0]] = -1
        self._slot_of[coming] = taken
        self._row_of[taken] = coming
        self.changed[taken] = False
        self._kept[taken] = -1
        if keep:
            self._kept[self._slot_of[rows]] = epoch
        return moves

    def note_update(self, slots: Ids, *, epoch: int) -> Ids:
        """Notes that rows are about to be changed; returns their slots.

        Raises:
            HostRowsError: Some of them did not have to stay since they were looked up; nothing is noted.
        """
        moved = np.count_nonzero(self._kept[slots] != epoch)
        if moved:
            raise HostRowsError(
                f"{moved} of {len(slots)} rows of table {self._table} that are to be updated were not kept in its "
                "cache; look them up with training=True, and update them once"
            )
        self.changed[slots] = True
        return slots

    def _make_room(self, count: int, epoch: int) -> Ids | None:
        """Returns so many slots whose rows may leave; None where there are too few."""
        found = [np.empty(0, np.int64)]
        lacking = count
        while lacking:
            if self._next == len(self._queue) and not self._fill_queue(lacking, epoch):
                return None
            part = slice(self._next, self._next + lacking)
            slots = self._queue[part][self._used[self._queue[part]] == self._queued_at[part]]
            self._next = min(part.stop, len(self._queue))
            self._used[slots] = self._clock
            found.append(slots)
            lacking -= len(slots)
        return np.concatenate(found)

    def _fill_queue(self, lacking: int, epoch: int) -> bool:
        slots = np.flatnonzero((self._kept != epoch) & (self._used != self._clock))
        if len(slots) < lacking:
            return False
        count = max(lacking, self.num_slots // _QUEUED_SHARE)
        if count < len(slots):
            slots = slots[np.argpartition(self._used[slots], count)[:count]]
        self._queue = slots[np.argsort(self._used[slots], kind="stable")]
        self._queued_at = self._used[self._queue]
        self._next = 0
        return True

    def _too_many(self, rows: Ids, epoch: int) -> HostRowsError:
        waiting = self._row_of[self._kept == epoch]
        needed = len(np.unique(np.concatenate([rows, waiting])))
        also = ""
        if len(waiting):
            also = f" ({len(waiting)} wait for the update of lookups before; say training=False where none follows)"
        return HostRowsError(
            f"a batch needs {needed} different rows of table {self._table} at once{also}, but its cache_rows are "
            f"{self.num_slots}; set cache_rows to {needed} or more in the plan, or make the batch smaller"
        )
