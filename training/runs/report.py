"""A run's report: one HTML file with plots and tables to look at, without anything from elsewhere."""

import base64
from collections.abc import Sequence
from html import escape

from rankhouse.training.config import AUTO_PLAN
from rankhouse.training.plan import Placement, Plan
from rankhouse.training.runs.folder import RunFolder, write_text
from rankhouse.training.runs.plots import plot_auc, plot_loss, plot_plan, plot_throughput
from rankhouse.training.runs.traffic import ExchangeTraffic, RunTraffic

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} - training report</title>
<style>
  body {{ color: #1f2933; font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto;
         max-width: 72rem; padding: 0 1.5rem; }}
  h1 {{ margin-bottom: 0; }}
  h2 {{ margin: 2.5rem 0 .75rem; font-size: 1.2rem; }}
  .lead {{ color: #5c6873; margin-top: .25rem; }}
  .figures {{ display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0; }}
  .figures div {{ background: #f4f6f8; border-radius: .5rem; flex: 1 1 8rem; padding: .75rem 1rem; }}
  .figures b {{ display: block; font-size: 1.5rem; font-weight: 600; white-space: nowrap; }}
  .figures span {{ color: #5c6873; font-size: .85rem; }}
  .plots {{ display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); }}
  figure {{ margin: 0; }}
  figcaption {{ font-weight: 600; }}
  img {{ height: auto; width: 100%; }}
  table {{ border-collapse: collapse; font-size: .9rem; width: 100%; }}
  th, td {{ border-bottom: 1px solid #e6e9ed; padding: .3rem .75rem .3rem 0; text-align: left; vertical-align: top; }}
  .number {{ font-variant-numeric: tabular-nums; text-align: right; }}
  pre {{ background: #f4f6f8; border-radius: .5rem; overflow-x: auto; padding: 1rem; }}
</style>
<h1>{name}</h1>
<p class="lead">{lead}</p>
<div class="figures">{figures}</div>
<div class="plots">{plots}</div>
<h2>Who holds which table</h2>
<p class="lead">The weights in each rank's memory. Blue: tables, or parts of them, that one rank holds. Grey: copies of
small tables, which every rank holds. The optimizer's state comes on top. {decided}</p>
{plan}
{traffic}<h2>Configuration</h2>
<pre>{config}</pre>
</html>
"""

TRAFFIC = """<h2>What travels between the ranks</h2>
<p class="lead">In a training step, to other ranks: the mean of all ranks and the most that one sends. A sum is counted
as a ring of ranks makes it. {rounding}</p>
{table}
"""


def write_report(run: RunFolder) -> None:
    """Writes `report.html` from what lies in the run's folder; the run may be unfinished."""
    metrics = run.metrics()
    plan = Plan.read(run.plan_json_file)
    plots = (
        ("Loss", plot_loss(metrics)),
        ("AUC", plot_auc(metrics)),
        ("Throughput", plot_throughput(metrics)),
    )
    page = PAGE.format(
        name=escape(run.name),
        lead=escape(_lead(run, plan)),
        figures="".join(
            f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in _figures(run)
        ),
        plots="".join(f"<figure><figcaption>{title}</figcaption>{_image(title, svg)}</figure>" for title, svg in plots),
        plan=_image("Memory of each rank by table", plot_plan(plan)) + _plan_table(plan),
        decided=escape(_decided_by(run)),
        traffic=_traffic(run),
        config=escape(run.config_file.read_text(encoding="utf-8")),
    )
    write_text(run.report_file, page)


def _lead(run: RunFolder, plan: Plan) -> str:
    state = "finished" if run.result is not None else "not finished"
    ranks = f"{plan.num_ranks} rank{'s' if plan.num_ranks > 1 else ''}"
    return f"Training run, {state}. {ranks}, data from {run.dataset}."


def _figures(run: RunFolder) -> list[tuple[str, str]]:
    """Returns the numbers on top of the page: (what, value)."""
    metrics = run.metrics()
    steps = [line for line in metrics if "loss" in line]
    evaluations = [line for line in metrics if "valid_loss" in line]
    figures = []
    if evaluations:
        auc = evaluations[-1]["auc"]
        figures += [
            ("AUC, held out", "undefined" if auc is None else f"{auc:.4f}"),
            ("loss, held out (nats)", f"{evaluations[-1]['valid_loss']:.4f}"),
        ]
    if steps:
        last, batch_size = steps[-1], run.config.training.batch_size
        num_samples = run.result.num_samples if run.result is not None else last["step"] * batch_size
        figures += [
            ("samples/s, all ranks", f"{num_samples / last['seconds']:,.0f}"),
            ("steps", f"{last['step']:,}"),
            ("epochs", f"{last['epoch']:.2f}"),
            ("time of the steps", _duration(last["seconds"])),
        ]
    return figures


def _plan_table(plan: Plan) -> str:
    placed = sorted(zip(plan.tables, plan.placements, strict=True), key=lambda pair: -pair[0].weight_bytes)
    rows = [
        (
            table.name,
            f"{table.num_rows:,}",
            str(table.dim),
            table.dtype,
            f"{table.weight_bytes / 2**20:,.2f}",
            placement.held_by,
            _travels(placement),
            placement.reason,
        )
        for table, placement in placed
    ]
    titles = ("table", "rows", "width", "held as", "MiB", "held by", "what travels", "why")
    return _table(titles, rows, numbers=(1, 2, 4))


def _travels(placement: Placement) -> str:
    if placement.mode == "data_parallel":
        return "its gradient"
    what = "each different row" if placement.exchange == "rows" else "pooled rows"
    wire = placement.wire
    return what if wire is None else f"{what}, {wire.forward} there and {wire.backward} back"


def _decided_by(run: RunFolder) -> str:
    plan = run.config.parallel.plan
    if plan == AUTO_PLAN:
        return "Decided by what a step was predicted to cost (parallel.plan=auto)."
    return f"Decided by {plan}." if plan else "Decided by the tables' sizes, and by parallel.tables."


def _traffic(run: RunFolder) -> str:
    """Returns the section about exchanges; nothing where there are none, as on one rank."""
    if not run.traffic_file.is_file():
        return ""
    traffic = RunTraffic.parse(run.traffic_file.read_text(encoding="utf-8"))
    if not traffic.exchanges:
        return ""
    rows = [_traffic_row(each.name, each.bytes_sent, _rounding(each), each.format) for each in traffic.exchanges]
    rows.append(_traffic_row("together", traffic.bytes_sent, "", ""))
    head = ["exchange", "KiB sent per step, mean", "most", "rounding", "format"]
    rounding = "Rounding: the largest error of an element relative to the largest of its row."
    if not any(each.format for each in traffic.exchanges):
        rounding, head, rows = "Nothing is rounded on its way.", head[:3], [row[:3] for row in rows]
    return TRAFFIC.format(rounding=rounding, table=_table(head, rows, numbers=(1, 2, 3)))


def _traffic_row(name: str, bytes_sent: Sequence[float], rounding: str, wire: str) -> tuple[str, ...]:
    mean = sum(bytes_sent) / len(bytes_sent)
    return (name, f"{mean / 2**10:,.2f}", f"{max(bytes_sent) / 2**10:,.2f}", rounding, wire)


def _rounding(exchange: ExchangeTraffic) -> str:
    saturated = f", {exchange.num_saturated:,} saturated" if exchange.num_saturated else ""
    return f"{exchange.max_relative_error:.2%}{saturated}" if exchange.format else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int]) -> str:
    def line(tag: str, cells: Sequence[str]) -> str:
        marks = (' class="number"' if column in numbers else "" for column in range(len(cells)))
        return "<tr>" + "".join(f"<{tag}{m}>{escape(c)}</{tag}>" for m, c in zip(marks, cells, strict=True)) + "</tr>"

    return "<table>" + line("th", head) + "".join(line("td", row) for row in rows) + "</table>"


def _image(title: str, svg: str) -> str:
    """Embeds a plot as an image: an SVG inside the page would share its names with the other plots."""
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(title)}" src="data:image/svg+xml;base64,{data}">'


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{seconds:.1f} s"
