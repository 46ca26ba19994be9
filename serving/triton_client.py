"""The one seam to a Triton server's gRPC service: scoring, loading and unloading, with errors of our own."""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.serving.errors import (
    InvalidTensorsError,
    ModelLoadError,
    TritonError,
    TritonTimeoutError,
    TritonUnavailableError,
    UnknownModelError,
)

_ERRORS = {
    grpc.StatusCode.UNAVAILABLE: TritonUnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: TritonTimeoutError,
    grpc.StatusCode.NOT_FOUND: UnknownModelError,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidTensorsError,
}
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that was started again is found within a second; by default gRPC waits up to two minutes. The last of the
    # three is how long an attempt may take.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.min_reconnect_backoff_ms", 2000),
]
_RAW_TENSORS = (
    ("float_values", "FP64"),
    ("int_values", "INT64"),
    ("int_lengths", "INT32"),
    ("text_bytes", "UINT8"),
    ("text_sizes", "INT32"),
    ("text_lengths", "INT32"),
)
_CALL_SECONDS = 10.0


@dataclass(frozen=True)
class ServerMetadata:
    """What a server says of itself."""

    name: str
    version: str


@dataclass(frozen=True)
class ScoreResult:
    """What an ensemble answered.

    Attributes:
        scores: float32 [B], a probability for each row.
        is_degraded: Default rows stand in for embeddings that a failed tier of the engine did not give.
        num_unknown: How many values of the rows stand in no vocabulary.
    """

    scores: npt.NDArray[Any]
    is_degraded: bool
    num_unknown: int


class TritonClient:
    """Calls one Triton server. Make it and use it in one event loop; any number of calls may run at once.

    Args:
        url: The server's gRPC address, host:port.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel = grpc.aio.insecure_channel(url, options=_OPTIONS)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        """Closes the connection; calls under way are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> "TritonClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def score(self, ensemble: str, raw: RawBatch, *, timeout_seconds: float) -> ScoreResult:
        """Scores raw rows with the ensemble of a version.

        Args:
            ensemble: The ensemble's name, as `model_repository.ensemble_name` gives it.
            raw: B rows.
            timeout_seconds: How long the answer may take; the server drops what it has not begun by then.

        Raises:
            TritonError: There is no answer: see its subclasses; or it is another model's, or not of B scores.
        """
        request = service_pb2.ModelInferRequest(model_name=ensemble)
        for (name, datatype), array in zip(_RAW_TENSORS, _wire_arrays(raw), strict=True):
            tensor = request.inputs.add()
            tensor.name = name
            tensor.datatype = datatype
            tensor.shape.extend(array.shape)
            request.raw_input_contents.append(array.tobytes())
        reply = await self._call(self._stub.ModelInfer, request, timeout_seconds, f"scoring with {ensemble}")
        if reply.model_name != ensemble:
            raise TritonError(
                f"{reply.model_name!r} answered at Triton {self.url} where {ensemble!r} was asked; its scores are of "
                "another version, so they are refused: see what stands between here and that server"
            )
        scores = self._output(reply, "scores", np.float32)
        if len(scores) != raw.num_rows:
            raise TritonError(f"{ensemble} at {self.url} gave {len(scores)} scores for {raw.num_rows} rows")
        return ScoreResult(
            scores,
            is_degraded=bool(self._output(reply, "degraded", np.int32).any()),
            num_unknown=int(self._output(reply, "unknown", np.int32).sum()),
        )

    def _output(self, reply: Any, name: str, dtype: type[np.generic]) -> npt.NDArray[Any]:
        for output, content in zip(reply.outputs, reply.raw_output_contents, strict=True):
            if output.name == name:
                return np.frombuffer(content, dtype)
        raise TritonError(
            f"{reply.model_name} at Triton {self.url} gave no {name!r}; write its models again with this release"
        )

    async def load(self, ensemble: str, *, timeout_seconds: float = 120.0) -> None:
        """Loads an ensemble and the models of its steps from the server's repository.

        Raises:
            ModelLoadError: The server could not; the message is the server's.
            TritonError: There is no answer.
        """
        request = service_pb2.RepositoryModelLoadRequest(model_name=ensemble)
        try:
            await self._call(self._stub.RepositoryModelLoad, request, timeout_seconds, f"loading {ensemble}")
        except (TritonTimeoutError, TritonUnavailableError):
            raise
        except TritonError as exc:
            raise ModelLoadError(str(exc)) from exc

    async def unload(self, ensemble: str, *, timeout_seconds: float = 30.0) -> None:
        """Unloads an ensemble and the models of its steps, and waits until it takes no more requests.

        Raises:
            TritonError: There is no answer.
        """
        request = service_pb2.RepositoryModelUnloadRequest(model_name=ensemble)
        request.parameters["unload_dependents"].bool_param = True
        await self._call(self._stub.RepositoryModelUnload, request, timeout_seconds, f"unloading {ensemble}")
        # The server answers at once and unloads behind the answer.
        deadline = time.monotonic() + timeout_seconds
        while await self.is_ready(ensemble):
            if time.monotonic() > deadline:
                raise TritonTimeoutError(f"{ensemble} at {self.url} is still loaded after {timeout_seconds:g} s")
            await asyncio.sleep(0.01)

    async def is_ready(self, ensemble: str | None = None) -> bool:
        """Says whether the server, or an ensemble there, takes requests; False also where no server answers."""
        try:
            return await self.says_ready(ensemble, timeout_seconds=_CALL_SECONDS)
        except (TritonUnavailableError, TritonTimeoutError):
            return False

    async def says_ready(self, ensemble: str | None = None, *, timeout_seconds: float) -> bool:
        """Asks whether the server, or an ensemble there, takes requests.

        Raises:
            TritonError: There is no answer.
        """
        try:
            if ensemble is None:
                request = service_pb2.ServerReadyRequest()
                reply = await self._call(self._stub.ServerReady, request, timeout_seconds, "asking for readiness")
            else:
                request = service_pb2.ModelReadyRequest(name=ensemble)
                reply = await self._call(self._stub.ModelReady, request, timeout_seconds, "asking for readiness")
        except UnknownModelError:
            return False
        return bool(reply.ready)

    async def metadata(self) -> ServerMetadata:
        """Asks the server for its name and release.

        Raises:
            TritonError: There is no answer.
        """
        request = service_pb2.ServerMetadataRequest()
        reply = await self._call(self._stub.ServerMetadata, request, _CALL_SECONDS, "asking for its release")
        return ServerMetadata(reply.name, reply.version)

    async def _call(self, method: Any, request: Any, timeout_seconds: float, what: str) -> Any:
        """Makes a call and translates its errors."""
        try:
            return await method(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as exc:
            kind = _ERRORS.get(exc.code(), TritonError)
            if kind is TritonTimeoutError:
                message = f"no answer within {timeout_seconds:g} s"
            else:
                message = exc.details() or exc.code().name
            raise kind(f"{what} at Triton {self.url}: {message}") from exc


def _wire_arrays(raw: RawBatch) -> tuple[npt.NDArray[Any], ...]:
    """Returns the arrays in the order of the tensors.

    Texts travel as one run of bytes and their sizes: Triton's own tensors of strings are put together one by one.
    """
    texts: list[bytes] = raw.text_values.tolist()
    return (
        raw.float_values,
        raw.int_values,
        raw.int_lengths,
        np.frombuffer(b"".join(texts), dtype=np.uint8),
        np.fromiter(map(len, texts), dtype=np.int32, count=len(texts)),
        raw.text_lengths,
    )
