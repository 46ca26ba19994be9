"""`rankhouse version`: what is in a version store, and what is done with versions after they exist."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from rankhouse.cli import import_hps

if TYPE_CHECKING:
    from rankhouse.embedding_cache.format.version import Version, VersionStore

app = typer.Typer(help="List, show, verify, compare, compact, collect and roll back versions.", no_args_is_help=True)
app.command("import-hps")(import_hps.import_models)

Store = Annotated[str, typer.Argument(metavar="STORE", help="A folder, or a URL such as s3://bucket/models.")]
# A narrower terminal breaks the lines of a list; shortened numbers would say something else.
_LIST_WIDTH = 112
_NAMES = {"version", "made by", "chain"}
_NUMBERS = {
    *("rows", "width", "size", "adds", "adds rows", "AUC"),
    *("added", "changed", "removed", "largest change", "mean change"),
}

Name = Annotated[str, typer.Argument(metavar="VERSION", help="A version's name, or latest.")]


@app.command("list")
def list_versions(store: Store) -> None:
    """Lists the versions of each model, oldest first, and what each adds; a line joins a delta to its parent."""
    from rankhouse.embedding_cache.format.errors import ManifestError, VersionNotFoundError
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.inventory import additions

    opened, console = VersionStore(store), Console(highlight=False)
    console.width = max(console.width, _LIST_WIDTH)
    versions, unreadable = [], []
    for name in opened.names():
        try:
            versions.append(opened.read(name))
        except VersionNotFoundError:  # It was collected since the names were listed.
            continue
        except ManifestError as error:
            unreadable.append(f"[bold red]{name}:[/] {escape(str(error))}")
    added = dict(zip([version.name for version in versions], additions(versions), strict=True))
    for model in sorted({version.model for version in versions}):
        line = [version for version in versions if version.model == model]
        table = _table("version", "made by", "created (UTC)", "rows", "adds rows", "adds", "AUC")
        for version, joint in zip(line, _joints(line), strict=True):
            addition, auc = added[version.name], version.metrics.get("auc")
            table.add_row(
                f"{joint} {version.name}",
                _made_by(version, is_joined=joint in "├└"),
                version.created_at.strftime("%Y-%m-%d %H:%M"),
                f"{sum(entry.num_rows for entry in version.tables):,}",
                _changes(addition.num_rows, addition.num_removed),
                _size(addition.num_bytes),
                "" if auc is None else f"{auc:.5f}",
            )
        console.print(f"[bold]{model}[/]: {_count(len(line), 'version')}")
        console.print(table)
    for message in unreadable:
        console.print(message, soft_wrap=True)


@app.command()
def show(store: Store, version: Name = "latest") -> None:
    """Shows a version: the chain that it ends, its files, tables and features."""
    from rankhouse.embedding_cache.format.version import VersionStore

    opened_store = VersionStore(store)
    opened = opened_store.read(version)
    console = Console(highlight=False)
    numbers = {name: value for name, value in opened.metrics.items() if not isinstance(value, dict)}
    metrics = ", ".join(f"{name} {_metric(name, value)}" for name, value in numbers.items()) or "none"
    console.print(f"[bold]{opened.name}[/] of the model [bold]{opened.model}[/], {_size(opened.num_bytes)}")
    source = opened.source
    trained = "" if source is None else f" from run {source.run}, checkpoint {source.checkpoint}, step {source.step}"
    console.print(f"made by {_made_by(opened, is_joined=False)}{escape(trained)}")
    console.print(f"created {opened.created_at.isoformat(timespec='seconds')}, metrics: {escape(metrics)}")
    dense = f"dense \\[B, {opened.num_dense}]" if opened.record.num_dense is not None else "no dense part"
    console.print(f"{dense}, embeddings \\[B, {opened.embeddings_dim}]")
    console.print(_chain_table(opened_store, opened))
    files = _table("file", "size", "sha256")
    for name, record in opened.manifest.files.items():
        files.add_row(name, _size(record.bytes), record.sha256[:16])
    for number, layer in enumerate(opened.record.vocabularies):
        files.add_row(f"vocabularies, layer {number}", _size(layer.bytes), layer.sha256[:16])
    console.print(files)
    tables = _table("table", "rows", "width", "type", "size", "base", "deltas", "features")
    for entry in opened.tables:
        users = [f"{feature.name} ({feature.combiner})" for feature in opened.features if feature.table == entry.name]
        changes = sum(delta.num_rows for delta in entry.deltas), sum(delta.num_removed for delta in entry.deltas)
        tables.add_row(
            *(entry.name, f"{entry.num_rows:,}", str(entry.dim), entry.dtype, _size(entry.num_bytes)),
            _count(len(entry.segments), "file"),
            f"{len(entry.deltas)}: {_changes(*changes)}" if entry.deltas else "",
            ", ".join(users),
        )
    console.print(tables)


@app.command()
def verify(
    store: Store, version: Annotated[str, typer.Argument(metavar="[VERSION]", help="Only this one.")] = ""
) -> None:
    """Reads every file of a store's versions, each once, and compares its checksum."""
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.verification import verify_versions

    opened = VersionStore(store)
    names = opened.names() if version in ("", "latest") else [version]
    names = names[-1:] if version == "latest" else names
    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()
    with _byte_progress(console) as progress:
        found = verify_versions(opened, names, on_bytes=_shown(progress, "verifying"))
    for name in names:
        state = f"sound, {_size(found.sound[name])}" if name in found.sound else "[bold red]damaged[/]"
        console.print(f"{name}: {'was collected meanwhile' if name in found.collected else state}")
    for damage in found.damages:
        console.print(f"[bold red]damaged:[/] {escape(damage.reason)} [dim](needed by {', '.join(damage.versions)})[/]")
    console.print(f"{_count(len(names), 'version')} read in {time.monotonic() - began:.1f} s")
    for name in _ways_back(opened, names, found.sound):
        console.print(f"to go back to the newest sound one: rankhouse version rollback {store} {name}")
    if found.damages:
        raise typer.Exit(1)


