"""One rank of TorchRec: `torchrun ... in_torchrec.py CANDIDATE SHAPE SIZES`, on the CPU over Gloo.

The tables are an EmbeddingBagCollection, sharded table-wise over the ranks, with FBGEMM's fused optimizer: row-wise
Adagrad, which is its faster one, or, as torchrec_elementwise, the Adagrad of the other candidates. The dense layers are
data parallel by DistributedDataParallel, with PyTorch's Adagrad.
"""

import logging
import os
import warnings

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.support.dlrm.shapes import LEARNING_RATE, NUM_DENSE, SHAPES, TABLE_ROWS, Samples, Shape, draw_batches
from benchmarks.support.dlrm.timing import parse_options, time_steps

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.distributed.model_parallel import DistributedModelParallel  # noqa: E402
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology  # noqa: E402
from torchrec.distributed.planner.types import ParameterConstraints  # noqa: E402
from torchrec.distributed.types import ShardingEnv, ShardingType  # noqa: E402
from torchrec.models.dlrm import DLRM, DLRMTrain  # noqa: E402
from torchrec.modules.embedding_configs import EmbeddingBagConfig  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.optimizers import in_backward_optimizer_filter  # noqa: E402
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad  # noqa: E402
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402

KEYS = [f"feature_{number}" for number in range(len(TABLE_ROWS))]


def main() -> None:
    """Trains at every batch size."""
    options = parse_options()
    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // num_ranks))
    torch.manual_seed(0)
    shape = SHAPES[options.shape]
    elementwise = options.candidate == "torchrec_elementwise"
    model = _model(shape, torch.optim.Adagrad if elementwise else RowWiseAdagrad)
    others = [parameter for _, parameter in in_backward_optimizer_filter(model.named_parameters())]
    dense = torch.optim.Adagrad(others, lr=LEARNING_RATE)
    for batch_size in options.batch_sizes:
        batches = [_tensors(samples) for samples in draw_batches(batch_size, rank=rank, num_ranks=num_ranks)]

        def step(number: int, batches: list[tuple[torch.Tensor, ...]] = batches) -> None:
            dense.zero_grad()
            loss, _ = model(_Batch(*batches[number]))
            loss.backward()
            dense.step()
            float(loss)

        time_steps(step, shape=shape, batch_size=batch_size, speaks=rank == 0)
    dist.destroy_process_group()


class _Batch:
    """What DLRMTrain takes."""

    def __init__(self, dense: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor, labels: torch.Tensor) -> None:
        self.dense_features = dense
        self.sparse_features = KeyedJaggedTensor.from_lengths_sync(KEYS, ids, lengths)
        self.labels = labels


def _tensors(samples: Samples) -> tuple[torch.Tensor, ...]:
    ids = torch.from_numpy(samples.ids.ravel())
    lengths = torch.ones(ids.numel(), dtype=torch.int64)
    return torch.from_numpy(samples.dense), ids, lengths, torch.from_numpy(samples.labels)


def _model(shape: Shape, optimizer: type[torch.optim.Optimizer]) -> nn.Module:
    tables = [
        EmbeddingBagConfig(name=f"table_{key}", embedding_dim=shape.dim, num_embeddings=rows, feature_names=[key])
        for key, rows in zip(KEYS, TABLE_ROWS, strict=True)
    ]
    network = DLRMTrain(
        DLRM(
            EmbeddingBagCollection(tables=tables, device=torch.device("meta")),
            dense_in_features=NUM_DENSE,
            dense_arch_layer_sizes=[*shape.bottom, shape.dim],
            over_arch_layer_sizes=[*shape.top, 1],
            dense_device=torch.device("cpu"),
        )
    )
    apply_optimizer_in_backward(optimizer, network.model.sparse_arch.parameters(), {"lr": LEARNING_RATE})
    sharder = EmbeddingBagCollectionSharder()
    table_wise = ParameterConstraints(sharding_types=[ShardingType.TABLE_WISE.value])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device="cpu"),
        constraints={table.name: table_wise for table in tables},
    )
    plan = planner.collective_plan(network, [sharder], dist.GroupMember.WORLD)
    return DistributedModelParallel(
        network,
        env=ShardingEnv.from_process_group(dist.GroupMember.WORLD),
        device=torch.device("cpu"),
        plan=plan,
        sharders=[sharder],
    )


if __name__ == "__main__":
    main()
