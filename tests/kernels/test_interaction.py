from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.interaction import dot_interaction, dot_interaction_gradient
from rankhouse.kernels.reference import interaction as reference

# Around the widths of registers, blocks of rows (4), of columns (64) and of elements (128).
DIMS = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 100, 128, 129, 260]
NUM_EMBEDDINGS = [0, 1, 2, 3, 4, 7, 8, 9, 16, 17, 26, 31, 64, 65, 70, 130]


def vectors(
    batch_size: int, num_embeddings: int, dim: int, *, with_bottom: bool
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32]]:
    rng = np.random.default_rng(dim)
    bottom = rng.standard_normal((batch_size, dim), np.float32) if with_bottom else None
    return bottom, rng.standard_normal((batch_size, num_embeddings * dim), np.float32)


def check(batch_size: int, num_embeddings: int, dim: int, *, with_bottom: bool, self_interaction: bool) -> None:
    bottom, embeddings = vectors(batch_size, num_embeddings, dim, with_bottom=with_bottom)
    options: dict[str, Any] = {"dim": dim, "self_interaction": self_interaction}
    out = dot_interaction(bottom, embeddings, **options)
    expected = reference.dot_interaction(bottom, embeddings, **options)
    assert out.shape == expected.shape
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5 * dim**0.5)
    grad = np.random.default_rng(0).standard_normal(out.shape, np.float32)
    grads = dot_interaction_gradient(bottom, embeddings, grad, **options)
    expected_grads = reference.dot_interaction_gradient(bottom, embeddings, grad, **options)
    assert (grads[0] is None) == (expected_grads[0] is None) == (not with_bottom)
    for found, truth in zip(grads, expected_grads, strict=True):
        if found is not None and truth is not None:
            np.testing.assert_allclose(found, truth, rtol=1e-5, atol=1e-5 * (num_embeddings + 1) ** 0.5)


@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("with_bottom", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_any_width(dim: int, with_bottom: bool, self_interaction: bool) -> None:
    check(3, 26, dim, with_bottom=with_bottom, self_interaction=self_interaction)


@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("with_bottom", [False, True])
@pytest.mark.parametrize("num_embeddings", NUM_EMBEDDINGS)
def test_any_number_of_vectors(num_embeddings: int, with_bottom: bool, self_interaction: bool) -> None:
    for dim in (1, 5, 16, 140):
        check(2, num_embeddings, dim, with_bottom=with_bottom, self_interaction=self_interaction)


@pytest.mark.parametrize("batch_size", [0, 1, 5000])
def test_any_batch_size(batch_size: int) -> None:
    check(batch_size, 5, 8, with_bottom=True, self_interaction=False)


@pytest.mark.parametrize("num_threads", [2, 3, 8])
def test_threads_change_no_bit(num_threads: int) -> None:
    bottom, embeddings = vectors(4000, 26, 16, with_bottom=True)
    one, several = (dot_interaction(bottom, embeddings, dim=16, num_threads=n) for n in (1, num_threads))
    assert one.tobytes() == several.tobytes()
    grads = [dot_interaction_gradient(bottom, embeddings, one, dim=16, num_threads=n) for n in (1, num_threads)]
    for found, again in zip(*grads, strict=True):
        assert found is not None
        assert again is not None
        assert found.tobytes() == again.tobytes()


def test_samples_do_not_touch_each_other() -> None:
    # What is not a number in one sample stays there, in whole registers too.
    bottom, embeddings = vectors(9, 26, 16, with_bottom=True)
    embeddings[4] = np.nan
    out = dot_interaction(bottom, embeddings, dim=16)
    assert np.isnan(out[4, 16:]).all()
    assert np.isfinite(np.delete(out, 4, axis=0)).all()
    embeddings_grad = dot_interaction_gradient(bottom, embeddings, np.ones_like(out), dim=16)[1]
    assert np.isfinite(np.delete(embeddings_grad, 4, axis=0)).all()


def test_a_bad_vector_touches_its_own_pairs_alone() -> None:
    embeddings = np.ones((1, 3 * 4), np.float32)
    embeddings[0, 8:] = np.inf
    assert dot_interaction(None, embeddings, dim=4).tolist() == [[4.0, np.inf, np.inf]]


def width_of(**fields: int) -> int:
    return int(library.load().rh_dot_interaction_width(library.Interaction(**fields)))


def test_widths() -> None:
    assert width_of(dim=16, num_embeddings=26, has_bottom=1) == 16 + 351
    assert width_of(dim=16, num_embeddings=26, has_bottom=1, self_interaction=1) == 16 + 378
    assert width_of(dim=16, num_embeddings=27) == 351
    assert width_of(dim=3) == 0
    assert width_of(dim=3, has_bottom=1) == 3
    assert library.load().rh_dot_interaction_width(None) == -1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"batch_size": -1}, "a batch size of 0"),
        ({"batch_size": 2**31}, "a batch size of 0"),
        ({"dim": 0}, "a dim of 1"),
        ({"dim": 2**31}, "a dim of 1"),
        ({"num_embeddings": -1}, r"0 to 2\^15 embeddings"),
        ({"num_embeddings": 2**15 + 1}, r"0 to 2\^15 embeddings"),
        ({"has_bottom": 2}, "has_bottom 0 or 1"),
        ({"self_interaction": -1}, "self_interaction 0 or 1"),
    ],
)
def test_bad_fields_are_named(fields: dict[str, int], expected: str) -> None:
    interaction = library.Interaction(**{"batch_size": 1, "dim": 4, "num_embeddings": 2, **fields})
    kernels = library.load()
    assert kernels.rh_dot_interaction_width(interaction) == -1
    with pytest.raises(ArgumentError, match=f"an interaction of .*: expected {expected}"):
        library.check(kernels.rh_dot_interaction(interaction, None, None, None, None))
    with pytest.raises(ArgumentError, match=f"an interaction of .*: expected {expected}"):
        library.check(kernels.rh_dot_interaction_gradient(interaction, None, None, None, None, None, None))


