"""What a machine can do, as numbers: published figures of GPUs times what is achieved of them, or a calibration's.

Published figures (NVIDIA data sheets; dense, without sparsity):

    A100 80GB SXM   80 GB at 2,039 GB/s, TF32 156, BF16 312 TFLOP/s, NVLink 600 GB/s both ways, PCIe 4 x16
    H100 SXM        80 GB at 3,350 GB/s, TF32 494, BF16 989 TFLOP/s, NVLink 900 GB/s both ways, PCIe 5 x16
    H200 SXM        141 GB at 4,800 GB/s, TF32 494, BF16 989 TFLOP/s, NVLink 900 GB/s both ways, PCIe 5 x16
    DGX A100        8 GPUs, 8 network adapters of 200 Gbit/s; DGX H100 and H200: 8 of 400 Gbit/s

Of the figures of software, `published.fit_costs` found those of the A100 from step times that others published
(docs/planning.md says which); the newer GPUs' are these, divided by how much faster their memory is, and not measured.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rankhouse.training.errors import PlanError


@dataclass(frozen=True)
class Link:
    """What connects ranks.

    Attributes:
        bandwidth: Bytes per second that a rank sends in an all-to-all exchange, while it receives as many.
        sum_bandwidth: The same while tensors are summed over all ranks.
        latency_seconds: What an exchange takes however little it moves.
    """

    bandwidth: float
    sum_bandwidth: float
    latency_seconds: float

    def __post_init__(self) -> None:
        _check_positive(self, "a link")


@dataclass(frozen=True)
class HardwareProfile:
    """What one rank achieves (not what its data sheet says).

    Attributes:
        name: Its name.
        memory_bytes: Memory that a rank has for itself.
        host_memory_bytes: Memory of the host for each rank, for tables that lie there.
        stream_bandwidth: Bytes per second, read or written one after the other.
        gather_bandwidth: The same of rows at random places.
        host_bandwidth: Bytes per second of random rows in the host's memory.
        float32_flops: Floating-point operations per second in float32 (TF32) matrix products.
        bfloat16_flops: The same in bfloat16.
        lookup_id_seconds: What looking up an id takes beside its bytes.
        update_id_seconds: What an id's gradient takes beside its bytes: to sort ids, to add up those that are equal.
        input_seconds: What an input takes however small it is: kernel launches, forward and backward together.
        step_seconds: What a step takes however small it is.
        ranks_per_node: Ranks that share a machine.
        intra: Between ranks of one machine.
        inter: Between machines.
        shares_host_memory: Whether a rank's memory is the host's: then a table on the host takes as much of it.
    """

    name: str
    memory_bytes: float
    host_memory_bytes: float
    stream_bandwidth: float
    gather_bandwidth: float
    host_bandwidth: float
    float32_flops: float
    bfloat16_flops: float
    lookup_id_seconds: float
    update_id_seconds: float
    input_seconds: float
    step_seconds: float
    ranks_per_node: int
    intra: Link
    inter: Link
    shares_host_memory: bool = False

    def __post_init__(self) -> None:
        _check_positive(self, f"the hardware profile {self.name!r}")

    def save(self, path: Path) -> None:
        """Writes the profile as JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> "HardwareProfile":
        """Reads what `save` wrote.

        Raises:
            PlanError: The file is missing, is not JSON, lacks a field or has an unknown or impossible one.
        """
        try:
            document = json.loads(path.read_text())
            return cls(**{**document, "intra": Link(**document["intra"]), "inter": Link(**document["inter"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
            raise PlanError(
                f"{path} is no hardware profile ({exc}); write one with `rankhouse plan --calibrate {path}`"
            ) from exc


@dataclass(frozen=True)
class SoftwareCosts:
    """What software makes of a GPU's data sheet; the meanings are those of HardwareProfile's fields.

    Attributes:
        stream_share: Achieved share of the memory's bandwidth, one after the other.
        gather_share: The same, at random.
        matmul_share: Achieved share of the matrix products' peak.
        intra_share: Achieved share of NVLink's bandwidth in one direction.
        inter_share: Achieved share of the network adapter's; fitted.
        update_id_seconds: On an A100; fitted.
        input_seconds: On every GPU, as it is the host's work; fitted.
        step_seconds: On every GPU, as it is the host's work; fitted.
    """

    stream_share: float = 0.8
    gather_share: float = 0.5
    matmul_share: float = 0.5
    intra_share: float = 0.7
    inter_share: float = 0.57
    update_id_seconds: float = 1.74e-9
    input_seconds: float = 60.5e-6
    step_seconds: float = 54e-6


@dataclass(frozen=True)
class GpuSheet:
    """A GPU's data sheet, in bytes and operations per second, with a machine of eight around it."""

    name: str
    memory_bytes: float
    memory_bandwidth: float
    tf32_flops: float
    bfloat16_flops: float
    nvlink_bandwidth: float
    network_bandwidth: float
    pcie_bandwidth: float


_GB, _TFLOP = 1e9, 1e12

GPU_SHEETS = {
    sheet.name: sheet
    for sheet in (
        GpuSheet("a100", 80 * _GB, 2039 * _GB, 156 * _TFLOP, 312 * _TFLOP, 300 * _GB, 25 * _GB, 32 * _GB),
        GpuSheet("h100", 80 * _GB, 3350 * _GB, 494 * _TFLOP, 989 * _TFLOP, 450 * _GB, 50 * _GB, 64 * _GB),
        GpuSheet("h200", 141 * _GB, 4800 * _GB, 494 * _TFLOP, 989 * _TFLOP, 450 * _GB, 50 * _GB, 64 * _GB),
    )
}


def gpu_profile(sheet: GpuSheet, costs: SoftwareCosts) -> HardwareProfile:
    """Returns what a GPU achieves with some software, eight of them in a machine."""
    slower = GPU_SHEETS["a100"].memory_bandwidth / sheet.memory_bandwidth
    nvlink = costs.intra_share * sheet.nvlink_bandwidth
    network = costs.inter_share * sheet.network_bandwidth
    return HardwareProfile(
        name=sheet.name,
        memory_bytes=sheet.memory_bytes,
        host_memory_bytes=2000 * _GB / 8,  # DGX A100 (80 GB GPUs), DGX H100 and DGX H200 have 2 TB.
        stream_bandwidth=costs.stream_share * sheet.memory_bandwidth,
        gather_bandwidth=costs.gather_share * sheet.memory_bandwidth,
        host_bandwidth=0.5 * sheet.pcie_bandwidth,
        float32_flops=costs.matmul_share * sheet.tf32_flops,
        bfloat16_flops=costs.matmul_share * sheet.bfloat16_flops,
        # With the bytes of a row looking it up is paid for on a GPU; a number above 0 keeps ids from being free.
        lookup_id_seconds=1e-11 * slower,
        update_id_seconds=costs.update_id_seconds * slower,
        input_seconds=costs.input_seconds,
        step_seconds=costs.step_seconds,
        ranks_per_node=8,
        intra=Link(nvlink, nvlink, 20e-6),
        inter=Link(network, network, 50e-6),
    )


def hardware_profile(name: str) -> HardwareProfile:
    """Returns a known profile, or reads the one in a file that `rankhouse plan --calibrate` wrote.

    Raises:
        PlanError: It is neither; the nearest known name is in the message.
    """
    if name in PROFILES:
        return PROFILES[name]
    if Path(name).suffix or Path(name).exists():
        return HardwareProfile.load(Path(name))
    near = get_close_matches(name, PROFILES, n=1, cutoff=0)[0]
    raise PlanError(
        f"there is no hardware profile {name!r}; did you mean {near!r}? Known are {', '.join(PROFILES)}, and the files "
        "that `rankhouse plan --calibrate FILE` writes"
    )


def _check_positive(profile: Any, what: str) -> None:
    for field in fields(profile):
        value = getattr(profile, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool) and not (math.isfinite(value) and value > 0):
            raise PlanError(f"{what} has {field.name} = {value}; expected a number above 0")


PROFILES: Mapping[str, HardwareProfile] = {
    **{name: gpu_profile(sheet, SoftwareCosts()) for name, sheet in GPU_SHEETS.items()},
    # A quiet machine with 2 virtual cores (AVX-512): copies, gathers and Adagrad by C loops on both cores, products by
    # TensorFlow, exchanges by Horovod's Gloo between 2 ranks, each of which has half of it all to itself.
    "2-cores": HardwareProfile(
        name="2-cores",
        memory_bytes=12 * _GB,
        host_memory_bytes=12 * _GB,
        stream_bandwidth=21 * _GB,
        gather_bandwidth=6 * _GB,
        host_bandwidth=6 * _GB,
        float32_flops=0.1 * _TFLOP,
        bfloat16_flops=0.2 * _TFLOP,
        lookup_id_seconds=2e-9,
        update_id_seconds=16e-9,
        input_seconds=1e-6,
        step_seconds=1e-3,
        ranks_per_node=2,
        intra=Link(2.4 * _GB, 0.9 * _GB, 1.1e-3),
        inter=Link(1 * _GB, 0.5 * _GB, 4e-3),
        shares_host_memory=True,
    ),
}
