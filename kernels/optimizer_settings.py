"""The settings of the optimizers: one class for each rule, with the names and defaults of tf_keras' legacy optimizers.

In the formulas w is a row, g its gradient, lr the learning rate, t the number of the step. The learning rate and the
step are not settings: every call is given them.

Momentum and Adam move rows even where they have no gradient, and so come in three kinds:

- "lazy": rows that a step does not touch stay where they are;
- "dense": every step moves all rows, as the definition says, at the cost of the whole table;
- "exact": as "dense" to rounding, at the cost of touched rows: a row makes the steps that it missed when it is next
  touched. Before rows are read, they must be caught up.

Weight decay acts on the rows that a step touches, in all kinds.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from rankhouse.kernels.errors import ArgumentError

Kind = Literal["lazy", "dense", "exact"]

KINDS = {"lazy": 0, "dense": 1, "exact": 2}


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """What all rules share; use one of the classes below.

    Attributes:
        weight_decay: How strongly touched rows are pulled to 0; 0 is not at all.
        decoupled: True: w -= lr * weight_decay * w before the step (Loshchilov and Hutter, ICLR 2019). False: L2, that
            is g += weight_decay * w.
    """

    rule: ClassVar[str]
    slot_names: ClassVar[tuple[str, ...]] = ()

    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        _check_at_least_0("weight_decay", self.weight_decay)
        kind = getattr(self, "kind", "lazy")
        if kind not in KINDS:
            raise ArgumentError(f"kind is {kind!r}: expected one of {', '.join(map(repr, KINDS))}")
        for name in ("epsilon", "initial_accumulator_value"):
            if hasattr(self, name):
                _check_at_least_0(name, getattr(self, name))
        for name in ("momentum", "beta_1", "beta_2", "rho"):
            if hasattr(self, name) and not 0 <= getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}: expected a number of at least 0 and below 1")

    @property
    def is_exact(self) -> bool:
        """Whether tables must be caught up before they are read."""
        return getattr(self, "kind", "lazy") == "exact"

    @property
    def is_dense(self) -> bool:
        """Whether every step moves all rows."""
        return getattr(self, "kind", "lazy") == "dense"

    def slot_shape(self, num_rows: int, dim: int) -> tuple[int, ...]:
        """Returns the shape of each slot of a table [num_rows, dim]."""
        return (num_rows, dim)

    def initial_value(self, slot: str) -> float:
        """Returns where all elements of a slot start."""
        return float(getattr(self, "initial_accumulator_value", 0.0)) if slot == "accumulator" else 0.0


@dataclass(frozen=True, kw_only=True)
class Sgd(OptimizerSettings):
    """Stochastic gradient descent: w -= lr g."""

    rule = "sgd"


@dataclass(frozen=True, kw_only=True)
class Momentum(OptimizerSettings):
    """Gradient descent with momentum: a = momentum a - lr g; w += a, or with nesterov w += momentum a - lr g.

    Attributes:
        momentum: How much of the last move is made again, at least 0 and below 1.
        nesterov: Looks ahead (Sutskever et al., ICML 2013).
        kind: What happens to the rows that a step does not touch; see the module.
    """

    rule = "momentum"
    slot_names = ("momentum",)

    momentum: float = 0.9
    nesterov: bool = False
    kind: Kind = "lazy"


@dataclass(frozen=True, kw_only=True)
class Adagrad(OptimizerSettings):
    """Adagrad (Duchi et al., JMLR 2011): a += g^2; w -= lr g / (sqrt(a) + epsilon).

    Attributes:
        initial_accumulator_value: Where accumulators start, at least 0.
        epsilon: Keeps the divisor away from 0.
    """

    rule = "adagrad"
    slot_names = ("accumulator",)

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7


@dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(OptimizerSettings):
    """Adagrad with one number for each row, as in FBGEMM: a += mean(g^2); w -= lr g / (sqrt(a) + epsilon).

    Attributes:
        initial_accumulator_value: Where accumulators start, at least 0.
        epsilon: Keeps the divisor away from 0.
    """

    rule = "rowwise_adagrad"
    slot_names = ("accumulator",)

    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7

    def slot_shape(self, num_rows: int, dim: int) -> tuple[int, ...]:
        """Returns [num_rows]."""
        return (num_rows,)


@dataclass(frozen=True, kw_only=True)
class Adam(OptimizerSettings):
    """Adam (Kingma and Ba, ICLR 2015), with epsilon outside as in TensorFlow.

    a = beta_1 a + (1 - beta_1) g; b = beta_2 b + (1 - beta_2) g^2;
    w -= lr sqrt(1 - beta_2^t) / (1 - beta_1^t) a / (sqrt(b) + epsilon).

    Attributes:
        beta_1: How slowly the mean of gradients changes, at least 0 and below 1.
        beta_2: How slowly the mean of their squares changes, at least 0 and below 1.
        epsilon: Keeps the divisor away from 0; above 0 in the dense and exact kinds.
        kind: What happens to the rows that a step does not touch; see the module. "exact" needs beta_1^2 < beta_2.
    """

    rule = "adam"
    slot_names = ("m", "v")

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    kind: Kind = "lazy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "lazy" and self.epsilon == 0:
            raise ArgumentError(
                f"epsilon is 0: the {self.kind} kind needs one above 0, or rows without gradients be NaN"
            )
        if self.kind == "exact" and self.beta_1**2 >= self.beta_2:
            raise ArgumentError(
                f"beta_1 is {self.beta_1} and beta_2 {self.beta_2}: the exact kind needs beta_1^2 < beta_2; use another"
            )


@dataclass(frozen=True, kw_only=True)
class Ftrl(OptimizerSettings):
    """Follow the regularized leader (McMahan et al., KDD 2013), as TensorFlow's ApplyFtrlV2 has it.

    Attributes:
        learning_rate_power: At most 0; -0.5 is the paper's, and the fastest.
        initial_accumulator_value: Where accumulators start, at least 0.
        l1_regularization_strength: At least 0.
        l2_regularization_strength: At least 0.
        l2_shrinkage_regularization_strength: At least 0; unlike L2 it acts on the gradient alone.
        beta: At least 0; the paper's.
    """

    rule = "ftrl"
    slot_names = ("accumulator", "linear")

    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -math.inf < self.learning_rate_power <= 0:
            raise ArgumentError(f"learning_rate_power is {self.learning_rate_power}: expected a number of at most 0")
        for name in ("l1", "l2", "l2_shrinkage"):
            _check_at_least_0(f"{name}_regularization_strength", getattr(self, f"{name}_regularization_strength"))
        _check_at_least_0("beta", self.beta)


@dataclass(frozen=True, kw_only=True)
class Rmsprop(OptimizerSettings):
    """RMSprop (Tieleman and Hinton, 2012): a = rho a + (1 - rho) g^2; w -= lr g / (sqrt(a) + epsilon).

    Attributes:
        rho: How slowly the mean of squares changes, at least 0 and below 1.
        epsilon: Keeps the divisor away from 0.
    """

    rule = "rmsprop"
    slot_names = ("rms",)

    rho: float = 0.9
    epsilon: float = 1e-7


@dataclass(frozen=True, kw_only=True)
class Adadelta(OptimizerSettings):
    """Adadelta (Zeiler, 2012).

    a = rho a + (1 - rho) g^2; u = sqrt(b + epsilon) / sqrt(a + epsilon) g; b = rho b + (1 - rho) u^2; w -= lr u.

    Attributes:
        rho: How slowly the means of squares change, at least 0 and below 1.
        epsilon: Keeps the divisor away from 0, and starts the moves.
    """

    rule = "adadelta"
    slot_names = ("accum_grad", "accum_var")

    rho: float = 0.95
    epsilon: float = 1e-7


@dataclass(frozen=True, kw_only=True)
class Adamax(OptimizerSettings):
    """Adamax (Kingma and Ba, ICLR 2015, section 7.1), lazy.

    a = beta_1 a + (1 - beta_1) g; b = max(beta_2 b, |g|); w -= lr / (1 - beta_1^t) a / (b + epsilon).

    Attributes:
        beta_1: How slowly the mean of gradients changes, at least 0 and below 1.
        beta_2: How slowly the largest gradient is forgotten, at least 0 and below 1.
        epsilon: Keeps the divisor away from 0.
    """

    rule = "adamax"
    slot_names = ("m", "v")

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7


# The classes by the names of their rules.
RULES: dict[str, type[OptimizerSettings]] = {
    rule.rule: rule for rule in (Sgd, Momentum, Adagrad, RowwiseAdagrad, Adam, Ftrl, Rmsprop, Adadelta, Adamax)
}


def _check_at_least_0(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ArgumentError(f"{name} is {value}: expected a number of at least 0")
