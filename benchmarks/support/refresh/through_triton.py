"""Refreshes through Triton: requests come at a rate while models are loaded, switched to, drained and unloaded."""

import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.support.embedding.cells import Cell, make_ids
from benchmarks.support.engine.dataset import Dataset
from benchmarks.support.ensemble.wire import Tensors
from benchmarks.support.refresh.figures import Refresh
from benchmarks.support.refresh.traffic import Answer, Traffic
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer

REST_SECONDS, SETTLE_SECONDS, WAIT_SECONDS = 10.0, 0.3, 0.0005
# A refresh is over in the time of a few requests: so that there are some to judge it by, a round has so many.
REFRESHES_OF_ROUND = 20
FIRST_ANSWER_SECONDS = 30.0
# Different requests, sent in turn.
NUM_REQUESTS = 64


@dataclass
class Answers:
    """The answers so far, and what the benchmark asks of them."""

    all: list[Answer] = field(default_factory=list)

    def between(self, begin: float, end: float) -> list[float]:
        """Returns the seconds of requests that were under way at some moment between two."""
        return [each.seconds for each in self.all if each.due + each.seconds > begin and each.due < end]

    async def first_of(self, model: str, since: float) -> float:
        """Waits for a model's first answer to a request since a moment; returns how long after it that came.

        Raises:
            TimeoutError: None came in half a minute.
        """
        while time.perf_counter() - since < FIRST_ANSWER_SECONDS:
            for each in self.all[-100:]:
                if each.answered == model and each.due >= since:
                    return each.due + each.seconds - since
            await asyncio.sleep(WAIT_SECONDS)
        raise TimeoutError(f"no answer of {model} within {FIRST_ANSWER_SECONDS:g} s")


async def time_triton(dataset: Dataset, *, candidates: int, rate: float, rounds: int) -> list[Refresh]:
    """Returns a refresh for each share and round."""
    refreshes = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with TritonServer(folder / "models", run_dir=folder) as server:
            models = [
                write_models(dataset.version(number), repository=server.repository, backends=server.backends)
                for number in range(len(dataset.shares) + 1)
            ]
            async with TritonClient(server.grpc_url) as client:
                for number, share in enumerate(dataset.shares):
                    for _ in range(rounds):
                        await client.load(models[number])
                        answers = Answers()
                        traffic = Traffic(
                            server.grpc_url, _requests(dataset, candidates), models[number], answers.all.append
                        )
                        refresh = Refreshing(client, traffic, answers, models[number], models[number + 1], rate)
                        refreshes.append(await refresh.run(share))
                        await client.unload(models[number])
    return refreshes


@dataclass
class Refreshing:
    """One refresh from a loaded model to another one, and back."""

    client: TritonClient
    traffic: Traffic
    answers: Answers
    old: str
    new: str
    rate: float
    is_over: bool = False

    async def run(self, share: float) -> Refresh:
        """Measures it; the old model is loaded before and after."""
        sending = asyncio.create_task(self.traffic.pace(self.rate, lambda: self.is_over))
        try:
            return await self._measure(share)
        finally:
            self.is_over = True
            await sending

    async def _measure(self, share: float) -> Refresh:
        answers, client = self.answers, self.client
        await asyncio.sleep(SETTLE_SECONDS)
        rest = time.perf_counter()
        await asyncio.sleep(REST_SECONDS)
        at_rest = answers.between(rest, time.perf_counter())

        during: list[float] = []
        taken: dict[str, list[float]] = {"open": [], "close": [], "back": [], "back_closed": []}
        for _ in range(REFRESHES_OF_ROUND):
            begin = time.perf_counter()
            await client.load(self.new)
            taken["open"].append(time.perf_counter() - begin)
            await self._switch(self.new)
            taken["back"].append(await self._switch(self.old))
            await self._switch(self.new)
            taken["close"].append(await self._close(self.old))
            during += answers.between(begin, time.perf_counter())

            await asyncio.sleep(SETTLE_SECONDS)
            again = time.perf_counter()
            await client.load(self.old)
            taken["back_closed"].append(time.perf_counter() - again + await self._switch(self.old))
            await self._close(self.new)
            await asyncio.sleep(SETTLE_SECONDS)
        means = {f"{name}_seconds": float(np.median(seconds)) for name, seconds in taken.items()}
        return Refresh("Triton", share, at_rest, during, **means, num_failed=len(self.traffic.failures))

    async def _close(self, model: str) -> float:
        """Waits for the last answers of a model and unloads it; returns the seconds of both."""
        begin = time.perf_counter()
        await self.traffic.drained(model)
        await self.client.unload(model)
        return time.perf_counter() - begin

    async def _switch(self, model: str) -> float:
        """Switches and returns the seconds until the model's first answer."""
        since, self.traffic.target = time.perf_counter(), model
        return await self.answers.first_of(model, since)


def _requests(dataset: Dataset, candidates: int) -> list[Tensors]:
    """Requests of raw values whose ids are Zipf-distributed."""
    tables = dataset.tables
    batches = make_ids(Cell(tables, candidates, 1, "zipf"), NUM_REQUESTS)[..., 0]
    nothing = np.empty(0, np.int32)
    return [
        {
            "float_values": np.ones((candidates, 1)),
            # The vocabularies know the values from 0 on, and any other id stands for a value of its own too.
            "int_values": np.ascontiguousarray(ids.T).ravel(),
            "int_lengths": np.ones((candidates, tables.num_tables), np.int32),
            "text_bytes": nothing.astype(np.uint8),
            "text_sizes": nothing,
            "text_lengths": np.empty((candidates, 0), np.int32),
        }
        for ids in batches
    ]
