"""What others published for distributed-embeddings on A100s, and what the cost model predicts for the same runs.

Step times: NVIDIA's blog post "Fast, Terabyte-Scale Recommender Training Made Easy with NVIDIA Merlin
Distributed-Embeddings", tables 3 and 4: DGX A100-80GB machines, 65,536 samples a step over all GPUs, Adagrad. The
readme of its benchmark has earlier, slower figures of the same runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, cycle

from rankhouse.training.models.synthetic_models import synthetic_model
from rankhouse.training.plan import Plan, ShardSpec, place
from rankhouse.training.planner.forecast import Forecast, PlanWork, count_work, forecast
from rankhouse.training.planner.hardware import GPU_SHEETS, SoftwareCosts, gpu_profile, hardware_profile
from rankhouse.training.planner.placing import plan_tables
from rankhouse.training.planner.workload import Cluster, Workload, synthetic_workload

BATCH_SIZE = 65536

# Elements of a column slice at most: of the example in the benchmark's readme, the one value that it has.
COLUMN_SLICE_THRESHOLD = 1280 * 1048576


# The costs that `fit_costs` finds; the others of SoftwareCosts were chosen before any comparison.
FITTED = ("update_id_seconds", "input_seconds", "step_seconds", "inter_share")


@dataclass(frozen=True)
class PublishedStep:
    """A published step time.

    Attributes:
        model: Of the synthetic models.
        num_ranks: A100s.
        milliseconds: As the blog post has it.
        readme_milliseconds: As the benchmark's readme had it earlier; None where it has none.
        is_fitted: Whether `fit_costs` uses it; the others are held out.
    """

    model: str
    num_ranks: int
    milliseconds: float
    readme_milliseconds: float | None = None
    is_fitted: bool = False


PUBLISHED_STEPS = (
    PublishedStep("tiny", 1, 17.6, 24.433, is_fitted=True),
    PublishedStep("tiny", 2, 11.6),
    PublishedStep("tiny", 4, 6.4),
    PublishedStep("tiny", 8, 3.6, 5.537, is_fitted=True),
    PublishedStep("tiny", 16, 3.2, 4.867, is_fitted=True),
    PublishedStep("small", 1, 57.8, 67.355, is_fitted=True),
    PublishedStep("small", 8, 14.0, 17.203),
    PublishedStep("small", 16, 11.6, 12.461),
    PublishedStep("small", 32, 7.4, 11.839),
    PublishedStep("medium", 8, 64.4, 63.393, is_fitted=True),
    PublishedStep("medium", 16, 44.9, 46.636),
    PublishedStep("medium", 32, 31.1, 37.732),
    PublishedStep("medium", 128, 17.2, 27.329, is_fitted=True),
    PublishedStep("large", 32, 65.0, 67.57),
    PublishedStep("large", 128, 33.4, 37.934),
    PublishedStep("jumbo", 128, 102.3, 124.3),
)


def peer_plan(workload: Workload, num_ranks: int) -> Plan:
    """Places tables as the published runs did: slices of columns above the threshold, dealt by size to and fro."""
    tables = [load.table for load in workload.tables]
    parts = []
    for table in tables:
        slices = 1
        while table.num_rows * table.dim / slices > COLUMN_SLICE_THRESHOLD and 2 * slices <= min(num_ranks, table.dim):
            slices *= 2
        mode = "column_wise" if slices > 1 else "table_wise"
        parts.append(place(table, mode, num_ranks=num_ranks, num_slices=slices))  # type: ignore[arg-type]
    shards = sorted(
        ((number, position) for number, part in enumerate(parts) for position in range(len(part.shards))),
        key=lambda at: -parts[at[0]].shards[at[1]].num_elements,
    )
    ranks = dict(zip(shards, cycle(chain(range(num_ranks), reversed(range(num_ranks)))), strict=False))
    placements = []
    for number, part in enumerate(parts):
        moved = tuple(replace(shard, rank=ranks[number, position]) for position, shard in enumerate(part.shards))
        placements.append(replace(part, shards=_merged(moved)))
    return Plan(tuple(tables), tuple(placements), num_ranks)


def predict(step: PublishedStep, costs: SoftwareCosts | None = None) -> Forecast:
    """Predicts a published run: their placement, ids where the tables are, Adagrad."""
    workload, plan, work = _counted(step.model, step.num_ranks)
    hardware = gpu_profile(GPU_SHEETS["a100"], costs or SoftwareCosts())
    return forecast(plan, workload, Cluster(step.num_ranks, hardware), work=work)


def relative_error(steps: Sequence[PublishedStep], costs: SoftwareCosts | None = None) -> float:
    """Returns the root of the mean squared logarithm of predicted over published times: 0.1 is about 10 %."""
    logs = [math.log(1e3 * predict(step, costs).step_seconds / step.milliseconds) for step in steps]
    return math.sqrt(sum(log * log for log in logs) / len(logs))


def fit_costs(costs: SoftwareCosts | None = None) -> SoftwareCosts:
    """Finds `FITTED` from the fitted step times alone, by trying one cost at a time, in ever smaller steps."""
    steps = [step for step in PUBLISHED_STEPS if step.is_fitted]
    best = costs or SoftwareCosts()
    error, factor = relative_error(steps, best), 1.5
    while factor > 1.01:
        tried = [replace(best, **{name: getattr(best, name) * by}) for name in FITTED for by in (factor, 1 / factor)]
        errors = [relative_error(steps, candidate) for candidate in tried]
        if min(errors) < error:
            error, best = min(errors), tried[errors.index(min(errors))]
        else:
            factor = math.sqrt(factor)
    return best


def comparison() -> str:
    """Returns the table of predicted against published step times, in Markdown."""
    lines = [
        "| model | A100s | published ms | earlier ms | predicted ms | error | our plan ms | used |",
        "|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for step in PUBLISHED_STEPS:
        predicted = 1e3 * predict(step).step_seconds
        workload = synthetic_workload(synthetic_model(step.model), batch_size=BATCH_SIZE)
        ours = plan_tables(workload, Cluster(step.num_ranks, hardware_profile("a100")))
        earlier = f"{step.readme_milliseconds:.1f}" if step.readme_milliseconds else ""
        lines.append(
            f"| {step.model} | {step.num_ranks} | {step.milliseconds:.1f} | {earlier} | {predicted:.1f} | "
            f"{predicted / step.milliseconds - 1:+.0%} | {1e3 * ours.step_seconds:.1f} | "
            f"{'fitted' if step.is_fitted else 'held out'} |"
        )
    for title, is_fitted in (("fitted", True), ("held out", False)):
        steps = [step for step in PUBLISHED_STEPS if step.is_fitted == is_fitted]
        worst = max((1e3 * predict(step).step_seconds / step.milliseconds - 1 for step in steps), key=abs)
        error = relative_error(steps)
        lines += ["", f"The {len(steps)} {title}: root mean square error {error:.0%}, largest {worst:+.0%}."]
    return "\n".join(lines)


@cache
def _counted(model: str, num_ranks: int) -> tuple[Workload, Plan, PlanWork]:
    workload = synthetic_workload(synthetic_model(model), batch_size=BATCH_SIZE, ids_at_owner=True)
    plan = peer_plan(workload, num_ranks)
    return workload, plan, count_work(plan, workload, Cluster(num_ranks, hardware_profile("a100")))


def _merged(shards: tuple[ShardSpec, ...]) -> tuple[ShardSpec, ...]:
    """Joins slices of columns that follow each other on one rank."""
    merged = [shards[0]]
    for shard in shards[1:]:
        if shard.rank == merged[-1].rank:
            merged[-1] = replace(merged[-1], column_stop=shard.column_stop)
        else:
            merged.append(shard)
    return tuple(merged)
