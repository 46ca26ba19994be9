"""What the machine at hand achieves, measured in seconds: the constants of the cost model.

The lookups and updates are those that train. Started on several ranks (`horovodrun -np 2 rankhouse plan --calibrate
FILE`), all measure at the same time, as they train at the same time, and exchanges are measured between them.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle, pairwise

import numpy as np
import tensorflow as tf

from rankhouse.kernels import arrays, optimizers
from rankhouse.kernels.optimizer_settings import Adagrad
from rankhouse.training.planner.hardware import PROFILES, HardwareProfile, Link
from rankhouse.training.planner.unique_ids import expected_unique
from rankhouse.training.planner.workload import dense_load
from rankhouse.training.ranks import Ranks

# Each figure is the fastest of several runs, as what else the machine does only ever adds time. A run takes a
# millisecond or so, and works on another part of the data than those before it: on a busy machine few are left alone
# for longer, and what is in caches would be looked up faster than in training.
_RUNS = 50
_LONG_RUNS = 20
_DIMS = (16, 128)
# So many ids are pooled into one row, that what is written weighs little beside what is read.
_HOTNESS = 8
_NUM_IDS = 1 << 15
_COPIED_BYTES = 1 << 22
_EXCHANGED_NUMBERS = 1 << 20
_LEAST_SECONDS = 1e-12
# Layers such as those of the shipped recipe, and the samples of a step.
_WIDTHS = (256, 128, 64, 1)
_SAMPLES = 1024


def calibrate(name: str, *, ranks: Ranks | None = None, table_bytes: int = 1 << 28) -> HardwareProfile:
    """Measures what one rank achieves.

    Args:
        name: The profile's name.
        ranks: Those that measure together; by default this process alone, and the links are those of the profile
            "2-cores".
        table_bytes: Size of the tables that rows are looked up in; those of training are larger than caches.

    Returns:
        The profile. All ranks are taken to be on one machine.
    """
    ranks = ranks or Ranks(0, 1)
    stream = _stream_bandwidth(table_bytes)
    lookup_id, gather = _lookup(table_bytes)
    input_seconds = _input_seconds()
    known = PROFILES["2-cores"]
    local = replace(
        known,
        name=name,
        memory_bytes=_memory_bytes() / ranks.size,
        host_memory_bytes=_memory_bytes() / ranks.size,
        stream_bandwidth=stream,
        gather_bandwidth=gather,
        host_bandwidth=gather,
        float32_flops=_dense_flops(tf.float32, stream, input_seconds),
        bfloat16_flops=_dense_flops(tf.bfloat16, stream, input_seconds),
        lookup_id_seconds=lookup_id,
        update_id_seconds=_update_id_seconds(table_bytes, gather),
        input_seconds=input_seconds,
        step_seconds=_call_seconds(),
        ranks_per_node=max(ranks.size, 2),
        shares_host_memory=True,
    )
    return replace(local, intra=_link(ranks)) if ranks.size > 1 else local


def _fastest(run: Callable[[], object], *, num_runs: int = _RUNS) -> float:
    run()
    seconds = []
    for _ in range(num_runs):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def _memory_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _stream_bandwidth(num_bytes: int) -> float:
    source = np.ones(max(num_bytes, 2 * _COPIED_BYTES) // 4, np.float32)
    target = np.ones_like(source)  # Memory that was never written would be found page by page meanwhile.
    num_parts = source.nbytes // _COPIED_BYTES
    parts = cycle(zip(np.array_split(target, num_parts), np.array_split(source, num_parts), strict=True))
    return 2 * source.nbytes / num_parts / _fastest(lambda: np.copyto(*next(parts)))


def _table(dim: int, table_bytes: int) -> tuple[np.ndarray, Iterator[np.ndarray], np.ndarray]:  # type: ignore[type-arg]
    """Returns a table, the random ids of batches, and offsets of their bags."""
    num_rows = table_bytes // 4 // dim
    num_bags = min(num_rows, _NUM_IDS) // _HOTNESS
    ids = np.random.default_rng(0).integers(0, num_rows, [_RUNS + 1, num_bags * _HOTNESS])
    return np.ones((num_rows, dim), np.float32), cycle(ids), np.arange(num_bags + 1) * _HOTNESS


def _lookup(table_bytes: int) -> tuple[float, float]:
    """Returns seconds of an id and bytes per second of rows, from lookups in a narrow and in a wide table."""
    seconds = []
    for dim in _DIMS:
        table, batches, offsets = _table(dim, table_bytes)
        out = np.empty((len(offsets) - 1, dim), np.float32)

        def run() -> None:
            ids = next(batches)  # noqa: B023
            arrays.pooled_lookup([table], ids, offsets, feature_tables=[0], combiners=["sum"], out=out)  # noqa: B023

        seconds.append(_fastest(run) / offsets[-1])
    narrow, wide = _DIMS
    byte = max((seconds[1] - seconds[0]) / (4 * (wide - narrow)), _LEAST_SECONDS)
    return max(seconds[0] - 4 * narrow * byte, _LEAST_SECONDS), 1 / byte


def _update_id_seconds(table_bytes: int, gather_bandwidth: float) -> float:
    """Returns what an update with Adagrad takes for an id beside the bytes that the cost model counts."""
    dim = _DIMS[0]
    table, batches, offsets = _table(dim, table_bytes)
    slots = optimizers.make_slots(Adagrad(), *table.shape)
    grad, num_ids = np.ones((len(offsets) - 1, dim), np.float32), int(offsets[-1])

    def run() -> None:
        gradients = arrays.pooled_lookup_gradient(
            grad, next(batches), offsets, tables_shape=[(len(table), dim)], feature_tables=[0], combiners=["sum"]
        )
        optimizers.apply(table, slots, gradients[0], Adagrad(), learning_rate=0.01)

    unique = expected_unique(len(table), num_ids, 0.0, (0, len(table)))
    num_bytes = 4 * dim * (num_ids + 2 * unique) + 2 * unique * 4 * (2 * dim + 1)
    return max((_fastest(run) - num_bytes / gather_bandwidth) / num_ids, _LEAST_SECONDS)


def _dense_flops(dtype: tf.DType, stream_bandwidth: float, input_seconds: float) -> float:
    """Returns the operations per second of layers in training, beside what the cost model counts of them besides."""
    weights = [tf.Variable(tf.ones(shape)) for shape in pairwise(_WIDTHS)]
    samples = tf.ones([_SAMPLES, _WIDTHS[0]])

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def step() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            values = samples
            tape.watch(values)
            for weight in weights:
                values = tf.nn.relu(tf.cast(tf.matmul(tf.cast(values, dtype), tf.cast(weight, dtype)), tf.float32))
        gradients: list[tf.Tensor] = tape.gradient(values, [samples, *weights])
        return gradients

    load = dense_load(_WIDTHS)
    besides = 16 * _SAMPLES * load.activations / stream_bandwidth + load.num_layers * input_seconds
    seconds = _fastest(lambda: step()[0].numpy())
    # What is left is at least a tenth, whatever the bandwidth was taken for.
    return 3 * load.flops * _SAMPLES / max(seconds - besides, seconds / 10)


def _input_seconds() -> float:
    """Returns what an input adds to a lookup of next to nothing."""
    table, seconds = np.ones((64, 16), np.float32), []
    for num_inputs in (1, 65):
        ids, offsets = np.zeros(num_inputs, np.int64), np.arange(num_inputs + 1)
        features, combiners = [0] * num_inputs, ["sum"] * num_inputs

        def run() -> None:
            arrays.pooled_lookup([table], ids, offsets, feature_tables=features, combiners=combiners)  # noqa: B023

        seconds.append(_fastest(run))
    return max((seconds[1] - seconds[0]) / 64, 1e-9)


def _call_seconds() -> float:
    call = tf.function(lambda value: value + 1.0)
    return max(_fastest(lambda: call(tf.constant(0.0)).numpy()), 1e-9)


def _link(ranks: Ranks) -> Link:
    """Measures exchanges between the ranks, of next to nothing and of 4 MiB."""

    def exchange(num_numbers: int, num_runs: int) -> float:
        values = tf.ones([num_numbers // ranks.size * ranks.size])
        splits = tf.fill([ranks.size], num_numbers // ranks.size)
        seconds = _fastest(
            lambda: ranks.alltoall(values, splits, name=f"calibrate_{num_numbers}")[0].numpy(), num_runs=num_runs
        )
        return _slowest(ranks, seconds)

    def sum_up(num_numbers: int) -> float:
        values = tf.ones([num_numbers])
        seconds = _fastest(
            lambda: ranks.sum_tensors([values], name=f"calibrate_sum_{num_numbers}")[0].numpy(), num_runs=_LONG_RUNS
        )
        return _slowest(ranks, seconds)

    few, many = 64 * ranks.size, _EXCHANGED_NUMBERS
    away = (ranks.size - 1) / ranks.size
    latency = exchange(few, _RUNS)
    exchanged = max(exchange(many, _LONG_RUNS) - latency, 1e-6)
    summed = max(sum_up(many) - sum_up(few), 1e-6)
    return Link(4 * many * away / exchanged, 2 * 4 * many * away / summed, latency)


def _slowest(ranks: Ranks, seconds: float) -> float:
    return max(float(value) for value in ranks.exchange_json(seconds, name="calibrate_seconds"))
