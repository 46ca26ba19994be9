"""DLRM's dot interaction on NumPy arrays, over the compiled library. Any thread may call these functions."""

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.executor import Threads, executor_of

Floats = NDArray[np.float32]


def dot_interaction(
    bottom: Floats | None,
    embeddings: Floats,
    *,
    dim: int,
    self_interaction: bool = False,
    num_threads: Threads = None,
) -> Floats:
    """Takes the dot products of all pairs of a sample's vectors (Naumov et al. 2019, https://arxiv.org/abs/1906.00091).

    Args:
        bottom: float32 [B, D], the vector of the dense features, which comes first; or None.
        embeddings: float32 [B, F * D].
        dim: D.
        self_interaction: Whether a vector's product with itself counts.
        num_threads: Most threads to use; None: as many as there are processors.

    Returns:
        float32 [B, W]: bottom (where it is given), then the products of the pairs (1,0), (2,0), (2,1), (3,0), ...: the
        lower triangle by rows, with its diagonal where self_interaction is set.

    Raises:
        ArgumentError: An array has another dtype, shape or layout than said here, or dim is below 1.
    """
    interaction, width = _interaction(bottom, embeddings, dim, self_interaction)
    out = np.empty((len(embeddings), width), np.float32)
    library.check(
        library.load().rh_dot_interaction(
            interaction, _address(bottom), _address(embeddings), _address(out), executor_of(num_threads)
        )
    )
    return out


def dot_interaction_gradient(
    bottom: Floats | None,
    embeddings: Floats,
    grad: Floats,
    *,
    dim: int,
    self_interaction: bool = False,
    num_threads: Threads = None,
) -> tuple[Floats | None, Floats]:
    """Gives the gradients of bottom [B, D] (None where there is none) and embeddings [B, F * D].

    Args:
        bottom: As in `dot_interaction`, and so are the others.
        embeddings: As in `dot_interaction`.
        grad: float32 [B, W], the gradient of what `dot_interaction` returned.
        dim: As in `dot_interaction`.
        self_interaction: As in `dot_interaction`.
        num_threads: As in `dot_interaction`.

    Raises:
        ArgumentError: As in `dot_interaction`.
    """
    interaction, width = _interaction(bottom, embeddings, dim, self_interaction)
    _check(grad, "grad", (len(embeddings), width))
    bottom_grad = None if bottom is None else np.empty_like(bottom)
    embeddings_grad = np.empty_like(embeddings)
    library.check(
        library.load().rh_dot_interaction_gradient(
            *(interaction, _address(bottom), _address(embeddings), _address(grad)),
            *(_address(bottom_grad), _address(embeddings_grad), executor_of(num_threads)),
        )
    )
    return bottom_grad, embeddings_grad


def _interaction(
    bottom: Floats | None, embeddings: Floats, dim: int, self_interaction: bool
) -> tuple[library.Interaction, int]:
    if dim < 1:
        raise ArgumentError(f"dim is {dim}: expected at least 1")
    if not isinstance(embeddings, np.ndarray) or embeddings.ndim != 2 or embeddings.shape[1] % dim:
        raise ArgumentError(f"embeddings have shape {np.shape(embeddings)}: expected [B, F * {dim}]")
    _check(embeddings, "embeddings", embeddings.shape)
    if bottom is not None:
        _check(bottom, "bottom", (len(embeddings), dim))
    interaction = library.Interaction(
        batch_size=len(embeddings),
        dim=dim,
        num_embeddings=embeddings.shape[1] // dim,
        has_bottom=bottom is not None,
        self_interaction=self_interaction,
    )
    width = library.load().rh_dot_interaction_width(interaction)
    if width < 0:
        raise ArgumentError(f"embeddings have shape {embeddings.shape}: expected at most 2^15 vectors of width {dim}")
    return interaction, width


def _check(array: Floats, name: str, shape: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != shape:
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ArgumentError(f"{name} is {found}: expected float32 of shape {shape}")
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ArgumentError(f"{name} is not contiguous: pass np.ascontiguousarray({name})")


def _address(array: Floats | None) -> int | None:
    return None if array is None else array.ctypes.data
