"""A summary as bytes: MessagePack of a version, names, and the arrays one after the other, compressed.

Readers take the arrays' shapes from the names, never from the bytes, so that a damaged or hostile summary cannot ask
for more memory than a sound one.
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from rankhouse.serving.analysis.errors import SummaryError
from rankhouse.serving.analysis.layout import Arrays, event_arrays, request_arrays

VERSION = 1
MAX_FEATURES = 10_000
_MAX_EVENTS = 64

_AnyArrays = Mapping[str, npt.NDArray[Any]]


class _Packed(msgspec.Struct, forbid_unknown_fields=True, array_like=True):
    """What is packed.

    Attributes:
        version: Of this layout.
        features: The features by name.
        events: The events by name.
        content: The arrays of requests in the order of layout.py, then those of each event: little-endian, compressed.
    """

    version: int
    features: list[str]
    events: list[str]
    content: bytes


def pack(features: Sequence[str], arrays: _AnyArrays, events: Mapping[str, _AnyArrays]) -> bytes:
    """Packs a summary's arrays."""
    parts = [*arrays.values(), *(array for event in events.values() for array in event.values())]
    content = b"".join(np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes() for part in parts)
    return msgspec.msgpack.encode(_Packed(VERSION, list(features), list(events), zlib.compress(content, 1)))


def unpack(content: bytes) -> tuple[tuple[str, ...], Arrays, dict[str, Arrays]]:
    """Reads what `pack` gave: features, arrays, and the arrays of each event.

    Raises:
        SummaryError: It is something else, damaged, or of a newer release.
    """
    packed = _read(content)
    arrays = request_arrays(len(packed.features))
    events = {event: event_arrays() for event in packed.events}
    parts = [*arrays.items(), *(item for event in events.values() for item in event.items())]
    rest = _decompress(packed.content, sum(array.nbytes for _, array in parts))
    for name, array in parts:
        values = np.frombuffer(rest[: array.nbytes], array.dtype.newbyteorder("<")).reshape(array.shape)
        if not np.isfinite(values).all() or (name != "rank_correlations" and values.min(initial=0) < 0):
            raise SummaryError(f"a summary's {name} hold a number that cannot be counted; it is damaged")
        array[...] = values
        rest = rest[array.nbytes :]
    for name in ("missing", "missing_shares", "ids"):
        if arrays[name][0] > arrays[name][1]:
            raise SummaryError(
                f"of a summary's {name}, {arrays[name][0]} are counted of {arrays[name][1]}; it is damaged"
            )
    return tuple(packed.features), arrays, events


def _read(content: bytes) -> _Packed:
    try:
        packed = msgspec.msgpack.decode(content, type=_Packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise SummaryError(f"{len(content)} bytes are no summary: {exc}") from exc
    if packed.version != VERSION:
        raise SummaryError(f"the summary has version {packed.version}; this release reads {VERSION}: update it")
    if len(packed.features) > MAX_FEATURES or len(packed.events) > _MAX_EVENTS:
        raise SummaryError(f"the summary has {len(packed.features)} features and {len(packed.events)} events: too many")
    if len(set(packed.events)) != len(packed.events):
        raise SummaryError(f"the summary has an event twice: {', '.join(packed.events)}")
    return packed


def _decompress(content: bytes, expected: int) -> bytes:
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(content, expected + 1)
    except zlib.error as exc:
        raise SummaryError(f"the summary's content is damaged: {exc}") from exc
    if len(plain) != expected or not reader.eof or reader.unused_data:
        raise SummaryError(f"the summary's content is not the {expected} bytes that its names ask for; it is damaged")
    return plain
