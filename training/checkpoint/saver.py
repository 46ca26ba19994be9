"""Checkpoints that are written while training goes on.

    save     copies what this rank writes into host memory, and returns: training stops no longer than that
    thread   writes the files and leaves a record of them in the checkpoint's folder; that of rank 0 waits for the
             records of all ranks, and commits the manifest
    wait     is told on all ranks how that went; the next save begins with it

Why the ranks meet in the folder: Horovod's operations are called by one thread only, in the same order on every rank.
An exchange from a second thread would get in between those of a step, elsewhere on each rank, and the ranks would wait
for each other for ever. The folder is one that all ranks share in any case, and to commit when the last record is there
needs no step to come, so the checkpoint exists as early as it can. What one rank alone knows (that it could not write)
the training threads exchange: `has_failed` travels with the gradients of the next step, and `wait` is collective.

A save that dies leaves a folder without a manifest, which does not count, and which the next save clears away.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankhouse.training.checkpoint.checkpoint import (
    Saving,
    TrainingState,
    begin_saving,
    check_keep,
    save_checkpoint,
    together,
)
from rankhouse.training.checkpoint.host_memory import free_bytes
from rankhouse.training.checkpoint.part import Part, Written, find_record, leave_record, remove_records
from rankhouse.training.data.fit import Fit
from rankhouse.training.errors import CheckpointError
from rankhouse.training.ranks import Ranks

log = logging.getLogger(__name__)

# The copy of the rows may take this share of the memory that is free, by default.
MEMORY_SHARE = 0.5

# A save in which nothing happens for so long is given up.
STALL_SECONDS = 600.0

# How long `close` waits for records of ranks that may be gone.
GRACE_SECONDS = 30.0

_POLL_SECONDS = 0.05

# Writing and hashing yield to the threads that train, but are not starved where these take all cores.
_NICENESS = 5


class CheckpointSaver:
    """Saves a run's state while it trains. One thread per process uses it, the one that trains.

    The copy takes as much memory as this rank writes: its shards' weights, slots and 4 bytes a row, until they are on
    the disk. What does not fit into its share of the free memory is written before `save` returns.
    """

    def __init__(
        self,
        root: Path | str,
        state: TrainingState,
        *,
        ranks: Ranks,
        keep: int | None = None,
        memory_share: float = MEMORY_SHARE,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """Saves nothing yet.

        Args:
            root: The run's `checkpoints` folder, which all ranks share.
            state: What to save.
            ranks: The ranks that train.
            keep: How many of the latest checkpoints to keep, at least 1; None keeps all.
            memory_share: How much of the machine's free memory the copies of its ranks may take together, from 0 to 1;
                with 0 every save is done when `save` returns.
            stall_seconds: After how long without progress a save has failed.

        Raises:
            CheckpointError: A number is out of its range.
        """
        check_keep(keep)
        if not 0 <= memory_share <= 1:
            raise CheckpointError(f"memory_share is {memory_share}; expected a number from 0 to 1")
        self._root, self._state, self._ranks, self._keep = root, state, ranks, keep
        self._memory_share, self._stall_seconds = memory_share, stall_seconds
        self._running: _Running | None = None

    def save(
        self, *, step: int, document: Mapping[str, Any], fit: Fit | None = None, in_background: bool = True
    ) -> Path:
        """Saves the state as it is now; collective. A step that was saved already is left as it is.

        Args:
            step: The number of training steps that the run has done, at least 0.
            document: What else to keep, as in `save_checkpoint`.
            fit: What inputs stand for in the dataset.
            in_background: Whether to return before the checkpoint exists.

        Returns:
            The folder that the checkpoint has, or will have.

        Raises:
            CheckpointError: The save before failed, or this one did already; raised on every rank.
        """
        self.wait()
        known: dict[str, Any] = {"ranks": self._ranks, "step": step, "document": document, "fit": fit}
        if not (in_background and self._memory_share):
            return save_checkpoint(self._root, self._state, keep=self._keep, **known)
        saving = begin_saving(self._root, self._state, **known)
        if not saving.is_saved:
            part = self._state.part(self._ranks.rank)
            limit = int(self._memory_share * free_bytes() / self._ranks.local_size)
            self._running = _Running(saving, part, self._ranks, keep=self._keep, limit_bytes=limit)
        return saving.folder

    @property
    def has_failed(self) -> bool:
        """Whether the save that is running has failed on this rank; then all ranks must call `wait`, which raises."""
        return self._running is not None and self._running.error is not None

    def wait(self) -> None:
        """Waits until the checkpoint that is being saved exists; collective.

        Raises:
            CheckpointError: It could not be saved; raised on every rank, naming one that failed. Older checkpoints are
                untouched.
        """
        running, self._running = self._running, None
        if running is None:
            return
        stall = self._stall_seconds
        try:
            together(self._ranks, lambda: running.finish_part(stall), name="checkpoint_parts")
            together(self._ranks, lambda: running.finish(stall), only_rank=0, name="checkpoint_commit")
        except BaseException:
            running.cancel()
            raise
        self._state.lineage[:] = running.saving.lineage

    def close(self) -> None:
        """Lets what is being saved come to its end, and raises nothing; not collective.

        Call it where training ends by an error, when other ranks may be gone: after this rank has written its part,
        rank 0 waits for half a minute at most until it has those of the others.
        """
        running, self._running = self._running, None
        if running is None:
            return
        try:
            running.finish_part(self._stall_seconds)
            running.finish(GRACE_SECONDS)
        except CheckpointError as exc:
            log.error("%s", exc)
        finally:
            running.cancel()


class _Running:
    """A save whose files a thread writes. The rest is called by the thread that trains."""

    def __init__(self, saving: Saving, part: Part, ranks: Ranks, *, keep: int | None, limit_bytes: int) -> None:
        self.saving = saving
        self.error: str | None = None
        self._part, self._ranks, self._keep = part, ranks, keep
        self._num_records = 0
        self._cancelled, self._has_written, self._has_ended = (threading.Event() for _ in range(3))
        self._attempt(lambda: self._copy(limit_bytes))
        # A daemon: what keeps a process alive is `wait` or `close`, which give up in the end.
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def finish_part(self, stall_seconds: float) -> None:
        """Waits until this rank has written its part.

        Raises:
            CheckpointError: It could not, or nothing was written for so long.
        """
        self._wait_for(self._has_written, stall_seconds, "its part is not written")

    def finish(self, stall_seconds: float) -> None:
        """Waits for all; on rank 0 that is the commit.

        Raises:
            CheckpointError: It failed, or no rank's record came for so long.
        """
        self._wait_for(self._has_ended, stall_seconds, "not all ranks have left the record of their parts in it")

    def cancel(self) -> None:
        """Tells the thread to stop at its next step."""
        self._cancelled.set()

    def _wait_for(self, event: threading.Event, stall_seconds: float, lack: str) -> None:
        progress, since = self._progress(), time.monotonic()
        while not event.wait(min(1.0, stall_seconds)):
            if self._progress() != progress:
                progress, since = self._progress(), time.monotonic()
            elif time.monotonic() - since >= stall_seconds:
                raise CheckpointError(
                    f"{self.saving.folder}: {lack}, and nothing has happened for {stall_seconds:g} s; look whether the "
                    "disk is full or gone, and whether all ranks share the folder"
                )
        if self.error is not None:
            raise CheckpointError(self.error)

    def _progress(self) -> tuple[int, int]:
        return self._part.num_bytes_written, self._num_records

    def _attempt(self, work: Any) -> None:
        try:
            work()
        # Whatever it is: nobody else would ever hear of it.
        except Exception as exc:
            self.error = f"{self.saving.folder}: could not be saved: {exc or type(exc).__name__}"

    def _copy(self, limit_bytes: int) -> None:
        self._part.copy(limit_bytes)
        lacking = self._part.num_bytes - self._part.num_bytes_copied
        if lacking:
            log.warning(
                "%s: a copy of all would take more than the %.1f GiB that may be taken, so training waits until "
                "%.1f GiB are written; see training.checkpoint_memory_share",
                *(self.saving.folder, limit_bytes / 2**30, lacking / 2**30),
            )
            self._part.write_uncopied(self.saving.folder)

    def _run(self) -> None:
        if self.error is None:
            # Where a sandbox forbids it, the files are written all the same.
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
            self._attempt(self._write)
        self._has_written.set()
        self._has_ended.set()

    def _write(self) -> None:
        folder, ranks = self.saving.folder, self._ranks
        written = self._part.write(folder, self._cancelled)
        if ranks.rank > 0:
            leave_record(folder, ranks.rank, written)
            return
        self._has_written.set()
        found = [written, *(self._await_record(rank) for rank in range(1, ranks.size))]
        remove_records(folder)
        self.saving.commit(found, keep=self._keep)
        log.info("step %d: %s is complete", self.saving.manifest["step"], folder)

    def _await_record(self, rank: int) -> Written:
        while not self._cancelled.is_set():
            written = find_record(self.saving.folder, rank)
            if written is not None:
                self._num_records += 1
                return written
            self._cancelled.wait(_POLL_SECONDS)
        raise CheckpointError(f"given up before rank {rank} had written its part")
