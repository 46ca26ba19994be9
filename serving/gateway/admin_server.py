"""The admin side of a replica: its port, and its conductor."""

import asyncio

from rankhouse.serving.admin.app import create_admin_app
from rankhouse.serving.admin.catalog import VersionCatalog
from rankhouse.serving.admin.commands import Commands
from rankhouse.serving.admin.conductor import Conductor, ConductorOptions
from rankhouse.serving.admin.keys import KeyRing
from rankhouse.serving.admin.operations import Admin, ReplicaControl
from rankhouse.serving.admin.operations_page import PAGE
from rankhouse.serving.admin.overview import Reader
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.errors import SettingsError
from rankhouse.serving.gateway.http_server import HttpServer
from rankhouse.serving.gateway.settings import Settings

_GRACE_SECONDS = 2


class AdminServer:
    """Runs the conductor, and the admin port where the settings name one. Start and stop it in one event loop.

    Args:
        settings: The port, its keys, and what the conductor is told.
        store: The store that replicas share.
        replica: This replica.

    Raises:
        KeyFileError: The first key's file does not hold a key that only its owner can read.
        SettingsError: The file of the webhooks' secret cannot be read.
    """

    def __init__(self, settings: Settings, store: StateStore, replica: ReplicaControl) -> None:
        self._settings = settings
        catalog = VersionCatalog(settings.store, settings.model, cache=settings.cache)
        self._conductor = Conductor(
            store, settings.model, replica=replica.name, options=_options(settings), baseline=catalog.statistics
        )
        self._conducting: asyncio.Task[None] | None = None
        self._http = self._server(store, replica, catalog) if settings.admin_port is not None else None

    def _server(self, store: StateStore, replica: ReplicaControl, catalog: VersionCatalog) -> HttpServer:
        settings = self._settings
        admin = Admin(
            store,
            settings.model,
            Commands(store, settings.model, catalog=catalog),
            Reader(store, settings.model, catalog=catalog),
            KeyRing(store, key_file=settings.admin_key_file),
            replica,
        )
        app = create_admin_app(admin, max_header_bytes=settings.max_header_bytes, page=PAGE)
        return HttpServer(app, what="the admin API", setting="ADMIN_PORT", grace_seconds=_GRACE_SECONDS)

    def listen(self) -> int | None:
        """Takes the admin port; nothing is answered yet.

        Returns:
            The port; None where the settings name none.

        Raises:
            AddressError: It is taken, or not ours to take.
        """
        if self._http is None or self._settings.admin_port is None:
            return None
        return self._http.listen(self._settings.admin_host or self._settings.host, self._settings.admin_port)

    async def start(self) -> None:
        """Answers and conducts from now on."""
        if self._http is not None:
            await self._http.serve()
        self._conducting = asyncio.create_task(self._conductor.run())

    def wake_conductor(self) -> None:
        """Has the conductor look at once whether something is due."""
        self._conductor.wake()

    async def stop(self) -> None:
        """Answers what is in flight, and leaves conducting to others; harmless where nothing began."""
        if self._http is not None:
            await self._http.stop()
        if self._conducting is not None:
            self._conducting.cancel()
            await asyncio.gather(self._conducting, return_exceptions=True)


def _options(settings: Settings) -> ConductorOptions:
    secret, file = None, settings.webhook_secret_file
    if file is not None:
        try:
            secret = file.read_bytes().strip()
        except OSError as exc:
            raise SettingsError(f"RANKHOUSE_WEBHOOK_SECRET_FILE={file} cannot be read: {exc.strerror}") from exc
        if not secret:
            raise SettingsError(f"RANKHOUSE_WEBHOOK_SECRET_FILE={file} is empty; expected the secret of webhooks")
    hosts = tuple(filter(None, settings.webhook_hosts.split(",")))
    return ConductorOptions(webhook_secret=secret, webhook_hosts=hosts, retraining_command=settings.retraining_command)