def test_missing_arrays_are_named() -> None:
    kernels = library.load()
    some = np.zeros(100, np.float32).ctypes.data
    interaction = library.Interaction(batch_size=1, dim=4, num_embeddings=2, has_bottom=1)
    for arguments, message in [
        ((None, some, some), "bottom or its gradient is NULL, but has_bottom is 1"),
        ((some, None, some), "embeddings or their gradient is NULL"),
        ((some, some, None), "out or its gradient is NULL"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            library.check(kernels.rh_dot_interaction(interaction, *arguments, None))
    with pytest.raises(ArgumentError, match="embeddings or their gradient is NULL"):
        library.check(kernels.rh_dot_interaction_gradient(interaction, some, some, some, some, None, None))
    with pytest.raises(ArgumentError, match="interaction is NULL"):
        library.check(kernels.rh_dot_interaction(None, some, some, some, None))


def test_python_refuses_arrays_that_do_not_fit() -> None:
    bottom, embeddings = vectors(3, 5, 4, with_bottom=True)
    with pytest.raises(ArgumentError, match="dim is 0"):
        dot_interaction(bottom, embeddings, dim=0)
    with pytest.raises(ArgumentError, match=r"embeddings have shape \(3, 20\): expected \[B, F \* 3\]"):
        dot_interaction(bottom, embeddings, dim=3)
    with pytest.raises(ArgumentError, match=r"bottom is float32 of shape \(3, 4\): expected float32 of shape \(3, 5\)"):
        dot_interaction(bottom, embeddings, dim=5)
    with pytest.raises(ArgumentError, match="embeddings is float64"):
        dot_interaction(bottom, embeddings.astype(np.float64), dim=4)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="embeddings is not contiguous"):
        dot_interaction(None, embeddings[:, ::5], dim=4)
    with pytest.raises(ArgumentError, match=r"grad is float32 of shape \(3, 2\): expected float32 of shape \(3, 19\)"):
        dot_interaction_gradient(bottom, embeddings, np.zeros((3, 2), np.float32), dim=4)
    with pytest.raises(ArgumentError, match=r"at most 2\^15 vectors"):
        dot_interaction(None, np.zeros((0, 2**16), np.float32), dim=1)
