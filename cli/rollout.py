"""`rankhouse rollout`: rollouts, versions, replicas and keys of a running gateway, over its admin API."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
import yaml
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape

from rankhouse.cli import rollout_tables as tables

if TYPE_CHECKING:
    from rankhouse.serving.admin.views import RolloutView
    from rankhouse.serving.admin_client import AdminClient

app = typer.Typer(help="Roll versions out step by step and back, over a gateway's admin API.", no_args_is_help=True)
keys = typer.Typer(help="List, add and revoke keys of the admin API.", no_args_is_help=True)
app.add_typer(keys, name="keys")

_FINISHED = ("promoted", "rolled_back")
_WIDTH = 140

Id = Annotated[str, typer.Argument(metavar="[ROLLOUT]", help="A rollout's id; by default the one started last.")]
Version = Annotated[str, typer.Argument(metavar="VERSION", help="A version's name.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; history keeps it.")]


@dataclass(frozen=True)
class Target:
    """Which admin API the command goes to, and how its answer is shown."""

    url: str | None
    key_file: Path | None
    run_dir: Path | None
    as_json: bool

    def client(self) -> "AdminClient":
        """Opens it."""
        from rankhouse.serving.admin_client import AdminClient, find_admin

        return AdminClient.of_file(*find_admin(self.url, self.key_file, run_dir=self.run_dir))

    def show(self, answer: Any, view: RenderableType) -> None:
        """Prints an answer: as a table, or as the API gave it."""
        import msgspec

        if self.as_json:
            print(msgspec.json.format(msgspec.json.encode(answer)).decode())
            return
        console = _console()
        console.print(view)


@app.callback()
def rollout(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="The admin API, http://host:port.", envvar="RANKHOUSE_ADMIN_URL")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File of a key, mode 0600.", envvar="RANKHOUSE_ADMIN_KEY_FILE")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Run folder of a `rankhouse serve`; by default the one that runs here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the API answers.")] = False,
) -> None:
    """Roll versions out step by step and back, over a gateway's admin API."""
    context.obj = Target(url, key_file, run_dir, as_json)


@app.command()
def start(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The rollout, as YAML: see docs/rollout.md.")],
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check it and print what would happen.")] = False,
) -> None:
    """Starts a rollout: checks the file here, says what will happen, and sends it."""
    from rankhouse.serving.control.rollout_spec import parse_rollout

    document = _read_yaml(file)
    spec = parse_rollout(document)
    target = _target(context)
    if not target.as_json or dry_run:
        _console().print(tables.plan_lines(spec))
    if dry_run:
        return
    with target.client() as client:
        begun = client.start(document, reason=reason)
    target.show(begun, f"[bold]{begun.id}[/] is {begun.status}; rankhouse rollout watch {begun.id} follows it")


@app.command("list")
def list_rollouts(
    context: typer.Context, limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 20
) -> None:
    """Lists active rollouts, then finished ones, the newest first."""
    with _target(context).client() as client:
        found = client.rollouts(limit=limit)
    _target(context).show(found, tables.rollouts_table(found) if found else "no rollout yet")


@app.command()
def show(context: typer.Context, rollout: Id = "latest") -> None:
    """Shows a rollout: its steps, and how its candidates compare with the stable version."""
    with _target(context).client() as client:
        found = client.rollout(rollout)
    _target(context).show(found, tables.rollout_panel(found))


@app.command()
def watch(
    context: typer.Context,
    rollout: Id = "latest",
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 1.0,
) -> None:
    """Follows a rollout until it ends; exit status 1 if it was rolled back."""
    console = _console()
    with _target(context).client() as client:
        found = client.rollout(rollout)
        if console.is_terminal:
            with Live(tables.rollout_panel(found), console=console, auto_refresh=False) as live:
                while found.status not in _FINISHED:
                    time.sleep(every)
                    found = client.rollout(found.id)
                    live.update(tables.rollout_panel(found), refresh=True)
        else:
            found = _follow(client, found, every, console)
    if found.status == "rolled_back":
        raise typer.Exit(1)


def _follow(client: "AdminClient", found: "RolloutView", every: float, console: Console) -> "RolloutView":
    """Prints a line whenever something changes: for logs."""
    before = ""
    while True:
        weights = ", ".join(f"{arm.version} {arm.weight:g} %" for arm in found.arms)
        outcomes = ", ".join(str(arm.verdict["outcome"]) for arm in found.arms if arm.verdict)
        line = f"{found.id} {found.status}, step {found.step + 1} of {found.num_steps}: {weights}"
        line += f", analysis: {outcomes}" if outcomes else ""
        if line != before:
            console.print(f"{tables.when(time.time())} {line}")
            before = line
        if found.status in _FINISHED:
            return found
        time.sleep(every)
        found = client.rollout(found.id)


