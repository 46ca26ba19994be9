"""PyTorch's ways, and FBGEMM's conversion of rows."""

import logging
import warnings
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.support.operations.candidate import NUM_COMPARED, Candidate, rebuilt
from benchmarks.support.operations.cases import NUM_EMBEDDINGS, Case

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import fbgemm_gpu  # noqa: E402, F401


class TorchOperations:
    """Candidates in PyTorch."""

    def __init__(self, num_threads: int) -> None:
        torch.set_num_threads(num_threads)

    def make(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        """Returns the candidates for a case, none where PyTorch has nothing for it."""
        tensors = {name: torch.from_numpy(array).clone() for name, array in arrays.items()}
        makers: dict[str, Callable[[dict[str, torch.Tensor]], list[Candidate]]] = {
            "unique": self._unique,
            "interaction": lambda tensors: self._interaction(tensors, backward=False),
            "interaction-backward": lambda tensors: self._interaction(tensors, backward=True),
            "quantize": self._quantize,
            "dequantize": self._dequantize,
        }
        return makers[case.operation](tensors) if case.operation in makers else []

    def _unique(self, tensors: dict[str, torch.Tensor]) -> list[Candidate]:
        keys, last = tensors["keys"], []

        def run(batch: int) -> None:
            last[:] = torch.unique(keys[batch], return_inverse=True)

        return [Candidate("torch.unique", run, lambda: rebuilt(last[0].numpy(), last[1].numpy()))]

    def _interaction(self, tensors: dict[str, torch.Tensor], *, backward: bool) -> list[Candidate]:
        bottoms, embeddings = (list(tensors[name]) for name in ("bottom", "embeddings"))
        grad, dim, last = tensors["grad"], tensors["bottom"].shape[2], []
        rows, columns = (torch.from_numpy(index) for index in np.tril_indices(NUM_EMBEDDINGS + 1, -1))

        def interaction(bottom: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
            vectors = torch.cat([bottom, embedded], dim=1).view(-1, NUM_EMBEDDINGS + 1, dim)
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            return torch.cat([bottom, products[:, rows, columns]], dim=1)

        def run(batch: int) -> None:
            bottom, embedded = bottoms[batch].detach(), embeddings[batch].detach()
            if backward:
                bottom.requires_grad_()
                embedded.requires_grad_()
            out = interaction(bottom, embedded)
            last[:] = torch.autograd.grad(out, (bottom, embedded), grad) if backward else [out]

        def result() -> np.ndarray:
            return torch.cat([tensor[:NUM_COMPARED] for tensor in last], dim=1).numpy()

        return [Candidate("torch bmm, index", run, result)]

    def _quantize(self, tensors: dict[str, torch.Tensor]) -> list[Candidate]:
        rows, last = tensors["rows"], []

        def run(batch: int) -> None:
            last[:] = [torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows[batch])]

        return [Candidate("FBGEMM", run, lambda: last[0][:NUM_COMPARED].numpy())]

    def _dequantize(self, tensors: dict[str, torch.Tensor]) -> list[Candidate]:
        quantized, last = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(tensors["rows"][0]), []

        def run(_: int) -> None:
            last[:] = [torch.ops.fbgemm.Fused8BitRowwiseQuantizedToFloat(quantized)]

        return [Candidate("FBGEMM", run, lambda: last[0][:NUM_COMPARED].numpy())]