@app.command()
def gc(
    store: Store,
    keep: Annotated[int, typer.Option(min=1, help="How many versions of each model stay, the newest.")],
    grace_hours: Annotated[
        float,
        typer.Option(min=0, help="How long an unfinished write, in a bucket any file, was left alone before it goes."),
    ] = 24,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would go.")] = False,
) -> None:
    """Removes old versions and the files that no version needs any more.

    It waits for writers; those in a bucket go on, and their files stay. Readers go on: what a process has open stays
    readable, and its space is freed when it lets go.
    """
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.collection import collect_garbage, find_garbage

    opened, console = VersionStore(store), Console(highlight=False, soft_wrap=True)
    with console.status("looking for what nothing needs"):
        if dry_run:
            garbage = find_garbage(opened, keep=keep, grace_seconds=3600 * grace_hours)
        else:
            garbage = collect_garbage(
                opened,
                keep=keep,
                grace_seconds=3600 * grace_hours,
                on_wait=lambda: console.print("a writer is at work in the store; waiting until it is done"),
            )
    verb = "would go" if dry_run else "removed"
    table = _table("path", "what it is", "size")
    shared = [item.bytes for item in garbage if item.kind == "segment"]
    for item in garbage:
        if item.kind != "segment":
            what = f"version of {item.model}" if item.kind == "version" else "unfinished write"
            table.add_row(str(item.path.relative_to(opened.path)), what, _size(item.bytes))
    if shared:
        table.add_row("segments", f"{_count(len(shared), 'file')} that no version names", _size(sum(shared)))
    if garbage:
        console.print(table)
    num_versions, left = sum(item.kind == "version" for item in garbage), len(opened.names())
    console.print(
        f"{verb}: {_count(num_versions, 'version')} and {_count(len(garbage) - num_versions, 'file')}, "
        f"{_size(sum(item.bytes for item in garbage))}; {left - num_versions * dry_run} of the store's versions stay"
    )


