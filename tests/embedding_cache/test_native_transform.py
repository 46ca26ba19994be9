"""The compiled transform in C++ gives the same bits as the one in NumPy, and refuses what that refuses.

native/transform/ holds it against sanitizers, test_native_transform_files.py gives it damaged files.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.embedding_cache.format.errors import TransformError
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.transform import CompiledTransform, TransformedBatch
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.vocabulary import REMOVED, TableChange, TextValues, Vocabularies
from rankhouse.embedding_cache.native_transform import NativeTransform, RawTensors
from rankhouse.kernels.executor import Executor

STORES = Path(__file__).parent / "format"
GOLDEN = [
    ("golden", "000001-00f043b8"),
    ("golden_chain", "000001-ab01e749"),
    ("golden_chain", "000002-233a39bb"),
    ("golden_chain", "000003-b7a8a7ab"),
]
INT64 = np.iinfo(np.int64)
INTS = [5, -1, 0, 2**62, 2**62 + 1, INT64.min, INT64.max]
TEXTS = ["a", "b", "aa", "é", "a" * 300, "b" * 256, "c" * 600, "\0", "\0\0"]
OTHER_INTS, OTHER_TEXTS = [9, INT64.max - 1], ["no", "a" * 299, "d" * 700, "\0\0\0"]
# Signed zeros, denormal and huge numbers, neighbours of -1, NaN of several payloads.
FLOATS = np.concatenate(
    [
        np.array([0.0, -0.0, 5e-324, -1e-310, 1e-40, 1e308, -1.7976931348623157e308, 3.5e38, 2.0**24 + 1, 0.1]),
        np.array([-1.0, -1 + 2.0**-24, -1 + 2.0**-25, -1 - 2.0**-23, -2.0, 2.0**53 + 1, 9.2e18]),
        np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001, -1 % 2**64], np.uint64).view(np.float64),
    ]
)


def categorical(name: str, dtype: Any, table: str, is_list: bool = False) -> Feature:
    return Feature(name, "categorical", dtype, is_list=is_list, table=table, dim=4, combiner="mean")


CONTINUOUS = [
    Feature("n", "continuous", "int64", steps=DenseSteps(2.0, 0.0, 50.0, True, 1.5, 0.5)),
    Feature("f", "continuous", "float64", steps=DenseSteps(fill=-1.0)),
    Feature("l", "continuous", "float64", steps=DenseSteps(fill=-0.0, log=True)),
    Feature("z", "continuous", "float64", steps=DenseSteps(clip_max=1e300, mean=0.1, std=0.0)),
    Feature("d", "continuous", "float64", steps=DenseSteps(clip_min=-1e39, mean=3.0, std=1e-3)),
    Feature("s", "continuous", "float64", steps=DenseSteps(log=True, mean=1e-3, std=1e-50)),
]
SINGLE = [
    *(categorical(name, "text", "t") for name in ("t", "t2")),
    categorical("u", "text", "u"),
    categorical("i", "int64", "i"),
    categorical("e", "int64", "empty"),
]
LISTS = [categorical("il", "int64", "i", is_list=True), categorical("tl", "text", "t", is_list=True)]
TRANSFORMS = {
    "mixed": [SINGLE[0], CONTINUOUS[0], LISTS[0], SINGLE[3], LISTS[1], SINGLE[2], *CONTINUOUS[1:]],
    "singles": [*CONTINUOUS, *SINGLE],
    "ints": [SINGLE[3], SINGLE[4]],
    "texts": SINGLE[:3],
    "lists": LISTS,
    "floats": CONTINUOUS,
    "nothing": [],
}


def fitted() -> Vocabularies:
    texts = {"t": TextValues.of(TEXTS), "u": TextValues.of(["b", "x"])}
    return Vocabularies.build({"i": np.array(INTS), **texts, "empty": np.empty(0, np.int64)})


def grown() -> Vocabularies:
    """Two layers over the fit: values come, go, come back with another id, and one goes again."""
    none = TableChange(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))
    no_text = replace(none, values=TextValues.of([]))

    def change(values: Any, ids: Sequence[int], freed: Sequence[int]) -> TableChange:
        return TableChange(values, np.array(ids, np.int64), np.array(freed, np.int64))

    first = {
        "t": change(TextValues.of(["no", "a", "c" * 600]), [12, REMOVED, REMOVED], [3, 9]),
        "i": change(np.array([INT64.min, 9, 5]), [REMOVED, 10, REMOVED], [3, 8]),
        "u": no_text,
        "empty": change(np.array([7]), [3], []),
    }
    second = {
        "t": change(TextValues.of(["a", "b"]), [13, REMOVED], [4]),
        "i": change(np.array([9, 5]), [REMOVED, 8], [10]),
        "u": change(TextValues.of(["a" * 299]), [5], []),
        "empty": none,
    }
    return fitted().extended(first).extended(second)


@pytest.fixture(scope="module")
def transforms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[CompiledTransform, Any]]]:
    pairs = {}
    for name, features in TRANSFORMS.items():
        for kind, vocabularies in (("fitted", fitted()), ("grown", grown())):
            folder = tmp_path_factory.mktemp(name)
            transform = CompiledTransform(features, vocabularies)
            transform.save(folder)
            pairs[f"{name} {kind}"] = (transform, NativeTransform(folder))
    yield pairs
    for _, native in pairs.values():
        native.close()


def assert_same_bits(found: TransformedBatch, expected: TransformedBatch) -> None:
    for name in ("dense", "ids", "lengths"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one.dtype, one.shape) == (other.dtype, other.shape), name
        np.testing.assert_array_equal(one.view(f"i{one.itemsize}"), other.view(f"i{one.itemsize}"), err_msg=name)


def assert_same_batch(found: TransformedBatch, expected: TransformedBatch) -> None:
    assert_same_bits(found, expected)
    assert found.num_unknown.tolist() == expected.num_unknown.tolist()


def bags(random: np.random.Generator, features: Sequence[Feature], num_rows: int, pool: list[Any]) -> tuple[Any, Any]:
    most = np.array([4 if feature.is_list else 1 for feature in features], dtype=np.int64)
    lengths = random.integers(0, most + 1, (num_rows, len(features))).astype(np.int32)
    return [pool[place] for place in random.integers(0, len(pool), lengths.sum())], lengths


def random_batch(transform: CompiledTransform, seed: int, num_rows: int) -> RawBatch:
    random = np.random.default_rng(seed)
    by_kind: dict[str, list[Feature]] = {"int64": [], "text": []}
    for feature in transform.categorical:
        by_kind[feature.dtype].append(feature)
    floats = random.choice(FLOATS, (num_rows, transform.num_dense))
    if seed % 2:
        bits = random.integers(0, 2**64, floats.shape, dtype=np.uint64)
        floats = np.where(np.isinf(bits.view(np.float64)), 0, bits.view(np.float64))
    ints, int_lengths = bags(random, by_kind["int64"], num_rows, INTS + OTHER_INTS)
    texts, text_lengths = bags(random, by_kind["text"], num_rows, TEXTS + OTHER_TEXTS)
    values = np.empty(len(texts), dtype=object)
    values[:] = [text.encode() for text in texts]
    return RawBatch(floats, np.array(ints, np.int64), int_lengths, values, text_lengths)


@pytest.mark.parametrize(("store", "name"), GOLDEN)
def test_golden_requests_become_the_same_bits(store: str, name: str) -> None:
    version = VersionStore(STORES / store).open(name)
    transform = version.transform()
    with NativeTransform(version.path, version.vocabulary_files) as native:
        assert native.num_dense == transform.num_dense
        for golden in version.golden():
            raw = RawBatch.from_rows(transform.features, golden.rows())
            assert_same_bits(native.apply(RawTensors.of(raw)), transform.apply(raw))


@pytest.mark.parametrize("kind", ["fitted", "grown"])
@pytest.mark.parametrize("name", TRANSFORMS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), num_rows=st.integers(0, 300))
def test_random_batches_become_the_same_bits(transforms: Any, name: str, kind: str, seed: int, num_rows: int) -> None:
    transform, native = transforms[f"{name} {kind}"]
    raw = random_batch(transform, seed, num_rows)
    assert_same_batch(native.apply(RawTensors.of(raw)), transform.apply(raw))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), sizes=st.lists(st.integers(0, 100), max_size=5))
def test_several_batches_are_as_one(transforms: Any, seed: int, sizes: list[int]) -> None:
    transform, native = transforms["mixed grown"]
    batches = [random_batch(transform, seed + number, size) for number, size in enumerate([*sizes, 1])]
    whole = RawBatch(
        **{
            name: np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("float_values", "int_values", "int_lengths", "text_values", "text_lengths")
        }
    )
    found = native.apply(*map(RawTensors.of, batches))
    assert_same_bits(found, transform.apply(whole))
    assert found.num_unknown.tolist() == [transform.apply(batch).num_unknown.item() for batch in batches]


def test_no_batch_at_all(transforms: Any) -> None:
    _, native = transforms["mixed fitted"]
    batch = native.apply()
    assert (batch.dense.shape, batch.ids.shape, batch.lengths.shape) == ((0, 6), (0,), (5, 0))
    assert batch.num_unknown.shape == (0,)


def test_the_same_bits_with_any_number_of_threads(transforms: Any) -> None:
    transform, native = transforms["mixed grown"]
    raw = random_batch(transform, 1, 5000)
    expected, tensors = transform.apply(raw), RawTensors.of(raw)
    with Executor(3) as executor:
        for num_threads in (1, 2, None, executor):
            assert_same_batch(native.apply(tensors, num_threads=num_threads), expected)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: native.apply(tensors, num_threads=1), range(16)):
            assert_same_bits(found, expected)


def test_what_transforms_share_stays_until_the_last_is_closed(tmp_path: Path) -> None:
    transform = CompiledTransform(TRANSFORMS["mixed"], grown())
    transform.save(tmp_path)
    raw = random_batch(transform, 3, 100)
    expected, tensors = transform.apply(raw), RawTensors.of(raw)

    def open_apply_close(_: int) -> TransformedBatch:
        with NativeTransform(tmp_path) as native:
            return native.apply(tensors, num_threads=1)

    with NativeTransform(tmp_path) as one, ThreadPoolExecutor(8) as pool:
        for found in pool.map(open_apply_close, range(32)):
            assert_same_bits(found, expected)
        assert_same_bits(one.apply(tensors), expected)


def test_a_file_in_the_place_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    feature = categorical("i", "int64", "i")
    raw = RawTensors.of(RawBatch.from_rows([feature], [{"i": 5}, {"i": 6}]))
    opened = []
    for known in ([5, 6], [6, 5], [5, 7]):
        CompiledTransform([feature], Vocabularies.build({"i": np.array(known)})).save(tmp_path)
        opened.append(NativeTransform(tmp_path))
    assert [native.apply(raw).ids.tolist() for native in opened] == [[3, 4], [4, 3], [3, 2]]


def one_number(tmp_path: Path, steps: DenseSteps) -> tuple[CompiledTransform, NativeTransform]:
    transform = CompiledTransform([Feature("x", "continuous", "float64", steps=steps)], Vocabularies.build({}))
    transform.save(tmp_path)
    return transform, NativeTransform(tmp_path)


def numbers(values: npt.NDArray[np.float64]) -> RawBatch:
    none = np.empty((len(values), 0), np.int32)
    return RawBatch(values.reshape(-1, 1), np.empty(0, np.int64), none, np.empty(0, object), none)


def test_logarithms_of_all_exponents(tmp_path: Path) -> None:
    transform, native = one_number(tmp_path, DenseSteps(log=True))
    random = np.random.default_rng(0)
    upper = np.arange(512, dtype=np.uint32).repeat(1024) << 23
    values = (upper | random.integers(0, 2**23, len(upper)).astype(np.uint32)).view(np.float32)
    # And around the place where the range of the polynomials is split.
    split = np.float32(np.sqrt(0.5)) * np.exp2(np.arange(-20, 60, dtype=np.float32))[:, None]
    near = (split.view(np.int32) + np.arange(-50, 50, dtype=np.int32)).view(np.float32).ravel() - np.float32(1)
    finite = np.concatenate([values[np.isfinite(values)], near]).astype(np.float64)
    raw = numbers(finite)
    assert_same_bits(native.apply(RawTensors.of(raw)), transform.apply(raw))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_steps_give_the_same_bits(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    number = st.floats(-1e30, 1e30) | st.integers(-(2**53), 2**53)
    maybe = st.none() | number
    steps = data.draw(st.builds(DenseSteps, number, maybe, maybe, st.booleans(), maybe, maybe))
    transform, native = one_number(tmp_path_factory.mktemp("steps"), steps)
    values = data.draw(st.lists(st.floats(allow_infinity=False) | st.sampled_from(FLOATS.tolist()), max_size=80))
    raw = numbers(np.array(values, np.float64))
    assert_same_bits(native.apply(RawTensors.of(raw)), transform.apply(raw))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 1000])
def test_integers_are_found_among_any_number_of_them(tmp_path: Path, size: int) -> None:
    values = np.random.default_rng(size).permutation(np.arange(size) * 2 - size)
    feature = categorical("i", "int64", "i")
    transform = CompiledTransform([feature], Vocabularies.build({"i": values}))
    transform.save(tmp_path)
    asked = np.array([*range(-size - 3, size + 3), INT64.min, INT64.max], np.int64)
    lengths = np.ones((len(asked), 1), np.int32)
    raw = RawBatch(np.empty((len(asked), 0)), asked, lengths, np.empty(0, object), np.empty((len(asked), 0), np.int32))
    assert_same_bits(NativeTransform(tmp_path).apply(RawTensors.of(raw)), transform.apply(raw))


def test_texts_are_found_in_a_crowded_index(tmp_path: Path) -> None:
    known = [f"{number:x}" for number in range(70_000)]
    feature = categorical("t", "text", "t")
    transform = CompiledTransform([feature], Vocabularies.build({"t": TextValues.of(known)}))
    transform.save(tmp_path)
    raw = RawBatch.from_rows([feature], [{"t": text} for text in [*known[::3], "no", "70000"]])
    assert_same_bits(NativeTransform(tmp_path).apply(RawTensors.of(raw)), transform.apply(raw))


@pytest.fixture(scope="module")
def version() -> Version:
    return VersionStore(STORES / "golden").open("000001-00f043b8")


ARRAYS: dict[str, Any] = {
    "float_values": np.zeros((3, 2)),
    "int_values": np.arange(3),
    "int_lengths": np.array([[1, 2], [0, 0], [0, 0]], np.int32),
    "text_bytes": np.full(11, ord("a"), np.uint8),
    "text_sizes": np.array([4, 4, 1, 2], np.int32),
    "text_lengths": np.array([[1, 1, 2], [0, 0, 0], [0, 0, 0]], np.int32),
}


def refused(version: Version, change: dict[str, Any]) -> str:
    """What the native transform says of a batch that it must refuse."""
    with NativeTransform(version.path) as native:
        native.apply(RawTensors(**ARRAYS))
        with pytest.raises(TransformError) as found:
            native.apply(RawTensors(**ARRAYS | change))
    return str(found.value)


@pytest.mark.parametrize(
    "change",
    [
        {"int_values": np.arange(4)},
        {"int_lengths": np.array([[1, 3], [0, -1], [0, 0]], np.int32)},
        {"int_lengths": np.array([[2, 1], [0, 0], [0, 0]], np.int32)},
        {"text_lengths": np.array([[1, 3, 0], [0, 0, 0], [0, 0, 0]], np.int32)},
        {"text_lengths": np.array([[2, 2, 0], [0, 0, 0], [0, 0, 0]], np.int32)},
        {"float_values": np.zeros((3, 1))},
        {"int_lengths": np.array([[3], [0], [0]], np.int32)},
        {"text_lengths": np.array([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]], np.int32)},
    ],
)
def test_a_bad_batch_is_refused_in_the_same_words(version: Version, change: dict[str, Any]) -> None:
    arrays = ARRAYS | change
    texts = np.array([b"aaaa", b"aaaa", b"a", b"aa"], object)
    names = ("float_values", "int_values", "int_lengths", "text_lengths")
    with pytest.raises(TransformError) as expected:
        version.transform().apply(RawBatch(**{name: arrays[name] for name in names}, text_values=texts))
    assert refused(version, change) == str(expected.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"float_values": np.array([[0, 1], [2, -np.inf], [np.inf, 0]])},
            "float_values[1, 1] is -inf; expected a finite number, or NaN where the value is missing",
        ),
        (
            {"text_sizes": np.array([4, 4, 0, 3], np.int32)},
            "text_bytes has 11 bytes; expected as many as text_sizes add up to, 11, each of them at least 1",
        ),
        (
            {"text_sizes": np.array([4, 4, -1, 3], np.int32)},
            "text_bytes has 11 bytes; expected as many as text_sizes add up to, 10, each of them at least 1",
        ),
        (
            {"text_bytes": np.zeros(12, np.uint8)},
            "text_bytes has 12 bytes; expected as many as text_sizes add up to, 11, each of them at least 1",
        ),
        (
            {"text_sizes": np.array([4, 4, 3], np.int32)},
            "text_sizes has shape (3,); expected one dimension and as many values as text_lengths add up to, 4, none "
            "of them negative",
        ),
    ],
)
def test_what_a_raw_batch_cannot_hold_is_refused(version: Version, change: dict[str, Any], message: str) -> None:
    assert refused(version, change) == message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"int_values": np.zeros(3, np.int32)}, r"int_values is int32 \[3\]; expected int64 of 1 dimensions"),
        ({"text_sizes": np.zeros((1, 4), np.int32)}, r"text_sizes is int32 \[1, 4\]; expected int32 of 1 dimensions"),
        (
            {"text_lengths": np.zeros((2, 3), np.int32)},
            r"text_lengths has shape \(2, 3\); expected .* 1 rows",
        ),
    ],
)
def test_arrays_of_another_shape_are_refused(version: Version, change: dict[str, Any], message: str) -> None:
    tensors = RawTensors.of(RawBatch.from_rows(version.transform().features, [{}]))
    with pytest.raises(TransformError, match=message):
        replace(tensors, **change)


def test_a_closed_transform_refuses_batches(version: Version) -> None:
    native = NativeTransform(version.path)
    native.close()
    native.close()
    with pytest.raises(TransformError, match="the transform is closed"):
        native.apply()
