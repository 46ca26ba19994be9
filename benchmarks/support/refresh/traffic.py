"""Requests to a Triton server that go on while the model that they ask is switched to another one."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from benchmarks.support.ensemble.wire import Tensors, infer_inputs

WAIT_SECONDS = 0.001
DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        asked: The model that was asked.
        answered: The model that the answer names.
        scores: float32 [B].
        due: When the request was to be sent, of `time.perf_counter`; when it was, where no rate is kept.
        seconds: From then to the answer.
    """

    asked: str
    answered: str
    scores: npt.NDArray[np.float32]
    due: float
    seconds: float


@dataclass
class Traffic:
    """Sends requests to the current target. Make it and use it in one event loop.

    Attributes:
        url: Triton's gRPC address.
        requests: What is sent, in turn.
        target: The ensemble to ask.
        on_answer: Called with each answer.
        failures: What went wrong, a line for each request without an answer.
    """

    url: str
    requests: Sequence[Tensors]
    target: str
    on_answer: Callable[[Answer], None]
    failures: list[str] = field(default_factory=list)
    num_sent: int = 0
    _under_way: Counter[str] = field(default_factory=Counter)

    async def keep(self, concurrency: int, is_over: Callable[[], bool]) -> None:
        """Keeps so many requests under way until it is over."""
        inputs = [infer_inputs(request) for request in self.requests]
        async with InferenceServerClient(self.url) as client:

            async def send() -> None:
                while not is_over():
                    await self._send(client, inputs, time.perf_counter())

            await asyncio.gather(*(send() for _ in range(concurrency)))

    async def pace(self, requests_per_second: float, is_over: Callable[[], bool]) -> None:
        """Sends requests at a rate, however long answers take; one that has to wait counts from when it was due."""
        inputs = [infer_inputs(request) for request in self.requests]
        async with InferenceServerClient(self.url) as client:
            start, sent = time.perf_counter(), set[asyncio.Task[None]]()
            for number in range(1 << 60):
                due = start + number / requests_per_second
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                if is_over():
                    break
                sent.add(asyncio.create_task(self._send(client, inputs, due)))
                sent = {task for task in sent if not task.done()}
            await asyncio.gather(*sent)

    async def drained(self, model: str) -> None:
        """Waits until no request to a model is under way; none is sent once it is no longer the target.

        Raises:
            TimeoutError: One is still under way after half a minute.
        """
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._under_way[model]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"requests to {model} are still under way after {DRAIN_SECONDS:g} s")
            await asyncio.sleep(WAIT_SECONDS)

    async def _send(self, client: InferenceServerClient, inputs: Sequence[Any], due: float) -> None:
        model, self.num_sent = self.target, self.num_sent + 1
        self._under_way[model] += 1
        try:
            result = await client.infer(model, inputs[self.num_sent % len(inputs)])
            seconds = time.perf_counter() - due
            scores = result.as_numpy("scores").ravel()
            self.on_answer(Answer(model, result.get_response().model_name, scores, due, seconds))
        except InferenceServerException as exc:
            self.failures.append(f"{model}: {exc}")
        finally:
            self._under_way[model] -= 1
