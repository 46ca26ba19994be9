"""Calls of single models, with any tensors, as only a client of another make could send them."""

import http.client
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.model_repository import StepModel, write_ensemble

Arrays = Mapping[str, np.ndarray]

_TYPES = {"uint8": "UINT8", "int32": "INT32", "int64": "INT64", "float32": "FP32", "float64": "FP64"}
_DTYPES = {name: dtype for dtype, name in _TYPES.items()}


def raw_arrays(raw: RawBatch) -> dict[str, np.ndarray]:
    """The tensors of a batch, by name."""
    texts = raw.text_values.tolist()
    return {
        "float_values": raw.float_values,
        "int_values": raw.int_values,
        "int_lengths": raw.int_lengths,
        "text_bytes": np.frombuffer(b"".join(texts), np.uint8),
        "text_sizes": np.array([len(text) for text in texts], np.int32),
        "text_lengths": raw.text_lengths,
    }


def as_element(arrays: Arrays) -> dict[str, np.ndarray]:
    """A request's tensors, or its answer's, as one element of a batch."""
    return {name: array[None] for name, array in arrays.items()}


def write_batched(version: Version, step: StepModel, *, repository: Path) -> str:
    """Writes a step's model for Triton's dynamic batcher: a request is one element of a batch, whatever rows it has.

    One instance waits half a second for more, so that requests that are sent together are executed together.
    """
    name = f"batched-{version.name}"
    write_ensemble(name, [step], repository=repository)
    config = repository / f"{name}.{step.step}" / "config.pbtxt"
    text = config.read_text().replace("max_batch_size: 0", "max_batch_size: 64")
    text = re.sub(r"count: \d+", "count: 1", re.sub(r"(input \{.*) \}\n", r"\1 allow_ragged_batch: true }\n", text))
    config.write_text(text + "dynamic_batching { preferred_batch_size: [ 64 ] max_queue_delay_microseconds: 500000 }\n")
    return f"{name}.{step.step}"


@dataclass(frozen=True)
class Call:
    """A call under way."""

    future: Any

    def result(self) -> dict[str, np.ndarray]:
        """Waits for the outputs, by name; raises grpc.RpcError."""
        reply = self.future.result()
        contents = zip(reply.outputs, reply.raw_output_contents, strict=True)
        return {
            output.name: np.frombuffer(content, _DTYPES[output.datatype]).reshape(output.shape)
            for output, content in contents
        }


class Inference:
    """A connection to a server's gRPC service; any thread may use it."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(url)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> "Inference":
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def begin(self, model: str, arrays: Arrays) -> Call:
        """Sends a request."""
        request = service_pb2.ModelInferRequest(model_name=model)
        for name, array in arrays.items():
            tensor = request.inputs.add()
            tensor.name, tensor.datatype = name, _TYPES[array.dtype.name]
            tensor.shape.extend(array.shape)
            request.raw_input_contents.append(array.tobytes())
        return Call(self._stub.ModelInfer.future(request, timeout=60))

    def infer(self, model: str, arrays: Arrays) -> dict[str, np.ndarray]:
        """Sends a request and waits for its outputs; raises grpc.RpcError."""
        return self.begin(model, arrays).result()

    def load(self, model: str) -> None:
        """Has the server load a model; raises grpc.RpcError."""
        self._stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name=model), timeout=60)

    def unload(self, model: str) -> None:
        """Has the server unload a model, and waits until it is gone; raises grpc.RpcError."""
        self._stub.RepositoryModelUnload(service_pb2.RepositoryModelUnloadRequest(model_name=model), timeout=60)
        deadline = time.monotonic() + 300
        while model in {one.name for one in self._index() if one.state != "UNAVAILABLE"}:
            assert time.monotonic() < deadline, f"{model} is still loaded"
            time.sleep(0.01)

    def _index(self) -> Any:
        return self._stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(ready=False), timeout=60).models

    def executions(self, model: str) -> tuple[int, int]:
        """How many requests a model has answered, and in how many executions."""
        (stats,) = self._stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name=model), timeout=60).model_stats
        return stats.inference_count, stats.execution_count


def infer_by_http(address: tuple[str, int], model: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Sends tensors over HTTP, one after the other behind a JSON header of any length: so they begin on any byte."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "datatype": _TYPES[array.dtype.name],
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": array.nbytes},
                }
                for name, array in arrays.items()
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(
            "POST",
            f"/v2/models/{model}/infer",
            header + b"".join(array.tobytes() for array in arrays.values()),
            {"Inference-Header-Content-Length": str(len(header))},
        )
        reply = connection.getresponse()
        body = reply.read()
        assert reply.status == 200, body
        end = int(reply.headers["Inference-Header-Content-Length"])
    finally:
        connection.close()
    outputs = {}
    for output in json.loads(body[:end])["outputs"]:
        begin, end = end, end + output["parameters"]["binary_data_size"]
        outputs[output["name"]] = np.frombuffer(body[begin:end], _DTYPES[output["datatype"]]).reshape(output["shape"])
    return outputs
