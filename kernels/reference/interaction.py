"""DLRM's dot interaction in plain NumPy: what the compiled one must equal to rounding. For tests.

Sums are made in float64 and rounded once. Letters in shapes: B samples, V vectors of width D, W outputs.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def dot_interaction(bottom: Floats | None, embeddings: Floats, *, dim: int, self_interaction: bool = False) -> Floats:
    """Bottom [B, D] and the products of all pairs of vectors; see `rankhouse.kernels.interaction.dot_interaction`."""
    vectors = _vectors(bottom, embeddings, dim)
    pairs = [
        (vectors[:, v] * vectors[:, u]).sum(axis=1)
        for v in range(vectors.shape[1])
        for u in range(v + self_interaction)
    ]
    products = np.stack(pairs, axis=1) if pairs else np.zeros((len(vectors), 0))
    out = products if bottom is None else np.concatenate([bottom, products], axis=1)
    return out.astype(np.float32)


def dot_interaction_gradient(
    bottom: Floats | None, embeddings: Floats, grad: Floats, *, dim: int, self_interaction: bool = False
) -> tuple[Floats | None, Floats]:
    """The gradients of bottom [B, D] and embeddings [B, F * D] from that of the output [B, W]."""
    vectors = _vectors(bottom, embeddings, dim)
    grads = np.zeros_like(vectors)
    num_copied = 0 if bottom is None else dim
    if bottom is not None:
        grads[:, 0] = grad[:, :dim]
    pair = num_copied
    for v in range(vectors.shape[1]):
        for u in range(v + self_interaction):
            weight = grad[:, pair, None].astype(np.float64)
            grads[:, v] += weight * vectors[:, u]
            grads[:, u] += weight * vectors[:, v]
            pair += 1
    flat = grads.reshape(len(grads), vectors.shape[1] * dim).astype(np.float32)
    return (None if bottom is None else flat[:, :dim]), flat[:, num_copied:]


def _vectors(bottom: Floats | None, embeddings: Floats, dim: int) -> NDArray[np.float64]:
    """[B, V, D]."""
    rows = embeddings if bottom is None else np.concatenate([bottom, embeddings], axis=1)
    return rows.astype(np.float64).reshape(len(rows), rows.shape[1] // dim, dim)
