"""Optimizers on the touched rows of variables, in place."""

import tensorflow as tf

from rankhouse.kernels.tf_ops.native import check_variable, ops


def apply_sgd(
    variable: tf.Variable, gradient: tf.IndexedSlices, learning_rate: float | tf.Tensor
) -> tf.Operation | None:
    """Updates the touched rows of a variable [R, D] in place: row -= learning_rate * gradient.

    Returns:
        The operation, in graphs; None where it ran at once.

    Raises:
        ArgumentError: The variable is not float32 [R, D] of a known shape on the CPU.
        tf.errors.InvalidArgumentError: An id is not a row, or ids do not increase; nothing is changed.
    """
    check_variable(variable, "variable")
    return ops().rankhouse_apply_sgd(
        variable=variable.handle,
        ids=tf.cast(gradient.indices, tf.int64),
        gradient=gradient.values,
        learning_rate=tf.cast(learning_rate, tf.float32),
    )


def apply_adagrad(
    variable: tf.Variable,
    accumulator: tf.Variable,
    gradient: tf.IndexedSlices,
    learning_rate: float | tf.Tensor,
    epsilon: float = 1e-7,
) -> tf.Operation | None:
    """Updates the touched rows of a variable and its accumulator, both [R, D], in place.

    accumulator += gradient^2; row -= learning_rate * gradient / (sqrt(accumulator) + epsilon), as tf_keras' legacy
    Adagrad does.

    Returns:
        The operation, in graphs; None where it ran at once.

    Raises:
        ArgumentError: A variable is not float32 [R, D] of a known shape on the CPU.
        tf.errors.InvalidArgumentError: An id is not a row, or ids do not increase; nothing is changed.
    """
    check_variable(variable, "variable")
    check_variable(accumulator, "accumulator")
    return ops().rankhouse_apply_adagrad(
        variable=variable.handle,
        accumulator=accumulator.handle,
        ids=tf.cast(gradient.indices, tf.int64),
        gradient=gradient.values,
        learning_rate=tf.cast(learning_rate, tf.float32),
        epsilon=epsilon,
    )