@app.command()
def pause(context: typer.Context, rollout: Id = "latest", reason: Reason = "") -> None:
    """Stops a rollout where it is."""
    with _target(context).client() as client:
        _show_moved(context, client.pause(rollout, reason=reason))


@app.command()
def resume(context: typer.Context, rollout: Id = "latest", reason: Reason = "") -> None:
    """Lets a paused rollout go on."""
    with _target(context).client() as client:
        _show_moved(context, client.resume(rollout, reason=reason))


@app.command()
def promote(
    context: typer.Context,
    rollout: Id = "latest",
    version: Annotated[str | None, typer.Option(help="Which candidate, where there are several.")] = None,
    reason: Reason = "",
) -> None:
    """Makes a rollout's candidate the stable version at once."""
    with _target(context).client() as client:
        _show_moved(context, client.promote(rollout, version=version, reason=reason))


@app.command()
def abort(context: typer.Context, rollout: Id = "latest", reason: Reason = "") -> None:
    """Rolls a rollout back: all users get the stable version at once."""
    with _target(context).client() as client:
        _show_moved(context, client.abort(rollout, reason=reason))


@app.command()
def skip(context: typer.Context, rollout: Id = "latest", reason: Reason = "") -> None:
    """Ends a rollout's step at once."""
    with _target(context).client() as client:
        found = client.rollout(rollout)
        _show_moved(context, client.skip_step(found.id, step=found.step, reason=reason))


@app.command()
def weight(
    context: typer.Context,
    percent: Annotated[float, typer.Argument(min=0, max=100, help="Of the users, for each candidate.")],
    rollout: Id = "latest",
    reason: Reason = "",
) -> None:
    """Gives a rollout's candidates another share now; its steps go on from there."""
    with _target(context).client() as client:
        _show_moved(context, client.set_weight(rollout, weight=percent, reason=reason))


@app.command()
def verdict(context: typer.Context, rollout: Id = "latest") -> None:
    """Prints a rollout's verdict as Argo Rollouts and Flagger read it; exit status 1 if it failed."""
    import msgspec

    with _target(context).client() as client:
        found = client.verdict(rollout)
    print(msgspec.json.format(msgspec.json.encode(found)).decode())
    if not found.ok:
        raise typer.Exit(1)


@app.command()
def rollback(
    context: typer.Context,
    version: Annotated[
        str, typer.Argument(metavar="[VERSION]", help="An earlier stable one; by default the last.")
    ] = "",
    reason: Reason = "",
) -> None:
    """Brings an earlier stable version back, at once where it is still loaded, and holds refresh."""
    with _target(context).client() as client:
        done = client.rollback(version, reason=reason)
    _target(context).show(done, tables.done_lines(done))


@app.command()
def versions(context: typer.Context) -> None:
    """Lists the versions: lineage, bytes, and how they stand on each replica."""
    with _target(context).client() as client:
        found = client.versions()
    _target(context).show(found, tables.versions_table(found))


@app.command()
def quarantine(
    context: typer.Context,
    version: Version,
    reason: Annotated[str, typer.Option("--reason", "-m", help="Why; needed.")],
) -> None:
    """Keeps a version from traffic; rollouts that have it are rolled back."""
    with _target(context).client() as client:
        done = client.quarantine(version, reason=reason)
    _target(context).show(done, tables.done_lines(done))


@app.command()
def release(context: typer.Context, version: Version, reason: Reason = "") -> None:
    """Takes a version out of quarantine."""
    with _target(context).client() as client:
        done = client.release(version, reason=reason)
    _target(context).show(done, tables.done_lines(done))


@app.command()
def admit(context: typer.Context, version: Version, reason: Reason = "") -> None:
    """Makes a newer version stable, whatever the refresh policy says, as soon as all replicas have loaded it."""
    with _target(context).client() as client:
        done = client.admit(version, reason=reason)
    _target(context).show(done, tables.done_lines(done))


@app.command()
def refresh(
    context: typer.Context,
    hold: Annotated[bool, typer.Option("--hold", help="Admit no new version until it is resumed.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Look into the version store now.")] = False,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="YAML: what happens with new versions.")] = None,
    reason: Reason = "",
) -> None:
    """Shows what happens with new versions, or changes it."""
    if hold + resume + now + (policy is not None) > 1:
        raise typer.BadParameter("give one of --hold, --resume, --now, --policy")
    with _target(context).client() as client:
        if policy is not None:
            from rankhouse.serving.control.refresh_policy import parse_policy

            document = _read_yaml(policy)
            parse_policy(document)
            done = client.set_policy(document, reason=reason)
        elif hold:
            done = client.hold_refresh(reason=reason)
        elif resume:
            done = client.resume_refresh(reason=reason)
        else:
            if now:
                client.refresh_now()
            done = client.refresh()
    _target(context).show(done, tables.done_lines(done))


