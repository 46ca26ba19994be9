"""The first step in a real server, called by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.model_repository import features_step, write_ensemble
from rankhouse.serving.triton_server import TritonServer
from tests.serving.small_version import ROWS, raw_batch, write_version
from tests.serving.triton_backend.inference import (
    Arrays,
    Inference,
    as_element,
    infer_by_http,
    raw_arrays,
    write_batched,
)

pytestmark = pytest.mark.triton

MANY_ROWS = [ROWS[(3 * k) % len(ROWS)] for k in range(201)]


def truth(version: Version, rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """What the version gives for rows: its compiled transform, and its rows added up one by one."""
    batch = version.transform().apply(raw_batch(rows))
    embeddings = np.zeros((len(rows), version.embeddings_dim), np.float32)
    begin = 0
    for feature, lengths in zip(version.features, batch.lengths, strict=True):
        for row, length in enumerate(lengths.tolist()):
            ids, begin = batch.ids[begin : begin + length], begin + length
            pooled = np.zeros(feature.dim, np.float32)
            for one in version.rows(feature.table, ids):
                pooled += one
            if feature.combiner == "mean" and length:
                pooled *= np.float32(1) / np.float32(length)
            embeddings[row, feature.column_begin : feature.column_begin + feature.dim] = pooled
    return {
        "dense": batch.dense,
        "embeddings": embeddings,
        "degraded": np.zeros(1, np.int32),
        "unknown": batch.num_unknown.astype(np.int32),
    }


def assert_same_bits(outputs: Arrays, expected: Arrays) -> None:
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        assert outputs[name].dtype == array.dtype
        np.testing.assert_array_equal(outputs[name], array, strict=True)


@pytest.mark.parametrize("rows", [ROWS, MANY_ROWS, ROWS[3:], []], ids=["few", "many", "empty row", "none"])
def test_outputs_are_those_of_the_python_transform_and_the_stored_rows(
    inference: Inference, features: str, version: Version, rows: Sequence[Mapping[str, Any]]
) -> None:
    assert_same_bits(inference.infer(features, raw_arrays(raw_batch(rows))), truth(version, rows))


@pytest.mark.parametrize("padding", range(8))
def test_tensors_that_begin_on_any_byte(triton: TritonServer, features: str, version: Version, padding: int) -> None:
    # The order of the inputs and a name's length move all that follows.
    arrays = raw_arrays(raw_batch(ROWS))
    names = list(arrays)[padding % len(arrays) :] + list(arrays)[: padding % len(arrays)]
    outputs = infer_by_http((triton.host, triton.ports.http), features, {name: arrays[name] for name in names})
    assert_same_bits(outputs, truth(version, ROWS))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("float_values", np.full((4, 2), np.inf), r"float_values\[0, 0\] is inf; expected a finite number"),
        ("int_lengths", np.zeros((3, 2), np.int32), r"int_lengths has shape \(3, 2\); expected .* 4 rows"),
        ("int_lengths", np.zeros((4, 3), np.int32), "int_lengths has 3 columns; this model has 2"),
        ("int_lengths", np.full((4, 2), -1, np.int32), "int_lengths add up to, -8, none of them negative"),
        ("int_lengths", np.full((4, 2), 2**30, np.int32), "int_lengths add up to, 8589934592"),
        ("text_lengths", np.zeros((4, 3), np.int32), "text_lengths add up to"),
        ("text_sizes", np.zeros(7, np.int32), "text_sizes add up to"),
        ("text_bytes", np.empty(0, np.uint8), "text_bytes has 0 bytes"),
        ("int_values", np.zeros((8,), np.float64), "data-type"),
        ("text_lengths", np.zeros((4, 3, 1), np.int32), "unexpected shape"),
    ],
)
def test_a_wrong_tensor_is_refused_by_name(
    inference: Inference, features: str, name: str, array: np.ndarray, message: str
) -> None:
    with pytest.raises(grpc.RpcError, match=message) as refusal:
        inference.infer(features, raw_arrays(raw_batch(ROWS)) | {name: array})
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT


class _Claim:
    """No element, but a shape whose bytes, counted modulo 2^64, are none either."""

    dtype = np.dtype(np.int32)
    shape = (2**62, 4)

    def tobytes(self) -> bytes:
        return b""


def test_a_shape_that_no_memory_can_hold_is_refused(inference: Inference, features: str, version: Version) -> None:
    arrays: dict[str, Any] = raw_arrays(raw_batch([])) | {"int_lengths": _Claim()}
    with pytest.raises(grpc.RpcError, match=r"int_lengths has the shape .*, which no memory can hold") as refusal:
        inference.infer(features, arrays)
    assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert_same_bits(inference.infer(features, raw_arrays(raw_batch(ROWS))), truth(version, ROWS))


@pytest.mark.parametrize("num_rows", [2**31 - 1, 2**40])
def test_rows_without_a_byte_take_no_memory(
    triton: TritonServer, inference: Inference, version: Version, num_rows: int
) -> None:
    # As the model of a version without continuous features: Triton itself takes any number of columns.
    write_ensemble("loose", [features_step(version)], repository=triton.repository)
    config = triton.repository / "loose.features" / "config.pbtxt"
    config.write_text(config.read_text().replace("[-1, 2]", "[-1, -1]"))
    inference.load("loose.features")
    arrays = raw_arrays(raw_batch([]))
    arrays |= {name: np.empty((num_rows, 0), array.dtype) for name, array in arrays.items() if array.ndim == 2}
    with pytest.raises(grpc.RpcError, match=f"float_values has 0 columns|num_rows is {num_rows}"):
        inference.infer("loose.features", arrays)
    assert_same_bits(inference.infer("loose.features", raw_arrays(raw_batch(ROWS))), truth(version, ROWS))


def test_a_batch_is_executed_at_once_and_a_wrong_request_fails_alone(
    triton: TritonServer, inference: Inference, version: Version
) -> None:
    model = write_batched(version, features_step(version), repository=triton.repository)
    inference.load(model)
    batches = [MANY_ROWS[first : first + first % 7] for first in range(60)]
    wrong = raw_arrays(raw_batch(ROWS))
    # Together these two would add up: one has a value too many, the other one too few.
    wrong_ones = [
        wrong | {"int_values": wrong["int_values"][:-1]},
        wrong | {"int_values": np.append(wrong["int_values"], 7)},
        wrong | {"float_values": np.full((4, 2), -np.inf)},
        wrong | {"text_lengths": wrong["text_lengths"][:3]},
    ]
    calls = [inference.begin(model, as_element(raw_arrays(raw_batch(rows)))) for rows in batches]
    refusals = [inference.begin(model, as_element(arrays)) for arrays in wrong_ones]
    for rows, call in zip(batches, calls, strict=True):
        assert_same_bits(call.result(), as_element(truth(version, rows)))
    for refusal, message in zip(refusals, ["add up to", "add up to", "is -inf", "3 rows|4 rows"], strict=True):
        with pytest.raises(grpc.RpcError, match=message):
            refusal.result()
    answered, executed = inference.executions(model)
    assert answered == 60
    assert executed < 10


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"step": "score"}, "the parameter step is 'score'; expected features or dense"),
        ({"step": None}, "lacks the parameter step"),
        ({"version": "000009-00000000"}, "000009-00000000"),
        ({"store": "/nowhere"}, "/nowhere"),
    ],
)
def test_a_model_that_cannot_be_says_why(
    triton: TritonServer, inference: Inference, version: Version, parameters: dict[str, str | None], message: str
) -> None:
    step = features_step(version)
    given = {name: value for name, value in {**step.parameters, **parameters}.items() if value is not None}
    write_ensemble("wrong", [replace(step, parameters=given)], repository=triton.repository)
    with pytest.raises(grpc.RpcError, match=message):
        inference.load("wrong.features")


def mapped_files(pid: int, store: Path) -> list[str]:
    """The files of a store that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if str(store) in line})


def test_what_no_version_uses_is_unmapped(triton: TritonServer, inference: Inference, tmp_path: Path) -> None:
    version = write_version(tmp_path, seed=5)
    pid = triton.process.pid
    assert pid is not None
    for _ in range(3):
        model = write_batched(version, features_step(version), repository=triton.repository)
        inference.load(model)
        assert mapped_files(pid, tmp_path)
        inference.unload(model)
        assert mapped_files(pid, tmp_path) == []
