"""REST and gRPC in one process and one event loop."""

import asyncio
import gc
import logging
import math
import signal
from functools import partial

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from rankhouse.serving.control.model_state import ModelState, RefreshPolicy, number_of
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import AddressError, NotReadyError, SettingsError
from rankhouse.serving.gateway.admin_server import AdminServer
from rankhouse.serving.gateway.app import create_app
from rankhouse.serving.gateway.control_loop import ControlLoop
from rankhouse.serving.gateway.feedback import Feedback
from rankhouse.serving.gateway.http_server import HttpServer, taken
from rankhouse.serving.gateway.loaded_versions import FoundVersions, LoadedVersions
from rankhouse.serving.gateway.observations import Observations
from rankhouse.serving.gateway.ranking_service import SERVICE, RankingService
from rankhouse.serving.gateway.refreshed_versions import RefreshedVersions
from rankhouse.serving.gateway.routes import Routes
from rankhouse.serving.gateway.scorer import Scorer
from rankhouse.serving.gateway.served_model import ServedModel
from rankhouse.serving.gateway.settings import Settings
from rankhouse.serving.gateway.shadow import Shadows
from rankhouse.serving.processes import address
from rankhouse.serving.ranking_pb2_grpc import add_RankingServicer_to_server
from rankhouse.serving.triton_client import TritonClient

_HEALTH_SECONDS = 1.0
LATEST = "latest"
_log = logging.getLogger(__name__)


class Gateway:
    """A running gateway. Start it, use it and stop it in one event loop.

    Attributes:
        port: The port that REST listens on.
        grpc_port: The port that gRPC listens on.
        admin_port: The port that the admin API listens on; None: there is none.
    """

    def __init__(self, settings: Settings, model: ServedModel, store: StateStore | None = None) -> None:
        """Makes a gateway that does not run yet; in the event loop that will run it.

        Args:
            settings: What it is told.
            model: The version that answers, unless the state of rollouts says otherwise.
            store: Where that state is; None: there is none. It is closed in the end.
        """
        self.port, self.grpc_port, self.admin_port = settings.port, settings.grpc_port, settings.admin_port
        self._settings = settings
        self._model = model
        self._client = TritonClient(settings.triton_url)
        # Which version may answer, only the state can say where there is one.
        self._scorer = Scorer(settings, self._client, None if store else Routes.to(model))
        self._observations = Observations()
        self._feedback = Feedback(settings, self._observations, self._scorer.metrics, store=store)
        self._shadows = Shadows(
            self._scorer,
            self._observations,
            max_in_flight=settings.shadow_max_in_flight,
            timeout_seconds=settings.shadow_timeout_seconds,
        )
        self._scorer.observers.append(self._feedback.observe)
        if store:
            self._scorer.observers += [self._observations.observe, self._shadows.observe]
        self._control = self._control_loop(store) if store else None
        self._admin = AdminServer(settings, store, self._control) if store and self._control else None
        if self._control and self._admin:
            self._control.on_news = self._admin.wake_conductor
        self._grace_seconds = math.ceil(settings.request_timeout_seconds) + 1
        app = create_app(self._scorer, self._feedback, settings, example=model)
        self._rest = HttpServer(app, what="REST", setting="PORT", grace_seconds=self._grace_seconds)
        self._grpc = self._grpc_server()
        self._health = health.aio.HealthServicer()
        self._reporting: asyncio.Task[None] | None = None

    def _control_loop(self, store: StateStore) -> ControlLoop:
        settings = self._settings
        versions: LoadedVersions
        if settings.triton_repository is not None:
            versions = RefreshedVersions(settings, self._client, scorer=self._scorer, store=store)
        else:
            versions = FoundVersions(self._client, self._model, store=settings.store, cache=settings.cache)
        return ControlLoop(
            store,
            _first_state(settings, self._model),
            scorer=self._scorer,
            versions=versions,
            observations=self._observations,
            feedback=self._feedback,
            settings=settings,
        )

    def _grpc_server(self) -> grpc.aio.Server:
        options = [
            ("grpc.max_receive_message_length", self._settings.max_body_bytes),
            ("grpc.max_metadata_size", self._settings.max_header_bytes),
            # Two gateways on one port would share the callers by chance; the second must fail.
            ("grpc.so_reuseport", 0),
        ]
        return grpc.aio.server(options=options)

    async def start(self) -> None:
        """Listens on all ports.

        Raises:
            AddressError: One of them is taken, or not ours to take; then none is listened on.
        """
        add_RankingServicer_to_server(RankingService(self._scorer, self._feedback), self._grpc)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), self._grpc)
        try:
            self._listen(self._settings.host)
        except AddressError:
            await self._rest.stop()
            if self._admin:
                await self._admin.stop()
            raise
        await self._report_health()
        await self._grpc.start()
        await self._rest.serve()
        self._reporting = asyncio.create_task(self._keep_reporting_health())
        if self._control and self._admin:
            self._control.urls = self._urls()
            await self._control.start()
            await self._admin.start()

    def _listen(self, host: str) -> None:
        self.port = self._rest.listen(host, self.port)
        self.admin_port = self._admin.listen() if self._admin else None
        try:
            self.grpc_port = self._grpc.add_insecure_port(address(host, self.grpc_port))
        except RuntimeError as exc:
            raise AddressError(taken(host, self.grpc_port, "gRPC", "GRPC_PORT")) from exc

    def _urls(self) -> dict[str, str]:
        host = self._settings.host
        urls = {"rest": f"http://{address(host, self.port)}", "grpc": address(host, self.grpc_port)}
        if self.admin_port is not None:
            urls["admin"] = f"http://{address(self._settings.admin_host or host, self.admin_port)}"
        return urls

    async def stop(self, *, drain_seconds: float = 0.0) -> None:
        """Tells that the end is near, answers what is in flight, and closes both ports.

        Args:
            drain_seconds: How long to go on as before, but for readiness, so that balancers can look elsewhere.
        """
        self._scorer.is_draining = True
        await self._report_health()
        await asyncio.sleep(drain_seconds)
        if self._reporting:
            self._reporting.cancel()
        await asyncio.gather(self._rest.stop(), self._grpc.stop(self._grace_seconds))
        await self._shadows.stop()
        if self._control and self._admin:
            await self._admin.stop()  # While the store is open.
            await self._control.stop()
        await self._client.close()

    async def _report_health(self) -> None:
        try:
            await self._scorer.check_ready()
            status = health_pb2.HealthCheckResponse.SERVING
        except NotReadyError:
            status = health_pb2.HealthCheckResponse.NOT_SERVING
        for service in ("", SERVICE):
            await self._health.set(service, status)

    async def _keep_reporting_health(self) -> None:
        while True:
            await asyncio.sleep(_HEALTH_SECONDS)
            await self._report_health()


