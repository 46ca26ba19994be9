"""Pooled lookup, and its backward fused with row-wise Adagrad, on a GPU beside a copy and PyTorch.

    python benchmarks/embedding_ops_cuda.py

It needs an NVIDIA GPU, PyTorch with CUDA, and a build with CUDA. Sum pooling, float32, int64 ids, one table of 10M
rows of width 128. A figure is the median over calls; ids change with each. The bandwidth of a lookup is that of its
rows, ids and output; the backward's is that of its gradient, and of the rows that it reads and writes. Both are given
as shares of what a copy from device to device reaches. Our backward makes the step of row-wise Adagrad; PyTorch's only
makes the gradient of the rows that were looked up (sparse=True), before any step.
"""

import ctypes
import statistics
import sys
from collections.abc import Callable
from typing import Any

from rankhouse.kernels import library

NUM_ROWS, DIM, CALLS = 10_000_000, 128, 30
SHAPES = [(4096, 1), (4096, 10), (4096, 64), (65536, 1), (65536, 10), (65536, 64)]


def milliseconds(torch: Any, call: Callable[[int], object]) -> float:
    """The median over calls, each between two events in the stream."""
    times = []
    for n in range(CALLS + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call(n)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times[3:])


def copy_bandwidth(torch: Any) -> float:
    """Bytes read and written in a second by a copy of 1 GiB."""
    source = torch.ones(1 << 28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (1e-3 * milliseconds(torch, lambda _: target.copy_(source)))


class Ours:
    """Our operations on one table, with one workspace each, in PyTorch's stream."""

    def __init__(self, torch: Any, table: Any, batch_size: int, hotness: int) -> None:
        self.torch, self.kernels = torch, library.load()
        self.tables = (library.Table * 1)(library.Table(table.data_ptr(), NUM_ROWS, DIM))
        self.out = torch.empty(batch_size, DIM, device="cuda")
        self.slot = torch.zeros(NUM_ROWS, device="cuda")
        int32 = ctypes.c_int32 * 1
        self.lookup = library.Lookup(
            tables=self.tables, num_tables=1, num_features=1, batch_size=batch_size, num_ids=batch_size * hotness,
            feature_tables=int32(0), combiners=int32(library.COMBINERS["sum"]), hotness=int32(hotness),
        )  # fmt: skip
        self.rows = (library.FeatureRows * 1)(library.FeatureRows(self.out.data_ptr(), DIM))
        slots = (ctypes.c_void_p * 2)(self.slot.data_ptr(), None)
        self.trained = (library.TrainedTable * 1)(library.TrainedTable(table.data_ptr(), slots, None, NUM_ROWS, DIM))
        self.optimizers = (library.Optimizer * 1)(
            library.Optimizer(rule=library.RULES["rowwise_adagrad"], learning_rate=0.01, epsilon=1e-6, step=1)
        )
        size = ctypes.c_int64()
        self.lookup.ids = self.out.data_ptr()  # only asked for how much is needed
        library.check(self.kernels.rh_pooled_lookup_update_workspace_cuda(self.lookup, ctypes.byref(size)))
        self.workspace = torch.empty(size.value, dtype=torch.uint8, device="cuda")

    def _call(self, function: str, ids: Any, *arguments: Any) -> None:
        self.lookup.ids = ids.data_ptr()
        stream = self.torch.cuda.current_stream().cuda_stream
        room = (self.workspace.data_ptr(), self.workspace.numel())
        library.check(getattr(self.kernels, function)(self.lookup, self.rows, *arguments, *room, stream))

    def forward(self, ids: Any) -> None:
        self._call("rh_pooled_lookup_cuda", ids)

    def update(self, ids: Any) -> None:
        self._call("rh_pooled_lookup_update_cuda", ids, self.optimizers, self.trained)

    def check(self) -> None:
        room = self.workspace.data_ptr()
        library.check(self.kernels.rh_lookup_check_cuda(self.lookup, room, None, None))


def measure(torch: Any, table: Any, batch_size: int, hotness: int, bandwidth: float) -> str:
    ours = Ours(torch, table, batch_size, hotness)
    batches = [torch.randint(NUM_ROWS, (batch_size, hotness), device="cuda") for _ in range(8)]
    bag = torch.nn.functional.embedding_bag
    compiled = torch.compile(lambda ids: table[ids].sum(1))
    ours.forward(batches[0])
    ours.check()
    torch.testing.assert_close(ours.out, bag(batches[0], table, mode="sum"), rtol=1e-4, atol=1e-4)

    leaf = table.detach().requires_grad_()
    gradient = torch.randn(batch_size, DIM, device="cuda")

    def torch_backward(n: int) -> None:
        torch.autograd.grad(bag(batches[n % 8], leaf, mode="sum", sparse=True), leaf, gradient)

    forward = milliseconds(torch, lambda n: ours.forward(batches[n % 8]))
    update = milliseconds(torch, lambda n: ours.update(batches[n % 8]))
    ours.check()
    theirs = milliseconds(torch, lambda n: bag(batches[n % 8], table, mode="sum"))
    by_compiler = milliseconds(torch, lambda n: compiled(batches[n % 8]))
    backward = milliseconds(torch, torch_backward) - theirs

    num_ids, row = batch_size * hotness, 4 * DIM
    num_unique = statistics.mean(len(torch.unique(ids)) for ids in batches)
    forward_bytes = num_ids * (row + 8) + batch_size * row
    update_bytes = num_ids * (row + 8) + num_unique * (2 * row + 8)
    shares = [num / (1e-3 * time) / bandwidth for num, time in ((forward_bytes, forward), (update_bytes, update))]
    return (
        f"{batch_size:6d} {hotness:3d} | {forward:8.3f} {shares[0]:5.0%} {theirs:8.3f} {by_compiler:8.3f} | "
        f"{update:8.3f} {shares[1]:5.0%} {backward:8.3f}"
    )


def main() -> None:
    try:
        import torch
    except ImportError:
        sys.exit("needs an NVIDIA GPU and PyTorch with CUDA (pip install torch)")
    if not torch.cuda.is_available():
        sys.exit("needs an NVIDIA GPU")
    if not library.load().rh_built_with_cuda():
        sys.exit("needs a build with CUDA: pip install . -C cmake.define.RANKHOUSE_CUDA=ON")
    torch.manual_seed(0)
    bandwidth = copy_bandwidth(torch)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; a copy moves {bandwidth / 1e9:.0f} GB/s")
    print("               | forward, ms: ours, of the copy,  | backward, ms: ours with the")
    print(" batch hotness | EmbeddingBag, torch.compile      | step, of the copy, EmbeddingBag")
    table = torch.randn(NUM_ROWS, DIM, device="cuda")
    for batch_size, hotness in SHAPES:
        print(measure(torch, table, batch_size, hotness, bandwidth), flush=True)


if __name__ == "__main__":
    main()
