"""Training steps of DLRM on 1 and 2 ranks, beside plain Keras, plain Horovod data parallel, and TorchRec.

    rankhouse bench train_throughput
    rankhouse bench train_throughput --shapes dim16 --batch-sizes 8192 --candidates keras rankhouse

26 tables of Criteo's Kaggle sizes, of at most 1M rows each, and Adagrad. The same samples and the same model for all.
Candidates take turns in processes of their own; a ratio is the median over turns of that to the peer in the same turn.
Each candidate gets the environment that it comes with: ours our launcher's, of whose allocator settings the peers get
those in rows of their own. Plain Keras computes interactions by TensorFlow's own operations. TorchRec: table-wise
EmbeddingBagCollection with a fused optimizer, DistributedDataParallel dense layers, Gloo. All of it takes some 25
minutes and 14 GiB of memory on two idle cores; `--turns 1 --shapes dim16` is 3 minutes.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.support.dlrm.shapes import SHAPES
from benchmarks.support.machine import describe_machine
from benchmarks.support.peers import CHECKOUT, peers_python, peers_versions
from benchmarks.support.progress import progress
from benchmarks.support.sheet import Sheet, report
from rankhouse.training.runs.launch import ALLOCATOR, HOROVOD_SETTINGS

BATCH_SIZES = (2048, 8192, 32768)
TURN_SECONDS = 600


@dataclass(frozen=True)
class Candidate:
    """What is measured.

    Attributes:
        label: What it is called in the results.
        worker: The candidate's name in its process.
        num_ranks: Processes that train together.
        peer: The candidate that its ratio is to.
        allocator: Whether it runs with our launcher's settings of glibc.
    """

    label: str
    worker: str
    num_ranks: int
    peer: str
    allocator: bool = True

    @property
    def is_torch(self) -> bool:
        """Whether it runs in the peers' environment."""
        return self.worker.startswith("torchrec")


CANDIDATES = {
    "keras": Candidate("plain Keras", "keras", 1, "keras", allocator=False),
    "keras_allocator": Candidate("plain Keras, our allocator", "keras", 1, "keras"),
    "keras_bfloat16": Candidate("plain Keras, mixed bfloat16", "keras_bfloat16", 1, "keras", allocator=False),
    "rankhouse": Candidate("Rankhouse", "rankhouse", 1, "keras"),
    "rankhouse_bfloat16": Candidate("Rankhouse, mixed bfloat16", "rankhouse_bfloat16", 1, "keras"),
    "horovod": Candidate("plain Horovod data parallel", "keras", 2, "horovod", allocator=False),
    "torchrec": Candidate("TorchRec, row-wise Adagrad", "torchrec", 2, "horovod", allocator=False),
    "torchrec_allocator": Candidate("TorchRec, row-wise Adagrad, our allocator", "torchrec", 2, "horovod"),
    "torchrec_elementwise": Candidate("TorchRec, Adagrad", "torchrec_elementwise", 2, "horovod", allocator=False),
    "rankhouse_2": Candidate("Rankhouse", "rankhouse", 2, "horovod"),
    "rankhouse_2_bfloat16": Candidate("Rankhouse, mixed bfloat16", "rankhouse_bfloat16", 2, "horovod"),
    "rankhouse_2_within": Candidate("Rankhouse, ids sent within the step", "rankhouse_within", 2, "horovod"),
}

# The others are what the peers have besides, and what we would be without.
_OTHERS = ("keras_bfloat16", "torchrec_elementwise", "rankhouse_2_within")
DEFAULT_CANDIDATES = [name for name in CANDIDATES if name not in _OTHERS]

# By shape, batch size and candidate: the seconds of a step in each turn.
Figures = dict[tuple[str, int, str], list[float]]


def main() -> None:
    """Measures all candidates in turn, and prints medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=BATCH_SIZES, help="samples of a step, all ranks")
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=DEFAULT_CANDIDATES)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path, help="also write it as markdown")
    options = parser.parse_args()
    if any(CANDIDATES[name].is_torch for name in options.candidates):
        peers_python()
    console, figures = Console(), Figures()
    with progress(console) as show:
        for turn in range(options.turns):
            for shape in options.shapes:
                for name in options.candidates:
                    show(f"turn {turn + 1} of {options.turns}: {shape}, {name}")
                    for batch_size, seconds in run_candidate(CANDIDATES[name], shape, options.batch_sizes).items():
                        figures.setdefault((shape, batch_size, name), []).append(seconds)
    before = [f"{describe_machine()}; {peers_versions()}", f"Medians of {options.turns} turns; milliseconds of a step."]
    sheets = [sheet(figures, shape, options) for shape in options.shapes]
    report(console, before, sheets, [], options.output)


def sheet(figures: Figures, shape: str, options: argparse.Namespace) -> Sheet:
    """Returns the table of a shape: for each batch size milliseconds, and how many times as fast as the peer."""
    lines = []
    for name in options.candidates:
        candidate = CANDIDATES[name]
        cells = []
        for batch_size in options.batch_sizes:
            own, peers = figures[shape, batch_size, name], figures.get((shape, batch_size, candidate.peer), [])
            cells.append(f"{1e3 * median(own):.1f}")
            cells.append(f"{median(peer / it for it, peer in zip(own, peers, strict=True)):.2f}x" if peers else "")
        lines.append([candidate.label, str(candidate.num_ranks), *cells])
    heads = [head for size in options.batch_sizes for head in (f"batch {size}, ms", "of the peer's speed")]
    return Sheet(f"{SHAPES[shape]}", ["candidate", "ranks", *heads], lines)


def run_candidate(candidate: Candidate, shape: str, batch_sizes: list[int]) -> dict[int, float]:
    """Returns for each batch size the median seconds of a step of one turn."""
    arguments = [candidate.worker, shape, *map(str, batch_sizes)]
    if candidate.is_torch:
        command = [str(peers_python()), "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", str(candidate.num_ranks), "-m", "benchmarks.support.dlrm.in_torchrec"]
    else:
        command = [sys.executable, "-m", "benchmarks.support.dlrm.in_tensorflow"]
        if candidate.num_ranks > 1:
            horovodrun = str(Path(sys.executable).with_name("horovodrun"))
            command = [horovodrun, "-np", str(candidate.num_ranks), "--gloo", *command]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if candidate.worker.startswith("rankhouse"):
        environment |= HOROVOD_SETTINGS
    if candidate.allocator:
        environment["GLIBC_TUNABLES"] = ALLOCATOR
    done = subprocess.run(
        [*command, *arguments], cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=TURN_SECONDS
    )
    # Launchers put the rank's name before each line.
    said = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"batch_size"' in line]
    if len(said) != len(batch_sizes):
        raise SystemExit(f"{candidate.label} gave no figures:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return {line["batch_size"]: median(line["seconds"]) for line in said}


if __name__ == "__main__":
    main()
