"""PyTorch's EmbeddingBag, FBGEMM's table-batched op and TorchRec's collection, on one copy of the tables.

FBGEMM runs without its check of ids, which favours it. Lookups give [B, F * D], as a model takes it.
"""

import ctypes
import logging
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch

from benchmarks.support.embedding.candidate import (
    EPSILON,
    FIRST_ACCUMULATOR,
    LEARNING_RATE,
    Candidate,
    compared_samples,
)
from benchmarks.support.embedding.cells import Cell, Pattern, TableShape

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

from fbgemm_gpu.split_embedding_configs import EmbOptimType  # noqa: E402
from fbgemm_gpu.split_table_batched_embeddings_ops_common import (  # noqa: E402
    BoundsCheckMode,
    EmbeddingLocation,
    PoolingMode,
)
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (  # noqa: E402
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor  # noqa: E402


class TorchCandidates:
    """Candidates in PyTorch."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)

    def set_tables(self, tables: TableShape) -> None:
        """Makes the tables as torch makes them, and what optimizers keep."""
        self._tables, self._pattern = tables, Pattern(tables)
        self._weights = torch.empty(tables.num_tables * tables.rows * tables.dim)
        self._views = list(self._weights.view(tables.num_tables, tables.rows, tables.dim))
        for table, view in enumerate(self._views):
            self._pattern.fill(view.view(-1).numpy(), table)
        if tables.training:
            self._accumulators = torch.full_like(self._weights, FIRST_ACCUMULATOR)

    def make(self, cell: Cell, ids: np.ndarray, gradient: np.ndarray) -> list[Candidate]:
        """Returns the candidates for a cell."""
        num_features, num_bags = cell.tables.num_tables, cell.tables.num_tables * cell.batch_size
        self._batches = list(torch.from_numpy(ids).reshape(len(ids), num_features, -1))
        self._flat_batches = [batch.reshape(-1) for batch in self._batches]
        self._offsets = torch.arange(0, (num_bags + 1) * cell.hotness, cell.hotness)
        self._bag_offsets = torch.arange(0, cell.batch_size * cell.hotness, cell.hotness)
        self._gradient = torch.from_numpy(gradient)
        return self._training() if cell.tables.training else self._forward(cell)

    # -- Lookup

    def _forward(self, cell: Cell) -> list[Candidate]:
        lookups = {
            "EmbeddingBag": self._embedding_bags(sparse=False),
            "FBGEMM": self._table_batched(EmbOptimType.EXACT_SGD),
            "TorchRec": self._collection(cell),
        }
        return [self._lookup(name, lookup, cell) for name, lookup in lookups.items()]

    def _lookup(self, name: str, lookup: Callable[[int], torch.Tensor], cell: Cell) -> Candidate:
        last: list[torch.Tensor] = []

        @torch.no_grad()
        def run(batch: int) -> None:
            last[:] = [lookup(batch)]

        def result(_: Sequence[np.ndarray]) -> np.ndarray:
            return last[0][compared_samples(cell.batch_size)].numpy()

        return Candidate(name, run, result, lambda _: None)

    def _bags(self, *, sparse: bool) -> list[torch.nn.EmbeddingBag]:
        return [
            torch.nn.EmbeddingBag(*view.shape, mode="sum", sparse=sparse, _weight=view.detach()) for view in self._views
        ]

    def _embedding_bags(self, *, sparse: bool) -> Callable[[int], torch.Tensor]:
        return self._lookup_of(self._bags(sparse=sparse))

    def _lookup_of(self, bags: list[torch.nn.EmbeddingBag]) -> Callable[[int], torch.Tensor]:
        def lookup(batch: int) -> torch.Tensor:
            pooled = [bag(ids, self._bag_offsets) for bag, ids in zip(bags, self._batches[batch], strict=True)]
            return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=1)

        return lookup

    def _table_batched(self, optimizer: EmbOptimType) -> Callable[[int], torch.Tensor]:
        op = self._table_batched_op(optimizer)
        return lambda batch: op(self._flat_batches[batch], self._offsets)

    def _table_batched_op(self, optimizer: EmbOptimType) -> SplitTableBatchedEmbeddingBagsCodegen:
        tables = self._tables
        # It makes tables of its own, which ours replace.
        op = SplitTableBatchedEmbeddingBagsCodegen(
            [(tables.rows, tables.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * tables.num_tables,
            optimizer=optimizer,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
            pooling_mode=PoolingMode.SUM,
            bounds_check_mode=BoundsCheckMode.NONE,
        )
        op.weights_host.data = self._weights
        return op

    def _collection(self, cell: Cell) -> Callable[[int], torch.Tensor]:
        tables = self._tables
        keys = [f"f{table}" for table in range(tables.num_tables)]
        collection = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(name=key, embedding_dim=tables.dim, num_embeddings=tables.rows, feature_names=[key])
                for key in keys
            ],
            device=torch.device("meta"),
        )
        for bag, view in zip(collection.embedding_bags.values(), self._views, strict=True):
            bag.weight = torch.nn.Parameter(view)
        lengths = torch.full((tables.num_tables * cell.batch_size,), cell.hotness)
        batches = [
            KeyedJaggedTensor(keys=keys, values=ids, lengths=lengths, offsets=self._offsets)
            for ids in self._flat_batches
        ]
        return lambda batch: collection(batches[batch]).values()

    # -- Lookup, backward and one step of the optimizer

    def _training(self) -> list[Candidate]:
        shape = (self._tables.num_tables, self._tables.rows, self._tables.dim)
        accumulators = list(self._accumulators.view(shape))
        per_row = torch.full(shape[:2], FIRST_ACCUMULATOR)
        return [
            self._sparse_adagrad(accumulators),
            self._fused("FBGEMM Adagrad", EmbOptimType.EXACT_ADAGRAD, accumulators, self._accumulators),
            self._fused("FBGEMM row-wise", EmbOptimType.EXACT_ROWWISE_ADAGRAD, list(per_row), per_row.view(-1)),
        ]

    def _sparse_adagrad(self, accumulators: list[torch.Tensor]) -> Candidate:
        bags = self._bags(sparse=True)
        weights = [bag.weight for bag in bags]
        optimizer = torch.optim.Adagrad(weights, lr=LEARNING_RATE, eps=EPSILON)
        for weight, accumulator in zip(weights, accumulators, strict=True):
            optimizer.state[weight]["sum"] = accumulator
        _give_back()
        lookup = self._lookup_of(bags)

        def run(batch: int) -> None:
            lookup(batch).backward(self._gradient)
            optimizer.step()
            optimizer.zero_grad()

        return self._trained("torch Adagrad", run, accumulators)

    def _fused(
        self, name: str, kind: EmbOptimType, accumulators: list[torch.Tensor], flat_accumulators: torch.Tensor
    ) -> Candidate:
        op = self._table_batched_op(kind)
        op.momentum1_host.data = flat_accumulators
        _give_back()

        def run(batch: int) -> None:
            op(self._flat_batches[batch], self._offsets).backward(self._gradient)

        return self._trained(name, run, accumulators)

    def _trained(self, name: str, run: Callable[[int], None], accumulators: list[torch.Tensor]) -> Candidate:
        def reset(touched: Sequence[np.ndarray]) -> None:
            for table, rows in enumerate(touched):
                ids = torch.from_numpy(rows)
                self._views[table][ids] = torch.from_numpy(self._pattern.rows(table, rows))
                accumulators[table][ids] = FIRST_ACCUMULATOR

        def result(compared: Sequence[np.ndarray]) -> np.ndarray:
            rows = [view[torch.from_numpy(ids)] for view, ids in zip(self._views, compared, strict=True)]
            return torch.cat(rows).numpy()

        return Candidate(name, run, result, reset)


def _give_back() -> None:
    """Gives freed memory back to the system, which our allocator settings keep: tables that were replaced."""
    ctypes.CDLL(None).malloc_trim(0)
