"""The engine that looks embeddings up in versions: the compiled one, on NumPy arrays.

Shapes: B samples, F features, N ids in all, D a table's width, E the sum of the widths of all features.
"""

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache import library
from rankhouse.embedding_cache.batch import Ids, NativeBatch, Rows, address_of, array_of
from rankhouse.embedding_cache.device_arrays import device_view, lie_on_device
from rankhouse.embedding_cache.errors import BatchError, ClosedError, OptionError
from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.library import Answer
from rankhouse.kernels.executor import Threads, executor_of

__all__ = ["Answer", "Engine", "OpenVersion"]


class Engine:
    """Opens versions and looks their rows up. Any thread may call it.

    Files are mapped once, whatever number of open versions share them: opening a version that continues an open one
    costs what it has of its own. One engine for a process is the idea.

        engine = Engine()
        with engine.open("store") as version:
            embeddings = version.lookup(batch.ids, batch.lengths)

    Args:
        options: num_threads: most threads of a call, and of checking files; 0 (default): all processors. memory: "map"
            (default), rows are read from the mapped files, or "pin", they are copied into huge pages when a file is
            opened. out_of_range: what becomes of an id that is no row: "error" (default), "zero", "clip" or
            "unknown_row". rows: "local" (default), or "redis", with how it is reached under redis. hot_rows: a folder
            that keeps which rows are hot, so that the next engine has them in memory when it opens a version. device:
            the number of a GPU, for `lookup_cuda`. `rankhouse/engine.h` has them all.

    Raises:
        OptionError: There is no such option, or it cannot have this value, as a GPU that the machine does not have.
        UnsupportedError: There is the option device, and the library was built without CUDA.
    """

    def __init__(self, **options: Any) -> None:
        self._native = library.load()
        self._engine = ctypes.c_void_p()
        self._needs_files = options.get("rows") != "redis"
        try:
            library.check(self._native.rh_engine_create(json.dumps(options).encode(), ctypes.byref(self._engine)))
        except BatchError as exc:
            raise OptionError(str(exc)) from exc

    def open(self, store: Path | str, name: str = "latest", *, verify: bool = True) -> "OpenVersion":
        """Opens a version.

        Args:
            store: The store's folder; or its URL, whose files are mirrored first, as `VersionStore` does it.
            name: A version's name, or "latest" for the newest.
            verify: Whether to compare the checksum of every file that this engine has not verified before. Presence and
                size are compared in any case, and where each delta belongs.

        Raises:
            VersionNotFoundError: There is no such version.
            ManifestError: Its manifest is malformed, made by a newer release, or contradicts its parent's.
            CorruptFileError: A file is missing, truncated or altered.
            StorageError: A bucket cannot be reached, does not exist, or denies access.
            TierError: Rows are to be in Redis, which cannot be reached or does not have the version.
        """
        folder = Path(store)
        if "://" in str(store):
            version = VersionStore(store).open(name, verify=False, tables=self._needs_files)
            folder, name = version.store, version.name
        handle = ctypes.c_void_p()
        library.check(
            self._native.rh_engine_open(self._engine, bytes(folder), name.encode(), verify, ctypes.byref(handle))
        )
        return OpenVersion(_Handle(self._native, handle))

    def metrics(self) -> str:
        """Gives the counters of the engine and its open versions in Prometheus' text format."""
        size, text = ctypes.c_int64(), ctypes.create_string_buffer(1 << 14)
        while True:
            library.check(self._native.rh_engine_metrics(self._engine, text, len(text), ctypes.byref(size)))
            if size.value <= len(text):
                return text.value.decode()
            text = ctypes.create_string_buffer(2 * size.value)

    def stats(self) -> dict[str, float]:
        """Gives the counters by name and labels, as they stand in `metrics`."""
        samples = (line.rsplit(" ", 1) for line in self.metrics().splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._native.rh_engine_destroy(self._engine)


class OpenVersion:
    """A version that an engine has opened. It never changes; any thread may call it.

    Attributes:
        model: The name of its model.
        name: Its own name.
        folder: Its folder.
        tables: The names of its tables.
        features: The names of its features in the order of the columns of `embeddings`.
        embeddings_dim: E.
    """

    def __init__(self, handle: "_Handle") -> None:
        self._handle: _Handle | None = handle
        description = handle.describe()
        self.model: str = description["model"]
        self.name: str = description["name"]
        self.folder = Path(description["folder"])
        self.tables: tuple[str, ...] = tuple(table["name"] for table in description["tables"])
        self.features: tuple[str, ...] = tuple(feature["name"] for feature in description["features"])
        self.embeddings_dim: int = description["embeddings_dim"]
        self._table_dims = [table["dim"] for table in description["tables"]]
        self._dims = [feature["dim"] for feature in description["features"]]
        self._column_begins: list[int] = [feature["column_begin"] for feature in description["features"]]

    def lookup(
        self,
        ids: Any,
        lengths: Any = None,
        *,
        offsets: Any = None,
        weights: Any = None,
        combiners: Sequence[str] | None = None,
        num_threads: Threads = None,
        answer: Answer | None = None,
        out: Rows | None = None,
    ) -> Rows:
        """Pools the rows of each bag. Arrays are NumPy's, or of anything else that has DLPack.

        Args:
            ids: int64 or int32 [N], feature-major: all ids of feature 0, sample by sample, then of feature 1, ...
            lengths: int32 [F, B], ids per bag; an empty bag pools to zeros.
            offsets: int64 [F * B + 1], in the place of lengths: bag (f, b) is ids[offsets[f * B + b] : ... + 1].
            weights: float32 [N]; None: all are 1.
            combiners: "sum", "mean" or "sqrtn" for each feature; None: the version's.
            num_threads: Most threads to use, or an Executor; None: what the engine was told.
            answer: Is told how many ids were unknown, and whether default rows stand in for some.
            out: float32 [B, E], contiguous, that the result is written to; None: an array of its own. Memory that is
                new to the process costs more than the lookup.

        Returns:
            float32 [B, E], the features side by side; `out` where it was given.

        Raises:
            BatchError: An array has another dtype or shape, lengths do not add up, or an id is outside its table (where
                the engine's out_of_range is "error").
            ClosedError: The version is closed.
            TierError: Rows lie in Redis and did not come by the deadline (where if_tier_fails is "error").
        """
        handle = self._open_handle()
        batch = NativeBatch(len(self._dims), ids, lengths, offsets, weights, combiners)
        if combiners is not None and "none" in combiners:
            raise BatchError("the combiner 'none' does not pool: use lookup_rows")
        shape = batch.batch_size, self.embeddings_dim
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.shape != shape or out.dtype != np.float32 or not (out.flags.c_contiguous and out.flags.writeable):
            raise BatchError(f"out is {out.dtype} {list(out.shape)}; expected float32 {list(shape)} to be written to")
        handle.lookup_matrix(batch, out, answer, num_threads)
        return out

    def lookup_cuda(
        self,
        ids: Any,
        lengths: Any = None,
        *,
        out: Any,
        offsets: Any = None,
        weights: Any = None,
        combiners: Sequence[str] | None = None,
        stream: int = 0,
        num_threads: Threads = None,
        answer: Answer | None = None,
    ) -> None:
        """Does what `lookup` does, with the same bits, on the GPU that the engine was told of (its option device).

        Arrays on the GPU are those with __cuda_array_interface__, as PyTorch's, CuPy's and JAX's, contiguous. They
        belong to the call until the stream has passed it.

        Args:
            ids: As in `lookup`, and so are lengths, offsets and weights: all on the host, or all on the GPU, from where
                ids and bags are copied to the host first.
            lengths: As ids.
            out: float32 [B, E] on the GPU, which the call writes.
            offsets: As ids.
            weights: As ids.
            combiners: As in `lookup`.
            stream: The CUDA stream that the work is queued on, as torch.cuda.current_stream().cuda_stream.
            num_threads: As in `lookup`, for the work on the host.
            answer: As in `lookup`.

        Raises:
            UnsupportedError: The engine has no GPU.
            BatchError, ClosedError, TierError: As in `lookup`.
        """
        handle = self._open_handle()
        arrays = {"ids": ids, "lengths": lengths, "offsets": offsets, "weights": weights}
        on_device = lie_on_device(arrays)
        if on_device:
            arrays = {name: array if array is None else device_view(array, name) for name, array in arrays.items()}
        batch = NativeBatch(len(self._dims), **arrays, combiners=combiners)
        batch.native.memory = int(on_device)
        if combiners is not None and "none" in combiners:
            raise BatchError("the combiner 'none' does not pool: use lookup_rows")
        out_BE = device_view(out, "out")
        shape = (batch.batch_size, self.embeddings_dim)
        if out_BE.dtype != np.float32 or out_BE.shape != shape:
            raise BatchError(f"out is {out_BE.dtype} {list(out_BE.shape)}; expected float32 {list(shape)}")
        if out.__cuda_array_interface__["data"][1]:
            raise BatchError("out is read-only, as JAX's arrays are; expected one that may be written")
        columns = [[out_BE.ctypes.data + 4 * begin, self.embeddings_dim] for begin in self._column_begins]
        rows = np.array(columns, np.int64).reshape(-1, 2)
        handle.lookup_cuda(batch, rows, answer, num_threads, stream)

    def lookup_rows(
        self,
        ids: Any,
        lengths: Any = None,
        *,
        offsets: Any = None,
        num_threads: Threads = None,
        answer: Answer | None = None,
    ) -> list[Rows]:
        """Gives each id's row by itself, without pooling. The arguments are those of `lookup`.

        Returns:
            For each feature, float32 [its ids, D] in the order of the ids.

        Raises:
            BatchError, ClosedError: As in `lookup`.
        """
        handle = self._open_handle()
        batch = NativeBatch(len(self._dims), ids, lengths, offsets, None, ["none"] * len(self._dims))
        counts = batch.ids_per_feature()
        outs = [np.empty((count, dim), np.float32) for count, dim in zip(counts, self._dims, strict=True)]
        rows = np.array([[out.ctypes.data, dim] for out, dim in zip(outs, self._dims, strict=True)], np.int64)
        handle.lookup(batch, rows, answer, num_threads)
        return outs

    def gather(self, table: str, ids: Any, *, num_threads: Threads = None, answer: Answer | None = None) -> Rows:
        """Gives rows of one table by ids [n], float32 [n, D]. The other arguments are those of `lookup`.

        Raises:
            ContentError: There is no such table.
            BatchError, ClosedError: As in `lookup`.
        """
        handle = self._open_handle()
        if table not in self.tables:
            raise ContentError(f"version {self.name} has no table {table!r}; it has {', '.join(self.tables)}")
        number = self.tables.index(table)
        ids_N: Ids = np.ascontiguousarray(array_of(ids, "ids", (np.int64, np.int32), 1), np.int64)
        out = np.empty((len(ids_N), self._table_dims[number]), np.float32)
        handle.gather(number, ids_N, out, answer, num_threads)
        return out

    def close(self) -> None:
        """Closes it; lookups in flight on other threads end first. What no other version uses is freed."""
        self._handle = None

    def _open_handle(self) -> "_Handle":
        handle = self._handle
        if handle is None:
            raise ClosedError(f"version {self.name} of {self.model!r} is closed: open it again")
        return handle

    def __enter__(self) -> "OpenVersion":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Handle:
    """An rh_engine_version. Each call holds a reference to it, so that it is closed when the last one has ended."""

    def __init__(self, native: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._native = native
        self._handle = handle

    def __del__(self) -> None:
        self._native.rh_engine_close(self._handle)

    def describe(self) -> dict[str, Any]:
        text = ctypes.c_char_p()
        library.check(self._native.rh_engine_version_json(self._handle, ctypes.byref(text)))
        description: dict[str, Any] = json.loads(text.value or b"")
        return description

    def lookup(self, batch: NativeBatch, rows: npt.NDArray[np.int64], answer: Answer | None, threads: Threads) -> None:
        library.check(
            self._native.rh_engine_lookup(self._handle, batch.native, rows.ctypes.data, answer, executor_of(threads))
        )

    def lookup_matrix(self, batch: NativeBatch, out: Rows, answer: Answer | None, threads: Threads) -> None:
        executor = executor_of(threads)
        library.check(
            self._native.rh_engine_lookup_matrix(
                self._handle, batch.native, address_of(out), out.shape[1], answer, executor
            )
        )

    def lookup_cuda(
        self, batch: NativeBatch, rows: npt.NDArray[np.int64], answer: Answer | None, threads: Threads, stream: int
    ) -> None:
        library.check(
            self._native.rh_engine_lookup_cuda(
                self._handle, batch.native, rows.ctypes.data, answer, executor_of(threads), stream
            )
        )

    def gather(self, table: int, ids_N: Ids, out: Rows, answer: Answer | None, threads: Threads) -> None:
        library.check(
            self._native.rh_engine_gather(
                self._handle, table, ids_N.ctypes.data, len(ids_N), out.ctypes.data, answer, executor_of(threads)
            )
        )
