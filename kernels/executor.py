"""Threads and memory that calls use one after the other, instead of starting and allocating their own."""

import ctypes
from types import TracebackType

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError


class Executor:
    """Threads that wait between calls, and the memory that calls need while they run.

    Give it to the operations in the place of `num_threads`. Calls of some microseconds gain most. One call at a time
    uses it: a second one, from another thread, gets an ArgumentError. It does not survive `os.fork()`.

        with Executor() as executor:
            for batch in batches:
                pooled_lookup(..., num_threads=executor)

    Args:
        num_threads: How many threads work on a call, the calling one included; None: as many as there are processors.

    Raises:
        ArgumentError: num_threads is below 1.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        if num_threads is not None and not 1 <= num_threads < 2**31:
            raise ArgumentError(f"num_threads is {num_threads}: expected at least 1, or None for all processors")
        self._kernels = library.load()
        self._pool = ctypes.c_void_p()
        self._scratch = ctypes.c_void_p()
        library.check(self._kernels.rh_thread_pool_create(num_threads or 0, ctypes.byref(self._pool)))
        try:
            library.check(self._kernels.rh_scratch_create(ctypes.byref(self._scratch)))
        except Exception:
            self.close()
            raise

    def native(self) -> library.Executor:
        """Returns the rh_executor that calls are given.

        Raises:
            ArgumentError: The executor is closed.
        """
        if not self._pool:
            raise ArgumentError("the executor is closed: make calls before close() or the end of its with block")
        return library.Executor(
            parallel_for=ctypes.cast(self._kernels.rh_thread_pool_for, ctypes.c_void_p),
            context=self._pool,
            scratch=self._scratch,
        )

    def close(self) -> None:
        """Ends the threads and gives the memory back; no call may be running."""
        self._kernels.rh_thread_pool_destroy(self._pool)
        self._kernels.rh_scratch_destroy(self._scratch)
        self._pool = ctypes.c_void_p()
        self._scratch = ctypes.c_void_p()

    def __enter__(self) -> "Executor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Nothing was made where the constructor refused its argument.
        if hasattr(self, "_pool") and hasattr(self, "_scratch"):
            self.close()


# How a call is told about threads: how many of its own it may start, or an executor whose threads it uses.
Threads = int | Executor | None


def executor_of(threads: Threads) -> library.Executor | None:
    """Returns what the library is told about threads.

    Raises:
        ArgumentError: The number of threads is below 1, or the executor is closed.
    """
    if threads is None:
        return None
    if isinstance(threads, Executor):
        return threads.native()
    if threads < 1:
        raise ArgumentError(f"num_threads is {threads}: expected at least 1, or None for all processors")
    return library.Executor(num_threads=threads)