@app.command()
def compact(
    store: Store,
    version: Name = "latest",
    model: Annotated[str | None, typer.Option(help="The model whose latest version is meant.")] = None,
) -> None:
    """Folds a version's deltas into a new base: a new version that gives the same rows, bit for bit."""
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.publication import compact_version

    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()
    opened = VersionStore(store)
    old = opened.open(version, model=model, verify=False)
    num_deltas = sum(len(table.deltas) for table in old.tables)
    with _byte_progress(console) as progress:
        new = compact_version(
            opened,
            old.name,
            on_verified=_shown(progress, f"verifying {old.name}"),
            on_bytes=_shown(progress, f"folding {_count(num_deltas, 'delta')}"),
        )
    if new.name == old.name:
        console.print(f"{old.name} has no deltas: there is nothing to fold")
        return
    console.print(
        f"[bold]{new.name}[/] of {new.model}: {_count(num_deltas, 'delta')} of {old.name} folded, "
        f"{_size(old.num_bytes)} are now {_size(new.num_bytes)}, {time.monotonic() - began:.1f} s"
    )


@app.command()
def rollback(
    store: Store, version: Annotated[str, typer.Argument(metavar="VERSION", help="A version's name.")]
) -> None:
    """Publishes the content of an older version as a new one, the latest: nothing else in the store changes."""
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.publication import roll_back

    console = Console(highlight=False, soft_wrap=True)
    with _byte_progress(console) as progress:
        new = roll_back(VersionStore(store), version, on_verified=_shown(progress, f"verifying {version}"))
    console.print(f"[bold]{new.name}[/] of {new.model} has the content of {new.origin.version} and is the latest now")


@app.command()
def push(
    store: Store,
    version: Name = "latest",
    *,
    to: Annotated[
        str, typer.Option(metavar="URL", help="redis://[user@]host:port[,host:port...], or rediss:// for TLS.")
    ],
    options: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JSON of the connection: what the engine's option redis takes.")
    ] = None,
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment's variable that holds the user's password.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM: who signed the nodes' certificates; else the system's.")
    ] = None,
    ttl_hours: Annotated[float | None, typer.Option(help="How long it stays there; default is for ever.")] = None,
) -> None:
    """Brings the rows of a version into a Redis Cluster, or one plain server, for engines that read them there.

    What is there already is not sent again, so a push that broke is just done again.
    """
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.verification import open_verified
    from rankhouse.embedding_cache.redis_client import RedisClient, read_options
    from rankhouse.embedding_cache.redis_push import push_version

    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()
    given = {**({} if options is None else read_options(options)), "url": to}
    given |= {} if password_env is None else {"password_env": password_env}
    given |= {} if ca_file is None else {"ca_file": str(ca_file)}
    with RedisClient(**given) as client, _byte_progress(console) as progress:
        opened = open_verified(VersionStore(store), version, on_bytes=_shown(progress, f"verifying {version}"))
        pushed = push_version(
            opened,
            client,
            ttl_seconds=None if ttl_hours is None else 3600 * ttl_hours,
            on_bytes=_shown(progress, f"pushing {opened.name}"),
        )
    console.print(
        f"[bold]{opened.name}[/] of {opened.model}: {_count(pushed.num_files, 'file')}, {_size(pushed.num_bytes)}, "
        f"of which {_size(pushed.num_sent)} were sent and all verified, {time.monotonic() - began:.1f} s"
    )


