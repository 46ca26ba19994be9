"""Files of a compiled transform that are damaged, of another kind, or do not fit each other: each is named.

native/transform/fuzz.cc damages them at random, under sanitizers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.tensors import read_tensors, write_tensors
from rankhouse.embedding_cache.format.transform import JSON_NAME, CompiledTransform, layer_name
from rankhouse.embedding_cache.format.vocabulary import UNKNOWN_ID
from rankhouse.embedding_cache.native_transform import NativeTransform, RawTensors
from tests.embedding_cache.test_native_transform import TRANSFORMS, assert_same_bits, fitted, grown

FEATURES = TRANSFORMS["mixed"]
BASE, LAYER = layer_name(0), layer_name(1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CompiledTransform(FEATURES, grown()).save(tmp_path)
    return tmp_path


def change_tensors(path: Path, **arrays: Any) -> None:
    write_tensors(path, {**{name: np.array(array) for name, array in read_tensors(path).items()}, **arrays})


def change_json(folder: Path, change: Callable[[Any], object]) -> None:
    document = json.loads((folder / JSON_NAME).read_text())
    change(document)
    (folder / JSON_NAME).write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("file", "name", "array", "message"),
    [
        (BASE, "text.slots", np.ones(8, np.uint64), r"text.slots has 8 slots for 11 texts; expected a power of two"),
        (BASE, "text.slots", np.zeros(48, np.uint64), r"text.slots has 48 slots for 11 texts; expected a power of two"),
        (BASE, "text.slots", np.zeros(0, np.uint64), r"text.slots has 0 slots"),
        (BASE, "text.slots", np.zeros(32, np.int64), r"text.slots is I64 of 1 dimensions; expected U64 of one"),
        (BASE, "text.slots", np.zeros((2, 16), np.uint64), r"text.slots is U64 of 2 dimensions; expected U64 of one"),
        (BASE, "text.data", np.zeros(3, np.uint8), "text.offsets does not run from 0 to 3"),
        (BASE, "text.data", np.zeros(3, np.int8), "text.data is I8 of 1 dimensions; expected U8"),
        (BASE, "text.offsets", np.arange(12), "text.offsets does not run from 0"),
        (BASE, "text.offsets", np.empty(0, np.int64), "text.offsets does not run from 0"),
        (BASE, "text.table_starts", np.array([0, 11]), "the text index is of 1 tables; expected 2"),
        (BASE, "text.table_starts", np.array([0, 12, 11]), "text.table_starts does not run from 0 to 11"),
        (BASE, "text.table_starts", np.array([0, 9, 12]), "text.table_starts does not run from 0 to 11"),
        (
            BASE,
            "text.table_starts",
            np.array([0, 0, 11]),
            "the layers make 14 rows of table 'u'; expected 6",
        ),
        (BASE, "int.i.values", np.arange(3), "int.i.values has 3 elements, .ids 7; expected one id for each value"),
        (BASE, "int.i.values", np.arange(7)[::-1].copy(), "int.i.values is not sorted at place 1"),
        (BASE, "int.i.values", np.zeros(7, np.int64), "int.i.values is not sorted at place 1"),
        (BASE, "int.i.ids", np.full(7, 2**63 - 1), r"int.i.ids has 9223372036854775807; expected at most 2\^62"),
        (BASE, "int.i.ids", np.zeros(7, np.int32), "int.i.ids is I32 of 1 dimensions; expected I64"),
        (LAYER, "text.ids", np.array([12]), "text.ids has 1 ids; expected 3, one for each text"),
        (LAYER, "text.ids", np.array([12, 2, -1]), r"frees 2 ids of table 't' for 1 removed values, or has an id outs"),
        (LAYER, "text.ids", np.array([2**63 - 1, -1, -1]), r"has an id outside 3 to 2\^62"),
        (LAYER, "text.offsets", np.array([0, 700, 2, 603]), r"text.offsets has 0 and 700 for text 0; expected places"),
        (LAYER, "text.offsets", np.array([0, 3, 2, 603]), r"text.offsets has 3 and 2 for text 1; expected places"),
        (LAYER, "freed.i", np.array([3]), "frees 1 ids of table 'i' for 2 removed values"),
        (LAYER, "freed.i", np.array([2, 8]), "has an id outside 3"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(folder: Path, file: str, name: str, array: Any, message: str) -> None:
    change_tensors(folder / file, **{name: array})
    with pytest.raises(CorruptFileError, match=message) as refused:
        NativeTransform(folder)
    assert str(folder) in str(refused.value)


@pytest.mark.parametrize("name", ["text.data", "text.offsets", "int.i.values", "text.ids", "freed.t"])
def test_a_missing_tensor_is_named(folder: Path, name: str) -> None:
    tensors = {key: np.array(array) for key, array in read_tensors(folder / LAYER).items() if key != name}
    write_tensors(folder / LAYER, tensors)
    with pytest.raises(CorruptFileError, match=f"{LAYER}: lacks the tensor '{name}'"):
        NativeTransform(folder)


def texts_of(folder: Path, *texts: str) -> list[int]:
    raw = RawBatch.from_rows(FEATURES, [{"t": text} for text in texts])
    with NativeTransform(folder) as native:
        ids: list[int] = native.apply(RawTensors.of(raw)).ids[: len(texts)].tolist()
    return ids


@pytest.mark.parametrize(
    "slots",
    [
        lambda slots: slots | np.uint64(0xFFFFFFFF),
        lambda slots: np.full(len(slots), 2**64 - 1, np.uint64),
        lambda slots: slots >> np.uint64(32) << np.uint64(32),
        lambda slots: np.zeros_like(slots),
        lambda slots: (slots & np.uint64(0xFFFFFFFF)) + np.uint64(12) | slots >> np.uint64(32) << np.uint64(32),
    ],
)
def test_slots_that_point_nowhere_find_nothing(tmp_path: Path, slots: Any) -> None:
    CompiledTransform(FEATURES, fitted()).save(tmp_path)
    assert texts_of(tmp_path, "b", "c" * 600, "new") == [4, 9, UNKNOWN_ID]
    change_tensors(tmp_path / BASE, **{"text.slots": slots(read_tensors(tmp_path / BASE)["text.slots"])})
    assert texts_of(tmp_path, "b", "c" * 600, "new") == [UNKNOWN_ID] * 3


@pytest.mark.parametrize("wrong", [-1, -(2**63), 2**63 - 1, 2**62, 10**6])
def test_offsets_that_point_nowhere_find_nothing(tmp_path: Path, wrong: int) -> None:
    CompiledTransform(FEATURES, fitted()).save(tmp_path)
    offsets = np.array(read_tensors(tmp_path / BASE)["text.offsets"])
    offsets[1:-1] = wrong
    change_tensors(tmp_path / BASE, **{"text.offsets": offsets})
    assert texts_of(tmp_path, *"ab", "aa", "é", "c" * 600) == [UNKNOWN_ID] * 5


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1])
def test_a_file_that_was_cut_off_is_refused(folder: Path, size: int) -> None:
    content = (folder / LAYER).read_bytes()
    (folder / LAYER).write_bytes(content[:size])
    with pytest.raises(CorruptFileError, match=rf"{LAYER}: is not (a well-formed tensor file|valid JSON)"):
        NativeTransform(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(extra={"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}),
        lambda header: header["text.data"].update(data_offsets=[0, 2**62]),
        lambda header: header["text.data"].update(data_offsets=[5, 1]),
        lambda header: header["text.data"].update(data_offsets=[-8, 0]),
        lambda header: header["text.data"].update(shape=[2**40]),
        lambda header: header["text.slots"].update(shape=[2**61]),
        lambda header: header["text.slots"].update(shape=[-1]),
        lambda header: header["text.slots"].update(dtype="C64"),
        lambda header: header["text.slots"].update(strides=[8]),
        lambda header: header.pop("text.data"),
        lambda header: header.update({"text.data": []}),
    ],
)
def test_a_header_that_lies_is_refused(folder: Path, change: Any) -> None:
    content = (folder / LAYER).read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    change(header)
    text = json.dumps(header).encode()
    (folder / LAYER).write_bytes(len(text).to_bytes(8, "little") + text + content[begin:])
    with pytest.raises(CorruptFileError, match=LAYER):
        NativeTransform(folder)


def test_tensors_on_any_byte_are_read(folder: Path) -> None:
    raw = RawBatch.from_rows(FEATURES, [{"t": "b", "il": [9, 5, 0], "tl": ["a", "no"], "n": 3}, {}])
    expected = CompiledTransform.load(folder).apply(raw)
    for name in (BASE, LAYER):
        content = (folder / name).read_bytes()
        length = int.from_bytes(content[:8], "little") + 3
        (folder / name).write_bytes(
            length.to_bytes(8, "little") + content[8 : 5 + length] + b"   " + content[5 + length :]
        )
    assert_same_bits(NativeTransform(folder).apply(RawTensors.of(raw)), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.update(format="rankhouse.version"),
            "expected the format 'rankhouse.transform', found 'rankhouse.v",
        ),
        (lambda d: d.update(format_version=99), "has format_version 99, this release reads up to 1; use a newer"),
        (lambda d: d.update(format_version=0), "expected a format_version of 1 or more, found 0"),
        (lambda d: d.update(format_version=True), "expected a 64-bit integer under 'format_version'"),
        (lambda d: d.update(feature=[]), "has the unknown key 'feature'; did you mean 'features'"),
        (lambda d: d.update(x=[]), "has the unknown key 'x'; known are features, format, format_version, layers"),
        (lambda d: d.pop("vocabularies"), "lacks the key 'vocabularies'"),
        (lambda d: d.update(layers=["transform.safetensors"]), "the layers make"),
        (lambda d: d.update(layers=[]), r"expected the layers \['transform.safetensors'\], found \[\]"),
        (lambda d: d.update(layers=["a"]), "expected the layer 'transform.safetensors', found \"a\""),
        (lambda d: d["features"].append(d["features"][0]), "feature 't' stands twice"),
        (lambda d: d["features"][0].update(kind="categoric"), "feature 't': has kind 'categoric'"),
        (lambda d: d["features"][0].update(dtype="string"), "feature 't': has dtype 'string'"),
        (lambda d: d["features"][0].update(dtype="int64"), "'t' has table 't', which has no vocabulary of int64"),
        (lambda d: d["features"][0].update(table="i"), "'t' has table 'i', which has no vocabulary of text"),
        (lambda d: d["features"][0].update(table=None), "'t' has table '', which has no vocabulary"),
        (lambda d: d["features"][0].update(width=1), "feature 't': has the unknown key 'width'"),
        (lambda d: d["features"][0].pop("name"), "lacks the key 'name'"),
        (lambda d: d["features"][1].update(steps=None), "feature 'n': is continuous and has no steps"),
        (lambda d: d["features"][1]["steps"].update(fil=1), "has the unknown key 'fil'; did you mean 'fill'"),
        (lambda d: d["vocabularies"]["num_rows"].update(t=99), "the layers make 14 rows of table 't'; expected 99"),
        (lambda d: d["vocabularies"]["num_rows"].update(w=3), "num_rows has table 'w', which stands neither in ints"),
        (lambda d: d["vocabularies"]["num_rows"].pop("t"), "num_rows: lacks the key 't'"),
        (lambda d: d["vocabularies"].update(ints=[1]), "expected names of tables under 'ints', found number"),
        (lambda d: d["vocabularies"]["texts"].append("i"), "table 'i' stands twice"),
    ],
)
def test_a_description_that_is_wrong_is_refused(folder: Path, change: Any, message: str) -> None:
    change_json(folder, change)
    with pytest.raises(CorruptFileError, match=rf"{JSON_NAME}.*{message}"):
        NativeTransform(folder)
    with pytest.raises(FormatError):
        CompiledTransform.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(features={}), "expected a list under 'features', found object"),
        (lambda d: d["features"][0].update(dtype="float64"), "'t' has dtype 'float64'; expected 'int64' or 'text'"),
        (lambda d: d["features"][0].update(is_list=1), "expected true or false under 'is_list', found number"),
        (lambda d: d["features"][1]["steps"].update(mean="1"), "expected a number under 'mean', found string"),
        (lambda d: d["features"][1]["steps"].update(std=1e39), r"has the mean or std 1e\+39 after log"),
        (lambda d: d["vocabularies"].update(other=1), "vocabularies: has the unknown key 'other'"),
    ],
)
def test_a_description_that_python_takes_as_it_comes_is_refused_too(folder: Path, change: Any, message: str) -> None:
    change_json(folder, change)
    with pytest.raises(CorruptFileError, match=rf"{JSON_NAME}.*{message}"):
        NativeTransform(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "expected a JSON object, found array"),
        (b'{"format": NaN}', "is not valid JSON"),
        (b'{"format": 1, "format": 2}', "the key 'format' stands twice"),
        (b'{"a": {"b": 1, "c": [{}], "b": 2}}', "the key 'b' stands twice"),
        (b'{"format": "\xff"}', "is not valid JSON"),
        (b'{"a":' + b"[" * 100_000, "is not valid JSON"),
    ],
)
def test_json_that_is_none_is_refused(folder: Path, text: bytes, message: str) -> None:
    (folder / JSON_NAME).write_bytes(text)
    with pytest.raises(CorruptFileError, match=message):
        NativeTransform(folder)


def test_layers_are_counted(folder: Path) -> None:
    with pytest.raises(CorruptFileError, match="has 3 layers of vocabularies, was given 2"):
        NativeTransform(folder, [folder / BASE, folder / LAYER])


@pytest.mark.parametrize("name", [JSON_NAME, BASE, LAYER])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CorruptFileError, match=f"{name}: is missing"):
        NativeTransform(folder)
    (folder / name).mkdir()
    with pytest.raises(CorruptFileError, match=f"{name}: cannot be read"):
        NativeTransform(folder)
