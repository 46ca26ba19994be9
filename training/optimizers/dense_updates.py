"""The optimizers on whole variables, by TensorFlow's own fused operations where it has them.

The formulas are those of `rankhouse.kernels.optimizer_settings`. A dense gradient touches every element, so the kinds
of momentum and Adam do not differ here, and weight decay acts on all of the variable.
"""

from collections.abc import Sequence

import tensorflow as tf

from rankhouse.kernels.optimizer_settings import (
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    Momentum,
    OptimizerSettings,
    Rmsprop,
    RowwiseAdagrad,
    Sgd,
)


def update_dense(
    variable: tf.Variable,
    slots: Sequence[tf.Variable],
    gradient: tf.Tensor,
    settings: OptimizerSettings,
    *,
    learning_rate: tf.Tensor,
    step: tf.Tensor,
    gradient_scale: tf.Tensor | None = None,
) -> None:
    """Makes one step of a variable, in place.

    Args:
        variable: float32 of any shape.
        slots: Of the variable's shape, in the order of the settings' slot_names. Row-wise Adagrad, too, has one number
            for each element here: what is not a table has no rows that stand for something, and is small.
        gradient: Of the variable's shape.
        settings: The rule and its settings.
        learning_rate: float32 [].
        step: int64 [], the number of this step, from 1.
        gradient_scale: float32 [], what the gradient is multiplied with first.
    """
    if gradient_scale is not None:
        gradient = gradient * gradient_scale
    if settings.weight_decay:
        decay = settings.weight_decay * variable
        if settings.decoupled:
            variable.assign_sub(learning_rate * decay)
        else:
            gradient = gradient + decay
    apply = {"var": variable.handle, "lr": learning_rate, "grad": gradient}
    handles = [slot.handle for slot in slots]
    raw = tf.raw_ops
    match settings:
        case Sgd():
            raw.ResourceApplyGradientDescent(var=variable.handle, alpha=learning_rate, delta=gradient)
        case Momentum(momentum=momentum, nesterov=nesterov):
            raw.ResourceApplyKerasMomentum(**apply, accum=handles[0], momentum=momentum, use_nesterov=nesterov)
        case Adagrad(epsilon=epsilon) | RowwiseAdagrad(epsilon=epsilon):
            raw.ResourceApplyAdagradV2(**apply, accum=handles[0], epsilon=epsilon)
        case Adam(beta_1=beta_1, beta_2=beta_2, epsilon=epsilon):
            powers = {"beta1_power": _power(beta_1, step), "beta2_power": _power(beta_2, step)}
            betas = {"beta1": beta_1, "beta2": beta_2, **powers}
            raw.ResourceApplyAdam(**apply, m=handles[0], v=handles[1], epsilon=epsilon, **betas)
        case Ftrl():
            raw.ResourceApplyFtrlV2(
                **apply,
                accum=handles[0],
                linear=handles[1],
                l1=settings.l1_regularization_strength,
                l2=settings.l2_regularization_strength + settings.beta / (2 * learning_rate),
                l2_shrinkage=settings.l2_shrinkage_regularization_strength,
                lr_power=settings.learning_rate_power,
            )
        case Rmsprop(rho=rho, epsilon=epsilon):
            # TensorFlow's operation has epsilon under the root, unlike Keras.
            mean = slots[0].assign(rho * slots[0] + (1 - rho) * gradient**2)
            variable.assign_sub(learning_rate * gradient / (tf.sqrt(mean) + epsilon))
        case Adadelta(rho=rho, epsilon=epsilon):
            raw.ResourceApplyAdadelta(**apply, accum=handles[0], accum_update=handles[1], rho=rho, epsilon=epsilon)
        case Adamax(beta_1=beta_1, beta_2=beta_2, epsilon=epsilon):
            betas = {"beta1": beta_1, "beta2": beta_2, "beta1_power": _power(beta_1, step)}
            raw.ResourceApplyAdaMax(**apply, m=handles[0], v=handles[1], epsilon=epsilon, **betas)
        case _:
            raise AssertionError(settings)


def _power(beta: float, step: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.pow(tf.constant(beta, tf.float64), tf.cast(step, tf.float64)), tf.float32)
