"""DLRM (Naumov et al. 2019, https://arxiv.org/abs/1906.00091): the dense part, as plain Keras code.

    dense [B, num_dense] -> bottom MLP -> [B, D] --+-----------------------------+
                                                   +-> dot interaction -> concat -> top MLP -> logits [B]
    embeddings [B, F*D]  -> F vectors of width D --+

Embedding tables are not in here: they may be spread over ranks, or lie in a server's cache.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tf_keras as keras

from rankhouse.kernels import tf_ops
from rankhouse.training.config import ModelConfig
from rankhouse.training.errors import ModelError
from rankhouse.training.models.dense_products import dense as dense_layer


class DLRM(keras.Model):  # type: ignore[misc]
    """Maps continuous features and pooled embeddings to logits.

    Initial weights depend only on the seed and the shapes. They are float32, whatever the layers compute in.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        num_dense: int,
        feature_dims: Mapping[str, int],
        seed: int,
        precision: str = "float32",
    ) -> None:
        """Builds the layers and their weights.

        Args:
            config: Widths of the hidden layers.
            num_dense: Number of continuous features, at least 0.
            feature_dims: Embedding width of each categorical feature, in the order of the embeddings; all the same.
            seed: Of the initial weights.
            precision: Keras' policy of the hidden layers: "float32", or "mixed_bfloat16" for products of bfloat16. Dot
                interactions and the logit are float32 either way.

        Raises:
            ModelError: The widths differ, or there are too few features to interact.
        """
        super().__init__(name="dlrm")
        self.num_dense = num_dense
        self.num_features = len(feature_dims)
        self.dim = _common_dim(feature_dims)
        if self.num_features + bool(num_dense) < 2:
            raise ModelError(
                f"DLRM takes dot products of features, but there are only {self.num_features} categorical and "
                f"{num_dense} continuous ones; expected at least 2 categorical ones, or 1 of each kind"
            )
        bottom = _mlp("bottom", (*config.bottom_mlp, self.dim), "relu", seed=seed, precision=precision)
        self.bottom_layers = bottom if num_dense else []
        self.top_layers = _mlp("top", (*config.top_mlp, 1), None, seed=seed + 500, precision=precision)
        # Keras' own calls make the weights.
        self([tf.zeros([1, num_dense]), tf.zeros([1, self.num_features * self.dim])], portable=True)

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor], *, portable: bool = False) -> tf.Tensor:
        """Scores a batch.

        Args:
            inputs: `dense` float32 [B, num_dense] and `embeddings` float32 [B, F*D].
            portable: Whether only TensorFlow's own operations may be used, so that the graph can be exported. They are
                several times as slow; the results are equal to rounding.

        Returns:
            Logits, float32 [B]. B may be 0.
        """
        dense, embeddings = inputs
        interact = portable_interaction if portable else tf_ops.dot_interaction
        dense = _through(self.bottom_layers, dense, portable=portable)
        bottom = tf.cast(dense, tf.float32) if self.num_dense else None
        features = interact(bottom, embeddings, dim=self.dim)
        return tf.squeeze(_through(self.top_layers, features, portable=portable), axis=1)

    def named_variables(self) -> dict[str, tf.Variable]:
        """Returns the weights under names that stay: `bottom_0/kernel`, `bottom_0/bias`, ..."""
        layers = (*self.bottom_layers, *self.top_layers)
        return {f"{layer.name}/{kind}": getattr(layer, kind) for layer in layers for kind in ("kernel", "bias")}


def _through(layers: Sequence[keras.layers.Dense], rows: tf.Tensor, *, portable: bool) -> tf.Tensor:
    for layer in layers:
        rows = layer(rows) if portable else dense_layer(layer, rows)
    return rows


def portable_interaction(bottom: tf.Tensor | None, embeddings: tf.Tensor, *, dim: int) -> tf.Tensor:
    """Does what `tf_ops.dot_interaction` does by TensorFlow's own operations, which have an ONNX form."""
    vectors = tf.reshape(embeddings, [-1, embeddings.shape[1] // dim, dim])
    if bottom is not None:
        vectors = tf.concat([bottom[:, tf.newaxis], vectors], axis=1)
    num_vectors = vectors.shape[1]
    pairs = np.flatnonzero(np.tril(np.ones([num_vectors, num_vectors], bool), k=-1))
    products = tf.matmul(vectors, vectors, transpose_b=True)
    chosen = tf.gather(tf.reshape(products, [-1, num_vectors * num_vectors]), pairs, axis=1)
    return chosen if bottom is None else tf.concat([bottom, chosen], axis=1)


def _mlp(
    name: str, widths: tuple[int, ...], last_activation: str | None, *, seed: int, precision: str
) -> list[keras.layers.Dense]:
    """Makes fully connected layers with ReLU between them; each draws its weights from a seed of its own.

    A layer without activation gives logits: it is float32, whatever the others compute in.
    """
    activations = [*["relu"] * (len(widths) - 1), last_activation]
    return [
        keras.layers.Dense(
            width,
            activation=activation,
            kernel_initializer=keras.initializers.GlorotNormal(seed=seed + i),
            dtype=precision if activation else "float32",
            name=f"{name}_{i}",
        )
        for i, (width, activation) in enumerate(zip(widths, activations, strict=True))
    ]


def _common_dim(feature_dims: Mapping[str, int]) -> int:
    dims = set(feature_dims.values())
    if len(dims) > 1:
        listed = ", ".join(f"{feature}: {dim}" for feature, dim in feature_dims.items())
        raise ModelError(
            f"DLRM takes dot products of embeddings, so all must have one width, but there are {sorted(dims)} "
            f"({listed}); set the same `dim` for every categorical feature in the feature spec and preprocess again"
        )
    return dims.pop() if dims else 1
