"""The loader: a prepared split as batches, each rank reading only its own lanes (ARCHITECTURE.md, "Lanes")."""

import queue
import threading
from collections.abc import Iterator

from rankhouse.training.data.lanes import NUM_LANES, Window, lane_blocks, lane_windows, rows_given
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.row_groups import RowGroups
from rankhouse.training.data.rows import Batch, Rows, joined
from rankhouse.training.errors import DatasetError

# With 16 lanes in one process and Criteo's 39 features this is about 70 MB.
_WINDOW_ROWS = 16_384
_PREFETCHED_BATCHES = 4


class BatchLoader:
    """Reads a split in batches, in memory that does not depend on its size.

    The global batches are the same for every `num_ranks`: put one after the other, the parts of all ranks are the
    batch of one rank alone. One thread may iterate at a time; a second thread reads ahead and ends with the iterator.

    Args:
        dataset: The prepared dataset.
        split: Name of the split.
        batch_size: Samples of a global batch, over all ranks; the last one may be smaller.
        rank: This process, from 0.
        num_ranks: Processes in all, at most `num_lanes`.
        seed: Keys the order of the samples, together with the epoch.
        shuffle: Whether the order is random; without, lanes are read from front to back.
        num_lanes: Lanes of the split. Batches differ between different numbers of lanes.

    Raises:
        DatasetError: There is no such split, its files are damaged, or the numbers are impossible.
    """

    def __init__(
        self,
        dataset: PreparedDataset,
        split: str,
        *,
        batch_size: int,
        rank: int = 0,
        num_ranks: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        num_lanes: int = NUM_LANES,
    ) -> None:
        if batch_size < 1:
            raise DatasetError(f"batch_size is at least 1, not {batch_size}")
        if not 0 <= rank < num_ranks <= num_lanes:
            raise DatasetError(
                f"rank {rank} of {num_ranks} ranks cannot read {num_lanes} lanes: every rank needs at least one lane; "
                "start fewer ranks or raise num_lanes"
            )
        self._spec = dataset.spec
        self._row_groups = RowGroups(dataset, split)
        self._lanes = range(rank * num_lanes // num_ranks, (rank + 1) * num_lanes // num_ranks)
        self._num_lanes = num_lanes
        self._batch_size = batch_size
        self._seed = seed
        self._shuffle = shuffle
        self.num_rows = dataset.split(split).num_rows

    @property
    def num_steps(self) -> int:
        """Batches of an epoch, the same on every rank."""
        return -(-self.num_rows // self._batch_size)

    def batches(self, first_step: int = 0, epoch: int = 0) -> Iterator[Batch]:
        """Reads this rank's parts of the batches of an epoch.

        Args:
            first_step: Step to begin at, from 0: what a resumed run goes on with.
            epoch: Keys the order of the samples.

        Yields:
            One batch for each step, empty ones too.

        Raises:
            DatasetError: A file is damaged.
        """
        ready: queue.Queue[Batch | BaseException | None] = queue.Queue(maxsize=_PREFETCHED_BATCHES)
        stop = threading.Event()
        arguments = (self._read(first_step, epoch), ready, stop)
        reader = threading.Thread(target=_prefetch, args=arguments, name="batch-reader", daemon=True)
        reader.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            # The reader may wait for a free place in the queue, so places are made free until it has seen the event.
            stop.set()
            while reader.is_alive():
                while not ready.empty():
                    ready.get_nowait()
                reader.join(timeout=0.01)

    def _read(self, first_step: int, epoch: int) -> Iterator[Batch]:
        readers = {lane: self._reader(lane, self._rows_before(first_step, lane), epoch) for lane in self._lanes}
        for step in range(first_step, self.num_steps):
            parts: list[Rows] = []
            for lane, reader in readers.items():
                parts += reader.take(self._rows_before(step + 1, lane) - self._rows_before(step, lane))
            yield joined(self._spec, parts)

    def _reader(self, lane: int, position: int, epoch: int) -> "_LaneReader":
        seed = (self._seed, epoch, lane) if self._shuffle else None
        blocks = lane_blocks(self._row_groups.num_rows, lane, self._num_lanes)
        windows = lane_windows(blocks, window_rows=_WINDOW_ROWS, seed=seed)
        return _LaneReader(self._row_groups, windows, position)

    def _rows_before(self, step: int, lane: int) -> int:
        return rows_given(min(step * self._batch_size, self.num_rows), lane, self._num_lanes)


class _LaneReader:
    """Gives a lane's rows in their order, one window in memory at a time."""

    def __init__(self, row_groups: RowGroups, windows: Iterator[Window], position: int) -> None:
        self._row_groups = row_groups
        self._windows = windows
        # Rows that were given already, counted in the window or, before one is read, from the next window on.
        self._given = position
        self._rows: Rows | None = None

    def take(self, num_rows: int) -> list[Rows]:
        parts = []
        while num_rows:
            if self._rows is None:
                self._rows = self._next_window()
            part = self._rows.part(self._given, self._given + num_rows)
            parts.append(part)
            num_rows -= part.num_rows
            self._given += part.num_rows
            if self._given == self._rows.num_rows:
                self._rows, self._given = None, 0
        return parts

    def _next_window(self) -> Rows:
        """Reads the window that the next row is in; those before it are never read."""
        window = next(self._windows)
        while self._given >= window.num_rows:
            self._given -= window.num_rows
            window = next(self._windows)
        rows, order = self._row_groups.read(window.blocks), window.order()
        return rows if order is None else rows.reordered(order)


def _prefetch(
    batches: Iterator[Batch], ready: "queue.Queue[Batch | BaseException | None]", stop: threading.Event
) -> None:
    """Fills the queue until the batches end, one fails, or nobody wants them any more."""
    try:
        for batch in batches:
            ready.put(batch)
            if stop.is_set():
                return
        ready.put(None)
    except BaseException as exc:  # Whatever it is, it belongs to the thread that waits for the batch.
        ready.put(exc)