@app.command()
def diff(
    store: Store,
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A version's name.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="A version's name, or latest.")] = "latest",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Shows what changed between two versions: rows of tables, vocabularies, features, the dense part, metrics."""
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.comparison import compare_versions

    opened, console = VersionStore(store), Console(highlight=False)
    columns = (TextColumn("comparing rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        found = compare_versions(
            opened.open(before, verify=False),
            opened.open(after, verify=False),
            on_rows=lambda done, total: progress.update(task, completed=done, total=total),
        )
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return
    console.print(f"[bold]{found.before}[/] -> [bold]{found.after}[/]")
    tables = _table("table", "rows", "added", "changed", "removed", "largest change", "mean change", "known values")
    num_same = 0
    for entry in found.tables:
        known = found.known_values.get(entry.name, (None, None))
        if entry.is_same and known[0] == known[1]:
            num_same += 1
            continue
        tables.add_row(
            *(entry.name, _step(entry.rows_before, entry.rows_after)),
            *(f"{count:,}" if count else "" for count in (entry.num_added, entry.num_changed, entry.num_removed)),
            *(f"{change:.3g}" if entry.num_changed else "" for change in (entry.max_change, entry.mean_change)),
            _step(*known),
        )
    if tables.row_count:
        console.print(tables)
    if num_same:
        console.print(f"{_count(num_same, 'table')} without a change")
    for what, names in (
        ("added", found.features_added),
        ("removed", found.features_removed),
        ("changed", found.features_changed),
    ):
        if names:
            console.print(f"features {what}: {escape(', '.join(names))}")
    console.print(f"dense part: {found.dense}")
    metrics = [f"{name} {_metric(name, one)} -> {_metric(name, other)}" for name, (one, other) in found.metrics.items()]
    console.print(f"metrics: {escape(', '.join(metrics)) or 'same'}")


def _ways_back(store: "VersionStore", names: Sequence[str], sound: Mapping[str, int]) -> list[str]:
    """The newest sound version of each model whose newest version is damaged."""
    from rankhouse.embedding_cache.format.errors import ManifestError, VersionNotFoundError

    newest: dict[str, str] = {}
    newest_sound: dict[str, str] = {}
    for name in names:
        with suppress(ManifestError, VersionNotFoundError):
            model = store.read(name).model
            newest[model] = name
            if name in sound:
                newest_sound[model] = name
    return [name for model, name in newest_sound.items() if newest[model] != name]


def _joints(line: "Sequence[Version]") -> list[str]:
    """Draws which versions of a model's line continue the one before them."""
    continues = [
        number > 0 and version.parent is not None and version.parent.name == line[number - 1].name
        for number, version in enumerate(line)
    ]
    goes_on = [*continues[1:], False]
    signs = {(False, False): " ", (False, True): "┌", (True, True): "├", (True, False): "└"}
    return [signs[joint] for joint in zip(continues, goes_on, strict=True)]


def _made_by(version: "Version", *, is_joined: bool) -> str:
    """Says how a version came about; what a drawn line says already is left out."""
    action, other = version.origin.action, version.origin.version
    if other is None or (action == "delta" and is_joined):
        return action
    return f"{action} {'to' if action == 'rollback' else 'of'} {other.split('-')[0]}"


def _chain_table(store: "VersionStore", version: "Version") -> Table:
    """The versions from the base to this one, and what each adds to the one before it."""
    from rankhouse.embedding_cache.format.errors import ManifestError, VersionNotFoundError
    from rankhouse.embedding_cache.maintenance.inventory import additions

    chain, end = [version], ""
    while (parent := chain[0].parent) is not None and not end:
        try:
            chain.insert(0, store.read(parent.name))
        except VersionNotFoundError:
            end = "[dim]was collected[/]"
        except ManifestError:
            end = "[bold red]damaged[/]"
    table = _table("chain", "made by", "created (UTC)", "adds rows", "adds")
    if parent is not None:
        table.add_row(f"  {parent.name}", end)
    for link, joint, addition in zip(chain, _joints(chain), additions(chain), strict=True):
        table.add_row(
            f"{joint} {link.name}",
            _made_by(link, is_joined=True),
            link.created_at.strftime("%Y-%m-%d %H:%M"),
            _changes(addition.num_rows, addition.num_removed),
            _size(addition.num_bytes),
        )
    return table


def _byte_progress(console: Console) -> Progress:
    what = TextColumn("{task.description}")
    columns = (what, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _shown(progress: Progress, what: str) -> Callable[[int, int], None]:
    """Gives a work of so many bytes a line, which appears when it begins."""
    task = progress.add_task(what, total=None, visible=False)
    return lambda done, total: progress.update(task, completed=done, total=total, visible=True)


def _changes(num_rows: int, num_removed: int) -> str:
    added = f"+{num_rows:,}" if num_rows else ""
    return f"{added} -{num_removed:,}".strip() if num_removed else added


def _step(before: int | None, after: int | None) -> str:
    one, other = ("none" if count is None else f"{count:,}" for count in (before, after))
    return one if one == other else f"{one} -> {other}"


def _metric(name: str, value: object) -> str:
    from rankhouse.embedding_cache.format.version_record import EVENT_TIME

    if name == EVENT_TIME and isinstance(value, float):
        return datetime.fromtimestamp(value, timezone.utc).isoformat(timespec="seconds")
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=column in _NAMES)
    return table


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
