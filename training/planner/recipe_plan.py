"""Who holds which table of a dataset, as a recipe says. Pure: it needs neither TensorFlow nor ranks.

What `parallel.plan` says decides:

    nothing   small tables on every rank, each other one whole on the least loaded; `parallel.tables` goes before that
    "auto"    what a step costs (`placing`), within what `parallel.tables` says
    a file    the document in it
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from rankhouse.training.config import AUTO_PLAN, Config
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import PlanError
from rankhouse.training.exchange.wire_format import WireDtypes
from rankhouse.training.models.model_tables import model_tables
from rankhouse.training.models.synthetic_models import ID_EXPONENT
from rankhouse.training.plan import Placement, Plan, TableSpec, make_plan, place
from rankhouse.training.planner.constraints import Constraint, decided_wire, on_device, read_constraints, row_dtypes
from rankhouse.training.planner.forecast import Forecast, forecast
from rankhouse.training.planner.placing import plan_tables
from rankhouse.training.planner.workload import Cluster, DenseLoad, TableLoad, Workload, dense_load


def plan_recipe(config: Config, dataset: PreparedDataset, cluster: Cluster) -> Forecast:
    """Decides which rank holds which of a dataset's tables, and says what that costs.

    Args:
        config: The recipe.
        dataset: Says which tables there are.
        cluster: The ranks.

    Raises:
        NoRoomError: A plan by cost does not fit the ranks' memory; the message says what would. Of other plans
            `room.check_room` says whether they do.
        ConfigError: The recipe does not go with the tables that learn their keys.
        PlanError: There are no tables, the document or a decision does not go with them or with the ranks, or the
            optimizer cannot train tables that lie or are held so.
    """
    workload = recipe_workload(config, dataset)
    if config.parallel.plan == AUTO_PLAN:
        made = plan_tables(workload, cluster, constraints=recipe_constraints(config))
    elif config.parallel.plan:
        plan = Plan.read(Path(config.parallel.plan))
        made = forecast(plan, workload.held_as(plan.dtypes), cluster)
    else:
        made = forecast(_by_size(config, workload, cluster.num_ranks), workload, cluster)
    _check_optimizer(made.plan, workload)
    return made


def recipe_workload(config: Config, dataset: PreparedDataset) -> Workload:
    """Returns what a step of a recipe does. A list is taken to have one id in a sample, as nobody has counted them.

    Raises:
        ConfigError: The recipe does not go with the tables that learn their keys.
    """
    loads = []
    for name, info in model_tables(config, dataset).items():
        num_inputs = len(dataset.spec.tables[name])
        # Known values come by falling frequency, and those of logs follow about such a law.
        loads.append(TableLoad(TableSpec(name, info.num_rows, info.dim, float(num_inputs)), num_inputs, ID_EXPONENT))
    workload = Workload(
        tables=tuple(loads),
        batch_size=config.training.batch_size,
        dense=_dense_load(config, dataset),
        optimizer=config.optimizer.settings(),
        forward_wire=config.parallel.wire_forward,
        backward_wire=config.parallel.wire_backward,
        auto_wire=config.parallel.auto_wire,
    )
    names = [load.table.name for load in loads]
    return workload.held_as(row_dtypes(recipe_constraints(config), names))


def recipe_constraints(config: Config) -> dict[str, Constraint]:
    """Returns what a recipe decides about single tables."""
    return {name: Constraint(**asdict(table)) for name, table in config.parallel.tables.items()}


def _by_size(config: Config, workload: Workload, num_ranks: int) -> Plan:
    tables = [load.table for load in workload.tables]
    threshold = config.parallel.data_parallel_threshold_rows
    plan = make_plan(tables, num_ranks=num_ranks, data_parallel_threshold_rows=threshold)
    decided = read_constraints(recipe_constraints(config), [table.name for table in tables], num_ranks=num_ranks)
    for number, load in enumerate(workload.tables):
        name = load.table.name
        if name in decided:
            # In turn, so that each table that needs a rank finds out what those before it left to the ranks.
            placement = _decided(plan, load, decided[name], workload)
            plan = replace(plan, placements=(*plan.placements[:number], placement, *plan.placements[number + 1 :]))
    return plan


def _decided(plan: Plan, load: TableLoad, constraint: Constraint, workload: Workload) -> Placement:
    """Returns where a table lies by a recipe's word, or else as before."""
    table, placement = load.table, plan.placement(load.table.name)
    mode = constraint.decided_mode or placement.mode
    if mode == "data_parallel" and not constraint.may_be_everywhere:
        mode = "table_wise"
    exchange = None if mode in ("data_parallel", "row_wise") else constraint.exchange
    if (mode, constraint.ranks, exchange) != (placement.mode, None, None) or mode in ("column_wise", "row_wise"):
        placement = place(
            table,
            mode,
            num_ranks=plan.num_ranks,
            ranks=_holders(plan, placement, constraint, mode=mode),
            num_slices=constraint.num_slices if mode in ("column_wise", "row_wise") else None,
            exchange=exchange,
            reason="as the recipe says",
        )
    common = WireDtypes(workload.forward_wire, workload.backward_wire)
    hosted = on_device(placement, load, constraint, batch_size=workload.batch_size)
    return replace(hosted, wire=decided_wire(placement, constraint, common))


