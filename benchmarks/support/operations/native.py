"""Our operations through the C interface, NumPy's and Python's own."""

import ctypes
from collections.abc import Callable

import numpy as np

from benchmarks.support.embedding.native_memory import allocate
from benchmarks.support.operations.candidate import NAME, NUM_COMPARED, Candidate, rebuilt
from benchmarks.support.operations.cases import NUM_EMBEDDINGS, Case
from rankhouse.kernels import library

INT8_ROWWISE = 3


class NativeOperations:
    """Candidates in C, with everything preallocated, and in NumPy and Python."""

    def __init__(self, num_threads: int) -> None:
        self._library = library.load()
        pool, scratch = ctypes.c_void_p(), ctypes.c_void_p()
        library.check(self._library.rh_thread_pool_create(num_threads, ctypes.byref(pool)))
        library.check(self._library.rh_scratch_create(ctypes.byref(scratch)))
        parallel_for = ctypes.cast(self._library.rh_thread_pool_for, ctypes.c_void_p)
        self._executor = ctypes.byref(library.Executor(parallel_for, pool, num_threads, scratch))

    def make(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        """Returns the candidates for a case."""
        arrays = {name: _copied(array) for name, array in arrays.items()}
        makers: dict[str, Callable[[Case, dict[str, np.ndarray]], list[Candidate]]] = {
            "unique": self._unique,
            "vocabulary-lookup": self._vocabulary_lookup,
            "vocabulary-observe": self._vocabulary_observe,
            "interaction": self._interaction,
            "interaction-backward": self._interaction_backward,
            "quantize": self._quantize,
            "dequantize": self._dequantize,
        }
        return makers[case.operation](case, arrays)

    def _unique(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        keys = arrays["keys"]
        unique, inverse = allocate(case.count, dtype=np.int64), allocate(case.count, dtype=np.int64)
        num_unique = ctypes.c_int64()
        pointers = unique.ctypes.data, inverse.ctypes.data, None, ctypes.byref(num_unique)
        last: list[np.ndarray] = []

        def ours(batch: int) -> None:
            library.check(self._library.rh_unique(keys[batch].ctypes.data, case.count, *pointers, self._executor))

        def numpys(batch: int) -> None:
            last[:] = np.unique(keys[batch], return_inverse=True)

        return [
            Candidate(NAME, ours, lambda: rebuilt(unique[: num_unique.value], inverse)),
            Candidate("np.unique", numpys, lambda: rebuilt(*last)),
        ]

    def _vocabulary_lookup(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        known, keys = np.sort(arrays["known"]), arrays["keys"]
        handle, ids = self._vocabulary(known), allocate(case.count, dtype=np.int64)
        mapping = {int(key): number + 1 for number, key in enumerate(known)}
        key_lists = [batch.tolist() for batch in keys]
        last: list[list[int]] = []

        def ours(batch: int) -> None:
            library.check(
                self._library.rh_vocabulary_lookup(
                    handle, keys[batch].ctypes.data, case.count, ids.ctypes.data, self._executor
                )
            )

        def pythons(batch: int) -> None:
            last[:] = [[mapping.get(key, 0) for key in key_lists[batch]]]

        return [Candidate(NAME, ours, lambda: ids), Candidate("dict", pythons, lambda: np.array(last[0]))]

    def _vocabulary_observe(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        keys, handle = arrays["keys"], self._vocabulary(None)
        counts: dict[int, int] = {}
        key_lists = [batch.tolist() for batch in keys]
        num_evicted, step = ctypes.c_int64(), iter(range(1 << 40))

        def ours(batch: int) -> None:
            library.check(
                self._library.rh_vocabulary_observe(
                    handle, keys[batch].ctypes.data, None, case.count, next(step), None, ctypes.byref(num_evicted)
                )
            )

        def pythons(batch: int) -> None:
            for key in key_lists[batch]:
                counts[key] = counts.get(key, 0) + 1

        return [
            Candidate(NAME, ours, lambda: np.array([self._library.rh_vocabulary_size(handle)])),
            Candidate("dict", pythons, lambda: np.array([len(counts)])),
        ]

    def _vocabulary(self, known: np.ndarray | None) -> ctypes.c_void_p:
        """Returns a vocabulary that knows these keys, which increase, by ids from 1."""
        options = library.VocabularyOptions(first_id=1, max_keys=4_000_000)
        handle = ctypes.c_void_p()
        library.check(self._library.rh_vocabulary_create(options, ctypes.byref(handle)))
        if known is not None:
            ids, ones = np.arange(1, len(known) + 1), np.ones(len(known), np.int64)
            pointers = (array.ctypes.data for array in (known, ids, ones, ones))
            library.check(self._library.rh_vocabulary_import(handle, *pointers, len(known)))
        return handle

    def _interaction(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        shape, out = _interaction_shape(case), allocate(*arrays["grad"].shape)
        bottom, embeddings = arrays["bottom"], arrays["embeddings"]

        def ours(batch: int) -> None:
            pointers = bottom[batch].ctypes.data, embeddings[batch].ctypes.data, out.ctypes.data
            library.check(self._library.rh_dot_interaction(shape, *pointers, self._executor))

        return [Candidate(NAME, ours, lambda: out[:NUM_COMPARED])]

    def _interaction_backward(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        shape, out = _interaction_shape(case), allocate(*arrays["grad"].shape)
        bottom, embeddings, grad = arrays["bottom"], arrays["embeddings"], arrays["grad"]
        bottom_grad, embeddings_grad = allocate(*bottom[0].shape), allocate(*embeddings[0].shape)

        def ours(batch: int) -> None:
            inputs = bottom[batch].ctypes.data, embeddings[batch].ctypes.data
            outputs = bottom_grad.ctypes.data, embeddings_grad.ctypes.data
            library.check(self._library.rh_dot_interaction(shape, *inputs, out.ctypes.data, self._executor))
            library.check(
                self._library.rh_dot_interaction_gradient(shape, *inputs, grad.ctypes.data, *outputs, self._executor)
            )

        def result() -> np.ndarray:
            return np.concatenate([bottom_grad[:NUM_COMPARED], embeddings_grad[:NUM_COMPARED]], axis=1)

        return [Candidate(NAME, ours, result)]

    def _quantize(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        rows, quantized = arrays["rows"], allocate(case.count, case.dim + 8, dtype=np.uint8)

        return [
            Candidate(NAME, lambda batch: self._quantize_into(quantized, rows[batch]), lambda: quantized[:NUM_COMPARED])
        ]

    def _quantize_into(self, quantized: np.ndarray, rows: np.ndarray) -> None:
        library.check(
            self._library.rh_quantize_rows(
                rows.ctypes.data, *rows.shape, INT8_ROWWISE, 0, quantized.ctypes.data, self._executor
            )
        )

    def _dequantize(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        rows, quantized = allocate(case.count, case.dim), allocate(case.count, case.dim + 8, dtype=np.uint8)
        self._quantize_into(quantized, arrays["rows"][0])

        def ours(_: int) -> None:
            library.check(
                self._library.rh_dequantize_rows(
                    quantized.ctypes.data, *rows.shape, INT8_ROWWISE, 0, rows.ctypes.data, self._executor
                )
            )

        return [Candidate(NAME, ours, lambda: rows[:NUM_COMPARED])]


def _interaction_shape(case: Case) -> library.Interaction:
    return library.Interaction(batch_size=case.count, dim=case.dim, num_embeddings=NUM_EMBEDDINGS, has_bottom=1)


def _copied(array: np.ndarray) -> np.ndarray:
    copy = allocate(*array.shape, dtype=array.dtype.type)
    copy[:] = array
    return copy
