import numpy as np
import pytest
import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.training.config import ModelConfig
from rankhouse.training.errors import ModelError
from rankhouse.training.models.dlrm import DLRM, portable_interaction

CONFIG = ModelConfig(bottom_mlp=(5,), top_mlp=(7, 3))
DIMS = {"shop": 4, "item": 4, "user": 4}


def make(*, num_dense: int = 2, seed: int = 1, precision: str = "float32") -> DLRM:
    return DLRM(CONFIG, num_dense=num_dense, feature_dims=DIMS, seed=seed, precision=precision)


def reference(weights: dict[str, np.ndarray], dense: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    """The paper's figure 1, sample by sample."""

    def mlp(name: str, values: np.ndarray, *, last_is_linear: bool) -> np.ndarray:
        num_layers = sum(key.startswith(name) for key in weights) // 2
        for i in range(num_layers):
            values = values @ weights[f"{name}_{i}/kernel"] + weights[f"{name}_{i}/bias"]
            if not (last_is_linear and i == num_layers - 1):
                values = np.maximum(values, 0)
        return values

    logits = []
    for sample, embedding in zip(dense, embeddings, strict=True):
        bottom = [mlp("bottom", sample, last_is_linear=False)] if len(sample) else []
        vectors = [*bottom, *embedding.reshape(len(DIMS), 4)]
        pairs = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
        logits.append(mlp("top", np.concatenate([*bottom, pairs]), last_is_linear=True)[0])
    return np.array(logits)


@pytest.mark.parametrize("num_dense", [0, 2])
def test_the_logits_are_those_of_the_paper(num_dense: int) -> None:
    rng = np.random.default_rng(1)
    dense = rng.normal(size=(6, num_dense)).astype(np.float32)
    embeddings = rng.normal(size=(6, 12)).astype(np.float32)
    model = make(num_dense=num_dense)
    weights = {name: variable.numpy() for name, variable in model.named_variables().items()}
    np.testing.assert_allclose(model((dense, embeddings)), reference(weights, dense, embeddings), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_dense", [0, 2])
def test_mixed_precision_rounds_products_but_neither_weights_nor_logits(num_dense: int) -> None:
    rng = np.random.default_rng(1)
    dense = tf.constant(rng.normal(size=(6, num_dense)), tf.float32)
    embeddings = tf.constant(rng.normal(size=(6, 12)), tf.float32)
    exact, mixed = make(num_dense=num_dense), make(num_dense=num_dense, precision="mixed_bfloat16")
    with tf.GradientTape() as tape:
        logits = mixed((dense, embeddings))
    assert logits.dtype == tf.float32
    for name, variable in mixed.named_variables().items():
        assert variable.dtype == tf.float32
        np.testing.assert_array_equal(variable, exact.named_variables()[name])
    np.testing.assert_allclose(logits, exact((dense, embeddings)), rtol=0.05, atol=0.05)
    assert not np.array_equal(logits, exact((dense, embeddings)))
    assert {gradient.dtype for gradient in tape.gradient(logits, mixed.trainable_variables)} == {tf.float32}


def test_an_empty_batch_has_no_logits() -> None:
    assert make()((np.zeros((0, 2), np.float32), np.zeros((0, 12), np.float32))).shape == (0,)


def test_interactions_are_the_lower_triangle_without_its_diagonal() -> None:
    bottom, embeddings = tf.constant([[1.0, 0.0]]), tf.constant([[2.0, 3.0, 4.0, 5.0]])
    for interact in (portable_interaction, tf_ops.dot_interaction):
        assert interact(bottom, embeddings, dim=2).numpy().tolist() == [[1.0, 0.0, 2.0, 4.0, 23.0]]
        assert interact(None, embeddings, dim=2).numpy().tolist() == [[23.0]]


@pytest.mark.parametrize("num_dense", [0, 2])
def test_the_portable_graph_scores_and_learns_alike(num_dense: int) -> None:
    rng = np.random.default_rng(2)
    dense = tf.constant(rng.normal(size=(50, num_dense)), tf.float32)
    embeddings = tf.constant(rng.normal(size=(50, 12)), tf.float32)
    model = make(num_dense=num_dense)
    results = []
    for portable in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(embeddings)
            logits = model((dense, embeddings), portable=portable)
        results.append([logits, *tape.gradient(logits, [embeddings, *model.trainable_variables])])
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_portable_graph_has_operations_of_tensorflow_alone() -> None:
    model = make()
    shapes = [tf.TensorSpec([None, 2]), tf.TensorSpec([None, 12])]
    for portable in (False, True):
        graph = tf.function(lambda *inputs, portable=portable: model(inputs, portable=portable))
        names = {operation.type for operation in graph.get_concrete_function(*shapes).graph.get_operations()}
        assert any(name.startswith("Rankhouse") for name in names) != portable


def test_initial_weights_depend_on_the_seed_alone() -> None:
    first, again, other = make(seed=1), make(seed=1), make(seed=2)
    for name, variable in first.named_variables().items():
        np.testing.assert_array_equal(variable, again.named_variables()[name])
        if name.endswith("kernel"):
            assert not np.array_equal(variable, other.named_variables()[name])


def test_every_weight_has_a_name() -> None:
    model = make()
    assert {v.ref() for v in model.named_variables().values()} == {v.ref() for v in model.trainable_variables}


def test_embeddings_of_two_widths_are_refused() -> None:
    with pytest.raises(ModelError, match=r"must have one width.*\[4, 8\].*item: 8.*set the same `dim`"):
        DLRM(CONFIG, num_dense=2, feature_dims={"shop": 4, "item": 8}, seed=1)


@pytest.mark.parametrize(("num_dense", "feature_dims"), [(0, {"shop": 4}), (3, {})])
def test_too_few_features_to_interact_are_refused(num_dense: int, feature_dims: dict[str, int]) -> None:
    with pytest.raises(ModelError, match="expected at least 2 categorical ones, or 1 of each kind"):
        DLRM(CONFIG, num_dense=num_dense, feature_dims=feature_dims, seed=1)