@app.command()
def holdout(
    context: typer.Context,
    percent: Annotated[float, typer.Argument(min=0, max=50, help="Of the users.")],
    reason: Reason = "",
) -> None:
    """Changes the share of the users that no candidate gets before its promotion."""
    with _target(context).client() as client:
        done = client.set_holdout(percent, reason=reason)
    _target(context).show(done, tables.done_lines(done))


@app.command()
def drain(context: typer.Context) -> None:
    """Makes the replica that answers not ready, so that balancers look elsewhere."""
    with _target(context).client() as client:
        drained = client.drain()
    _target(context).show(drained, f"{drained.replica} is draining: it is not ready, and answers what still comes")


@app.command()
def undrain(context: typer.Context) -> None:
    """Makes the replica that answers ready again."""
    with _target(context).client() as client:
        drained = client.undrain()
    _target(context).show(drained, f"{drained.replica} is ready again")


@app.command()
def replicas(context: typer.Context) -> None:
    """Lists the living replicas, and what each has loaded."""
    with _target(context).client() as client:
        found = client.replicas()
    _target(context).show(found, tables.replicas_table(found))


@app.command()
def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 20,
    before: Annotated[int, typer.Option(min=0, help="Only what is older than this number.")] = 0,
) -> None:
    """Lists who did what, when and why, newest first."""
    with _target(context).client() as client:
        found = client.history(before=before, limit=limit)
    _target(context).show(found, tables.history_table(found))


@app.command()
def status(context: typer.Context) -> None:
    """Shows everything in short: what is stable, what is under way, and what somebody should look at."""
    with _target(context).client() as client:
        found = client.overview()
    active = [each.rollout for each in found.rollouts if each.rollout.status not in _FINISHED]
    lines = [f"[bold]{found.model}[/]: stable is {found.stable or 'none'}, {len(found.replicas)} replicas"]
    lines += [f"{each.id} {each.status}: {each.waits_for}" for each in active]
    lines += [f"[yellow]{escape(warning)}[/]" for warning in found.warnings]
    lines += [f"{each.receiver}: told until event {each.number}" for each in found.receivers]
    _target(context).show(found, "\n".join(lines))


@keys.command("list")
def list_keys(context: typer.Context) -> None:
    """Lists the keys, without themselves."""
    with _target(context).client() as client:
        found = client.keys()
    _target(context).show(found, tables.keys_table(found))


@keys.command()
def add(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What history calls who uses it.")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin.")] = "viewer",
) -> None:
    """Makes a key and prints it: it is kept nowhere."""
    with _target(context).client() as client:
        made = client.add_key(name, cast(Any, role))
    _target(context).show(
        made, f"{made.key}\n[dim]the key of {escape(made.name)}, {made.role}; it is shown only now[/]"
    )


@keys.command()
def revoke(context: typer.Context, name: Annotated[str, typer.Argument(help="A key's name.")]) -> None:
    """Makes a key invalid at once."""
    with _target(context).client() as client:
        left = client.revoke_key(name)
    _target(context).show(left, tables.keys_table(left))


def _target(context: typer.Context) -> Target:
    found: Iterable[Any] = (parent.obj for parent in (context, context.parent) if parent is not None)
    return next(target for target in found if isinstance(target, Target))


def _show_moved(context: typer.Context, rollout: "RolloutView") -> None:
    _target(context).show(rollout, tables.rollout_panel(rollout))


def _console() -> Console:
    console = Console(highlight=False)
    console.width = max(console.width, _WIDTH)
    return console


def _read_yaml(file: Path) -> dict[str, Any]:
    """Reads a file's document; what it says is checked by whoever knows its keys."""
    from rankhouse.serving.errors import RolloutSpecError

    try:
        document = yaml.safe_load(file.read_text())
    except OSError as exc:
        raise typer.BadParameter(f"{file} cannot be read: {exc.strerror}") from exc
    except (yaml.YAMLError, UnicodeDecodeError) as exc:
        raise RolloutSpecError(f"{file} is not YAML: {exc}") from exc
    if not isinstance(document, dict):
        raise RolloutSpecError(f"{file} holds {type(document).__name__}; expected keys and values")
    return document
