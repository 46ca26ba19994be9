"""Two clients of gateways, one over REST and one over gRPC, that send requests all the time and note each answer."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc
import httpx
import msgspec

from benchmarks.support.refresh.marked_versions import raw_rows
from benchmarks.support.rollout.answers import Answer, mark_of
from rankhouse.serving.gateway.call import KEY, VERSION
from rankhouse.serving.gateway.messages import ScoreAnswer, ScoreRequest
from rankhouse.serving.gateway_client import request_message
from rankhouse.serving.ranking_pb2_grpc import RankingStub

# A gateway that was started again is found at once.
_CHANNEL_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
]
_SECONDS = 30.0
_AFTER_FAILURE_SECONDS = 0.02
_STEP = 7919  # A prime: keys come in no order, and each as often as any other.


@dataclass(frozen=True)
class Gateway:
    """A gateway to ask.

    Attributes:
        name: What records call it.
        rest_url: Its REST service.
        grpc_url: Its gRPC service, host:port.
    """

    name: str
    rest_url: str
    grpc_url: str


@dataclass
class Plan:
    """What is sent.

    Attributes:
        model: The model.
        bodies: The requests, sent in turn; each goes with a key.
        num_keys: Keys are `user-0` and so on.
        concurrency: Requests of each protocol and gateway under way at any moment, where no rate is kept.
        pause_seconds: Between an answer and the next request.
        rate: Requests a second, of all together; None: as fast as answers come.
        has_marks: Whether scores are marks, see `marked_versions`.
    """

    model: str
    bodies: Sequence[ScoreRequest]
    num_keys: int = 300
    concurrency: int = 2
    pause_seconds: float = 0.0
    rate: float | None = None
    has_marks: bool = True


def marked_plan(model: str, **options: Any) -> Plan:
    """Requests of one to seven candidates to a model of marked versions."""
    return Plan(model, [ScoreRequest(raw_rows(1 + seed % 7, seed)) for seed in range(16)], **options)


@dataclass
class _Clients:
    """The connections to one gateway, in the callers' event loop."""

    gateway: Gateway
    rest: httpx.AsyncClient
    stub: Any


class Callers:
    """Sends requests from a thread of its own until the `with` ends.

    Args:
        gateways: Each is asked over both protocols.
        plan: What is sent.

    Attributes:
        answers: What came, in the order in which it came. Any thread may read it while it grows.
    """

    def __init__(self, gateways: Sequence[Gateway], plan: Plan) -> None:
        self.answers: list[Answer] = []
        self._gateways = gateways
        self._plan = plan
        self._contents = [msgspec.json.encode(body)[:-1] for body in plan.bodies]
        self._messages = [request_message(plan.model, body) for body in plan.bodies]
        self._numbers = itertools.count()
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="callers")

    def __enter__(self) -> "Callers":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    @property
    def num_answers(self) -> int:
        """How many requests are over."""
        return len(self.answers)

    def since(self, moment: float) -> list[Answer]:
        """What was sent since a moment, and is answered by now."""
        found = []
        for answer in reversed(self.answers):
            if answer.got < moment:
                break
            if answer.sent >= moment:
                found.append(answer)
        return found[::-1]

    def _run(self) -> None:
        try:
            asyncio.run(self._send_all())
        except BaseException as exc:
            self._error = exc

    async def _send_all(self) -> None:
        clients = [
            _Clients(
                gateway,
                httpx.AsyncClient(timeout=_SECONDS, trust_env=False, headers={"content-type": "application/json"}),
                RankingStub(grpc.aio.insecure_channel(gateway.grpc_url, options=_CHANNEL_OPTIONS)),
            )
            for gateway in self._gateways
        ]
        ways = [(each, send) for each in clients for send in (self._rest, self._grpc)]
        try:
            if self._plan.rate is None:
                workers = (self._keep(*way) for way in ways for _ in range(self._plan.concurrency))
                await asyncio.gather(*workers)
            else:
                await self._pace(ways, self._plan.rate)
        finally:
            for each in clients:
                await each.rest.aclose()

    async def _keep(self, clients: _Clients, send: Callable[..., Any]) -> None:
        while not self._is_over.is_set():
            answer = await self._note(clients, send, time.time())
            await asyncio.sleep(_AFTER_FAILURE_SECONDS if answer.is_failed else self._plan.pause_seconds)

    async def _pace(self, ways: Sequence[tuple[_Clients, Callable[..., Any]]], rate: float) -> None:
        """Sends at a rate, however long answers take."""
        start, sent = time.time(), set[asyncio.Task[Answer]]()
        for number in itertools.count():
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.time()))
            if self._is_over.is_set():
                break
            sent.add(asyncio.create_task(self._note(*ways[number % len(ways)], due)))
            if number % 64 == 0:
                sent = {task for task in sent if not task.done()}
        await asyncio.gather(*sent)

    async def _note(self, clients: _Clients, send: Callable[..., Any], due: float) -> Answer:
        number = next(self._numbers)
        key, body, sent = f"user-{number * _STEP % self._plan.num_keys}", number % len(self._contents), time.time()
        protocol = "rest" if send == self._rest else "grpc"
        version, mark, wrong = await send(clients, body, key)
        answer = Answer(due, sent, time.time(), clients.gateway.name, protocol, key, version, mark, wrong)
        self.answers.append(answer)
        return answer

    async def _rest(self, clients: _Clients, body: int, key: str) -> tuple[str, int, str]:
        url = f"{clients.gateway.rest_url}/v1/models/{self._plan.model}/score"
        try:
            response = await clients.rest.post(url, content=self._contents[body] + b"}", headers={KEY: key})
        except httpx.HTTPError as exc:
            return "", 0, f"{type(exc).__name__}: {exc}"
        if response.status_code != 200:
            return "", 0, f"{response.status_code}: {response.text[:300]}"
        answer = msgspec.json.decode(response.content, type=ScoreAnswer)
        return self._read(answer.version, response.headers.get(VERSION, ""), answer.scores)

    async def _grpc(self, clients: _Clients, body: int, key: str) -> tuple[str, int, str]:
        message = type(self._messages[body])()
        message.CopyFrom(self._messages[body])
        message.key = key
        call = clients.stub.Score(message, timeout=_SECONDS)
        try:
            reply = await call
            metadata = dict(await call.trailing_metadata())
        except grpc.aio.AioRpcError as exc:
            return "", 0, f"{exc.code().name}: {exc.details()}"
        return self._read(reply.version, str(metadata.get(VERSION, "")), list(reply.scores))

    def _read(self, version: str, named: str, scores: list[float]) -> tuple[str, int, str]:
        if named != version:
            return version, 0, f"the head names {named or 'no version'}, the body {version}"
        return version, *(mark_of(scores) if self._plan.has_marks else (0, ""))


@dataclass
class Marks:
    """The marks of published versions, by name."""

    of: dict[str, int] = field(default_factory=dict)

    def mixed(self, answers: Sequence[Answer]) -> list[str]:
        """A line for each answer that is not wholly of the version that it names."""
        lines = []
        for each in answers:
            if each.is_failed:
                continue
            if each.wrong or each.mark != self.of.get(each.version):
                lines.append(
                    f"{each.version} has mark {self.of.get(each.version)}, its answer to {each.key} over "
                    f"{each.protocol} has {each.mark}{f': {each.wrong}' if each.wrong else ''}"
                )
        return lines