def _first_state(settings: Settings, model: ServedModel) -> ModelState:
    """The state of a model that has none yet."""
    if settings.triton_repository is not None and settings.version == LATEST:
        # The first version becomes stable when it was loaded and proven.
        policy = RefreshPolicy(admit=settings.refresh, keep_loaded_bytes=settings.keep_loaded_bytes)
        return ModelState(model=model.name, policy=policy)
    policy = RefreshPolicy(admit="manual", keep_loaded_bytes=settings.keep_loaded_bytes)
    return ModelState(model=model.name, stable=model.version, floor=number_of(model.version), policy=policy)


def run(settings: Settings) -> None:
    """Serves until SIGTERM, which drains, or SIGINT, which does not wait for balancers.

    Raises:
        AddressError: A port cannot be listened on.
        FormatError: There is no such version, or it is damaged.
        StateStoreError: The state store's URL is of no known kind.
        KeyFileError: The first admin key's file does not hold a key that only its owner can read.
    """
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    model = _described(settings)
    _log.info("settings:\n%s", settings.shown())
    # While it is away, the last known state serves, or the replica is not ready.
    opening = partial(open_state_store, settings.state_url, may_be_away=True) if settings.state_url else None
    store = await asyncio.to_thread(opening) if opening else None
    gateway = Gateway(settings, model, store)
    await gateway.start()
    host = settings.host
    if settings.triton_repository is None:
        _log.info("%s serves %s", settings.model, model.version)
    rest, grpc_address = address(host, gateway.port), address(host, gateway.grpc_port)
    _log.info("REST on http://%s (see /docs), gRPC on %s", rest, grpc_address)
    if gateway.admin_port is not None:
        _log.info("the admin API on http://%s (see /docs)", address(settings.admin_host or host, gateway.admin_port))
    # What was made until now lives as long as the process: to look through it for garbage again and again costs time.
    gc.collect()
    gc.freeze()
    received = await _first_signal()
    _log.info("%s: answering what is in flight, then stopping", received.name)
    await gateway.stop(drain_seconds=settings.drain_seconds if received is signal.SIGTERM else 0.0)
    _log.info("stopped")


def _described(settings: Settings) -> ServedModel:
    """The version by which callers are told what the model takes, before any is served."""
    if settings.triton_repository is not None:
        if settings.state_url is None:
            raise SettingsError("RANKHOUSE_TRITON_REPOSITORY needs RANKHOUSE_STATE_URL, which says what is served")
        if settings.version == LATEST:
            return ServedModel.newest(settings.store, settings.model, cache=settings.cache)
    return ServedModel.open(settings.store, settings.model, settings.version, cache=settings.cache)


async def _first_signal() -> signal.Signals:
    """Waits for SIGTERM or SIGINT. A second one then has its usual effect: it ends the process at once."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[signal.Signals] = loop.create_future()
    signals = (signal.SIGTERM, signal.SIGINT)

    def on_signal(number: signal.Signals) -> None:
        for each in signals:
            loop.remove_signal_handler(each)
        received.set_result(number)

    for each in signals:
        loop.add_signal_handler(each, on_signal, each)
    return await received
