"""Calling the admin API: what `rankhouse rollout` does, and what a user's own programs may."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
import msgspec

from rankhouse.serving.admin import bodies
from rankhouse.serving.admin.keys import Caller, Role, read_key_file
from rankhouse.serving.admin.operations import PREFIX
from rankhouse.serving.admin.overview import Overview
from rankhouse.serving.admin.verdicts import VerdictNumbers
from rankhouse.serving.admin.views import ReplicaView, RolloutView, VersionView
from rankhouse.serving.admin.webhooks import Progress
from rankhouse.serving.control.model_state import Event
from rankhouse.serving.errors import AdminCallError
from rankhouse.serving.gateway.problems import Problem

URL_VARIABLE = "RANKHOUSE_ADMIN_URL"
KEY_FILE_VARIABLE = "RANKHOUSE_ADMIN_KEY_FILE"
LATEST = "latest"

_SERVING_FILE = "serving.json"
_Answer = TypeVar("_Answer")


def find_admin(
    url: str | None = None, key_file: Path | None = None, *, run_dir: Path | None = None
) -> tuple[str, Path]:
    """Finds the admin API: as given, else of the environment, else of the `rankhouse serve` that runs on this machine.

    Args:
        url: Where it is.
        key_file: The file of a key.
        run_dir: The run folder of a `rankhouse serve`; None looks among the temporary ones.

    Returns:
        The URL, and the file of a key.

    Raises:
        AdminCallError: Neither says where it is, or several do.
    """
    url = url or os.environ.get(URL_VARIABLE)
    key_path = key_file or os.environ.get(KEY_FILE_VARIABLE)
    if not url or not key_path or run_dir:
        serving = _serving(run_dir, is_needed=not url or not key_path)
        url, key_path = url or serving.get("admin_url"), key_path or serving.get("admin_key_file")
    if not url or not key_path:
        what = "--url" if not url else "--key-file"
        raise AdminCallError(f"that `rankhouse serve` has no admin API; give {what}, or start it anew")
    return url, Path(key_path)


def _serving(run_dir: Path | None, *, is_needed: bool) -> Mapping[str, Any]:
    pattern = f"rankhouse-serve-*/{_SERVING_FILE}"
    files = [run_dir / _SERVING_FILE] if run_dir else sorted(Path(tempfile.gettempdir()).glob(pattern))
    own = [path for path in files if path.is_file() and path.stat().st_uid == os.getuid()]
    if len(own) == 1:
        found: Mapping[str, Any] = json.loads(own[0].read_text())
        return found
    if not is_needed:
        return {}
    if own:
        raise AdminCallError(f"several run here: {', '.join(str(path.parent) for path in own)}; choose by --run-dir")
    raise AdminCallError(
        f"no `rankhouse serve` runs {f'in {run_dir}' if run_dir else 'here'}; say where the admin API is: --url and "
        f"--key-file, or {URL_VARIABLE} and {KEY_FILE_VARIABLE}"
    )


class AdminClient:
    """Calls an admin API. Use as a context manager, from one thread.

    Each method raises AdminCallError where the API refuses the call, or nobody answers.

    Args:
        url: Where it is, like http://127.0.0.1:8082.
        key: A key.
        timeout_seconds: How long an answer may take.
    """

    def __init__(self, url: str, key: str, *, timeout_seconds: float = 10.0) -> None:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        self._url = url
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout_seconds, trust_env=False)
        except httpx.InvalidURL as exc:
            raise AdminCallError(f"{url} is no address of an admin API: {exc}") from exc

    @classmethod
    def of_file(cls, url: str, key_file: Path) -> "AdminClient":
        """A client with the key in a file.

        Raises:
            KeyFileError: The file does not hold a key that only its owner can read.
        """
        return cls(url, read_key_file(key_file))

    def __enter__(self) -> "AdminClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def overview(self) -> Overview:
        """Everything at once."""
        return self._call("GET", "/overview", Overview)

    def models(self) -> list[bodies.ModelSummary]:
        """The models that are served."""
        return self._call("GET", "/models", list[bodies.ModelSummary])

    def who_am_i(self) -> Caller:
        """Whose key this is."""
        return self._call("GET", "/whoami", Caller)

    def versions(self) -> list[VersionView]:
        """All versions, the newest first."""
        return self._call("GET", "/versions", list[VersionView])

    def version(self, version: str) -> VersionView:
        """One version."""
        return self._call("GET", f"/versions/{version}", VersionView)

    def quarantine(self, version: str, *, reason: str) -> bodies.Done:
        """Keeps a version from traffic."""
        return self._call("POST", f"/versions/{version}/quarantine", bodies.Done, bodies.Why(reason))

    def release(self, version: str, *, reason: str = "") -> bodies.Done:
        """Takes a version out of quarantine."""
        return self._call("POST", f"/versions/{version}/release", bodies.Done, bodies.Why(reason))

    def admit(self, version: str, *, reason: str = "") -> bodies.Done:
        """Makes a newer version stable at once."""
        return self._call("POST", f"/versions/{version}/admit", bodies.Done, bodies.Why(reason))

    def rollback(self, version: str = "", *, reason: str = "") -> bodies.Done:
        """Brings an earlier stable version back; with none named, the one before."""
        return self._call("POST", "/rollback", bodies.Done, bodies.Rollback(version, reason))

    def rollouts(self, *, limit: int = 50) -> list[RolloutView]:
        """Active rollouts, then finished ones, the newest first."""
        return self._call("GET", f"/rollouts?limit={limit}", list[RolloutView])

    def start(self, spec: dict[str, Any], *, reason: str = "") -> RolloutView:
        """Starts a rollout of its document."""
        return self._call("POST", "/rollouts", RolloutView, bodies.StartRollout(spec, reason))

    def rollout(self, rollout: str = LATEST) -> RolloutView:
        """One rollout."""
        return self._call("GET", f"/rollouts/{rollout}", RolloutView)

    def pause(self, rollout: str = LATEST, *, reason: str = "") -> RolloutView:
        """Stops a rollout where it is."""
        return self._call("POST", f"/rollouts/{rollout}/pause", RolloutView, bodies.Why(reason))

    def resume(self, rollout: str = LATEST, *, reason: str = "") -> RolloutView:
        """Lets a paused rollout go on."""
        return self._call("POST", f"/rollouts/{rollout}/resume", RolloutView, bodies.Why(reason))

    def promote(self, rollout: str = LATEST, *, version: str | None = None, reason: str = "") -> RolloutView:
        """Makes a rollout's candidate stable at once."""
        return self._call("POST", f"/rollouts/{rollout}/promote", RolloutView, bodies.Promote(reason, version))

    def abort(self, rollout: str = LATEST, *, reason: str = "") -> RolloutView:
        """Rolls a rollout back at once."""
        return self._call("POST", f"/rollouts/{rollout}/abort", RolloutView, bodies.Why(reason))

    def skip_step(self, rollout: str = LATEST, *, step: int | None = None, reason: str = "") -> RolloutView:
        """Ends a rollout's step at once."""
        return self._call("POST", f"/rollouts/{rollout}/skip", RolloutView, bodies.SkipStep(reason, step))

    def set_weight(self, rollout: str = LATEST, *, weight: float, reason: str = "") -> RolloutView:
        """Gives a rollout's candidates another share now."""
        return self._call("POST", f"/rollouts/{rollout}/weight", RolloutView, bodies.SetWeight(weight, reason))

    def verdict(self, rollout: str = LATEST) -> VerdictNumbers:
        """A rollout's verdict, flat."""
        return self._call("GET", f"/rollouts/{rollout}/verdict", dict[str, VerdictNumbers])["data"]

    def refresh(self) -> bodies.Done:
        """What happens with new versions."""
        return self._call("GET", "/refresh", bodies.Done)

    def hold_refresh(self, *, reason: str = "") -> bodies.Done:
        """Stops refresh."""
        return self._call("POST", "/refresh/hold", bodies.Done, bodies.Why(reason))

    def resume_refresh(self, *, reason: str = "") -> bodies.Done:
        """Lets refresh go on."""
        return self._call("POST", "/refresh/resume", bodies.Done, bodies.Why(reason))

    def refresh_now(self) -> bodies.Drained:
        """Has the replica that answers look into the version store now."""
        return self._call("POST", "/refresh/now", bodies.Drained)

    def set_policy(self, policy: dict[str, Any], *, reason: str = "") -> bodies.Done:
        """Changes what happens with new versions."""
        return self._call("PUT", "/refresh/policy", bodies.Done, bodies.SetPolicy(policy, reason))

    def set_holdout(self, percent: float, *, reason: str = "") -> bodies.Done:
        """Changes the share of the request keys that no candidate gets."""
        return self._call("PUT", "/holdout", bodies.Done, bodies.SetHoldout(percent, reason))

    def drain(self) -> bodies.Drained:
        """Makes the replica that answers not ready."""
        return self._call("POST", "/drain", bodies.Drained)

    def undrain(self) -> bodies.Drained:
        """Makes the replica that answers ready again."""
        return self._call("POST", "/undrain", bodies.Drained)

    def replicas(self) -> list[ReplicaView]:
        """The living replicas."""
        return self._call("GET", "/replicas", list[ReplicaView])

    def history(self, *, before: int = 0, limit: int = 50) -> list[Event]:
        """What happened, newest first; with `before`, what is older than that event's number."""
        return self._call("GET", f"/history?before={before}&limit={limit}", list[Event])

    def receivers(self) -> list[Progress]:
        """The receivers of events, and how far each has come."""
        return self._call("GET", "/webhooks", list[Progress])

    def keys(self) -> list[bodies.KeyEntry]:
        """The keys, without themselves."""
        return self._call("GET", "/keys", list[bodies.KeyEntry])

    def add_key(self, name: str, role: Role) -> bodies.NewKey:
        """Makes a key."""
        return self._call("POST", "/keys", bodies.NewKey, bodies.AddKey(name, role))

    def revoke_key(self, name: str) -> list[bodies.KeyEntry]:
        """Makes a key invalid."""
        return self._call("DELETE", f"/keys/{name}", list[bodies.KeyEntry])

    def _call(self, method: str, path: str, kind: type[_Answer], body: msgspec.Struct | None = None) -> _Answer:
        content = None if body is None else msgspec.json.encode(body)
        try:
            response = self._client.request(method, PREFIX + path, content=content)
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise AdminCallError(f"no answer from an admin API at {self._url}: {exc}") from exc
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=kind)
            problem = msgspec.json.decode(response.content, type=Problem)
        except msgspec.DecodeError as exc:
            raise AdminCallError(
                f"{response.url} answered {response.status_code}, and not as an admin API does"
            ) from exc
        raise AdminCallError(f"{problem.title}: {f'{problem.path} ' if problem.path else ''}{problem.detail}")
