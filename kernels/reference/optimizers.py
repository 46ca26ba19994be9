"""The optimizers in plain NumPy: what the compiled ones must equal. Slow and obvious; for tests.

The signatures are those of `rankhouse.kernels.optimizers`. A step is made in float64, and rounded once; rows that are
not float32 are then rounded stochastically. The exact kinds make the steps that a row has missed one by one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import optimizer_settings as rules
from rankhouse.kernels.bags import SparseGradient
from rankhouse.kernels.optimizer_settings import OptimizerSettings
from rankhouse.kernels.optimizers import Slots
from rankhouse.kernels.reference.rows import dequantize_rows, round_stochastically
from rankhouse.kernels.rows import row_type_of

Array = NDArray[np.float64]


def apply(
    table: NDArray[Any],
    slots: Slots,
    gradient: SparseGradient,
    settings: OptimizerSettings,
    *,
    learning_rate: float,
    step: int = 1,
    learning_rates: NDArray[np.float32] | None = None,
    gradient_scale: float = 1.0,
) -> None:
    """Makes one step of a table, in place; see `rankhouse.kernels.optimizers.apply`."""
    if slots.last_steps is not None:
        _make_missed_steps(table, slots, settings, gradient.ids, learning_rate, step, learning_rates, until=step - 1)
        slots.last_steps[gradient.ids] = step
    moved, wide = gradient.ids, dequantize_rows(table)
    if getattr(settings, "kind", "lazy") == "dense":
        moved = np.arange(len(table))
        others = np.setdiff1d(moved, gradient.ids)
        _step(wide, slots, settings, others, np.zeros((len(others), table.shape[1])), learning_rate, step)
    w, lr = wide[gradient.ids].astype(np.float64), float(learning_rate)
    g = gradient.rows * float(gradient_scale)
    if settings.decoupled:
        wide[gradient.ids] = w - lr * settings.weight_decay * w
    else:
        g = g + settings.weight_decay * w
    _step(wide, slots, settings, gradient.ids, g, lr, step)
    table[moved] = round_stochastically(wide[moved], row_type_of(table), step)


def catch_up(
    table: NDArray[Any],
    slots: Slots,
    settings: OptimizerSettings,
    *,
    learning_rate: float,
    step: int,
    ids: NDArray[np.int64] | None = None,
    learning_rates: NDArray[np.float32] | None = None,
) -> None:
    """Makes the steps that rows have missed, in place; see `rankhouse.kernels.optimizers.catch_up`."""
    rows = np.arange(len(table)) if ids is None else ids
    _make_missed_steps(table, slots, settings, rows, learning_rate, step, learning_rates, until=step)


def squared_norm(gradients: Sequence[SparseGradient]) -> float:
    """Returns the sum of the squares of all gradients' elements."""
    return float(sum(np.sum(np.square(gradient.rows, dtype=np.float64)) for gradient in gradients))


def _make_missed_steps(
    table: NDArray[Any],
    slots: Slots,
    settings: OptimizerSettings,
    rows: NDArray[np.int64],
    learning_rate: float,
    step: int,
    learning_rates: NDArray[np.float32] | None,
    *,
    until: int,
) -> None:
    if slots.last_steps is None:
        return
    wide = dequantize_rows(table)
    for row in rows.tolist():
        for missed in range(int(slots.last_steps[row]) + 1, until + 1):
            rate = learning_rate if learning_rates is None or missed == step else float(learning_rates[missed - 1])
            _step(wide, slots, settings, np.array([row]), np.zeros((1, table.shape[1])), rate, missed)
        slots.last_steps[row] = max(slots.last_steps[row], until)
    table[rows] = round_stochastically(wide[rows], row_type_of(table), until)


def _step(
    table: NDArray[np.float32],
    slots: Slots,
    settings: OptimizerSettings,
    rows: NDArray[np.int64],
    g: Array,
    lr: float,
    t: int,
) -> None:
    w = table[rows].astype(np.float64)
    old = [slot[rows].astype(np.float64) for slot in slots.arrays]
    w, *new = _moved(settings, w, g, lr, t, *old)
    table[rows] = w
    for slot, values in zip(slots.arrays, new, strict=True):
        slot[rows] = values


def _moved(s: OptimizerSettings, w: Array, g: Array, lr: float, t: int, *slots: Array) -> tuple[Array, ...]:
    """Returns w and the slots after a step."""
    a, b = (*slots, np.zeros(()), np.zeros(()))[:2]
    match s:
        case rules.Sgd():
            return (w - lr * g,)
        case rules.Momentum():
            a = s.momentum * a - lr * g
            return (w + s.momentum * a - lr * g if s.nesterov else w + a), a
        case rules.Adagrad():
            a = a + g**2
            return w - lr * g / (np.sqrt(a) + s.epsilon), a
        case rules.RowwiseAdagrad():
            a = a + np.mean(g**2, axis=1)
            return w - lr * g / (np.sqrt(a) + s.epsilon)[:, np.newaxis], a
        case rules.Adam():
            a = s.beta_1 * a + (1 - s.beta_1) * g
            b = s.beta_2 * b + (1 - s.beta_2) * g**2
            size = lr * np.sqrt(1 - s.beta_2**t) / (1 - s.beta_1**t)
            return w - size * a / (np.sqrt(b) + s.epsilon), a, b
        case rules.Ftrl():
            return _ftrl(s, w, g, lr, a, b)
        case rules.Rmsprop():
            a = s.rho * a + (1 - s.rho) * g**2
            return w - lr * g / (np.sqrt(a) + s.epsilon), a
        case rules.Adadelta():
            a = s.rho * a + (1 - s.rho) * g**2
            u = np.sqrt(b + s.epsilon) / np.sqrt(a + s.epsilon) * g
            return w - lr * u, a, s.rho * b + (1 - s.rho) * u**2
        case rules.Adamax():
            a = s.beta_1 * a + (1 - s.beta_1) * g
            b = np.maximum(s.beta_2 * b, np.abs(g))
            return w - lr / (1 - s.beta_1**t) * a / (b + s.epsilon), a, b
    raise AssertionError(s)


def _ftrl(s: rules.Ftrl, w: Array, g: Array, lr: float, a: Array, b: Array) -> tuple[Array, ...]:
    accumulator = a + g**2
    power, old_power = accumulator**-s.learning_rate_power, a**-s.learning_rate_power
    b = b + g + 2 * s.l2_shrinkage_regularization_strength * w - (power - old_power) / lr * w
    divisor = power / lr + 2 * s.l2_regularization_strength + s.beta / lr
    l1 = s.l1_regularization_strength
    return np.where(np.abs(b) > l1, (np.sign(b) * l1 - b) / divisor, 0.0), accumulator, b