def _holders(plan: Plan, before: Placement, constraint: Constraint, *, mode: str) -> Sequence[int] | None:
    if mode == "table_wise":
        if constraint.ranks:
            return constraint.ranks[:1]
        emptiest = min(range(plan.num_ranks), key=lambda rank: (plan.bytes_of(rank), rank))
        return before.ranks if before.mode == "table_wise" else [emptiest]
    if mode == "row_wise" and constraint.num_slices and not constraint.ranks:
        return range(min(constraint.num_slices, plan.num_ranks))
    return constraint.ranks


def _check_optimizer(plan: Plan, workload: Workload) -> None:
    rule = workload.optimizer.rule
    if plan.narrow_copies and workload.optimizer.is_exact:
        raise PlanError(
            f"table {plan.narrow_copies[0]!r} of 16 bits lies on every rank, and the exact kind of {rule!r} would "
            "round each copy in other steps; take optimizer.kind=lazy or dense, dtype float32, or another mode"
        )
    hosted = [placement.table for placement in plan.placements if placement.device == "host"]
    if hosted and not workload.may_lie_on_host:
        raise PlanError(
            f"table {hosted[0]!r} lies on the host, where rows stay as they are unless a step touches them, and this "
            f"kind of {workload.optimizer.rule!r} moves all; take optimizer.kind=lazy, or leave the table on the device"
        )


def _dense_load(config: Config, dataset: PreparedDataset) -> DenseLoad:
    """Returns what DLRM costs: the bottom layers, dot products of all pairs of vectors, the top layers."""
    spec, precision = dataset.spec, config.training.precision
    dim = max((info.dim for info in dataset.tables.values()), default=0)
    num_vectors = len(spec.categorical) + bool(spec.continuous)
    num_pairs = num_vectors * (num_vectors - 1) // 2
    bottom = [len(spec.continuous), *config.model.bottom_mlp, dim] if spec.continuous else []
    joined = num_pairs + (dim if spec.continuous else 0)
    products: Literal["float32", "bfloat16"] = "bfloat16" if precision == "mixed_bfloat16" else "float32"
    parts = [
        dense_load(bottom, products),
        dense_load([joined, *config.model.top_mlp, 1], products),
        DenseLoad(flops=2.0 * num_pairs * dim, activations=float(num_pairs), num_layers=1),
    ]
    return DenseLoad(
        flops=sum(part.flops for part in parts),
        num_parameters=sum(part.num_parameters for part in parts),
        activations=sum(part.activations for part in parts),
        num_layers=sum(part.num_layers for part in parts),
        precision=products,
    )
