"""Which variables only this rank holds, as a tape, an optimizer or a broadcast must know.

`DistributedEmbedding` notes them; all others are meant to be the same on every rank.
"""

from collections.abc import Sequence

import tensorflow as tf

from rankhouse.training.ranks import Ranks

_MARK = "rankhouse_owned"
# By name, the shapes of the variables that were marked.
_owned_shapes: dict[str, set[tuple[int | None, ...]]] = {}


def mark_owned(variable: tf.Variable) -> None:
    """Notes that only this rank holds a variable."""
    setattr(variable, _MARK, True)
    _owned_shapes.setdefault(_name(variable), set()).add(tuple(variable.shape))


def is_owned(variable: tf.Variable) -> bool:
    """Whether only this rank holds a variable: one that was marked, or what a Keras optimizer keeps beside it.

    A Keras optimizer says only by their names to which variable its slots belong: "<optimizer>/<slot>/<variable>", or
    "<optimizer>/<variable>/<slot>" for legacy ones. Slots are not trainable and have their variable's shape, so neither
    the kernel of a dense layer that is named like a table, "tower/user/kernel", nor what a normalization of this name
    keeps, "tower/user/moving_mean", is one.
    """
    if hasattr(variable, _MARK):
        return True
    if variable.trainable:
        return False
    parts, shape = _name(variable).split("/"), tuple(variable.shape)
    references = "/".join(parts[2:]), "/".join(parts[1:-1])
    return any(shape in _owned_shapes.get(reference, ()) for reference in references)


def broadcast_variables(variables: Sequence[tf.Variable], *, ranks: Ranks, root: int = 0) -> None:
    """Gives the variables that every rank holds the root's values; eagerly or in a `tf.function`.

    Args:
        variables: Any variables, of a model or an optimizer; owned ones stay as they are. The others stand in the same
            order on all ranks.
        ranks: Who trains together.
        root: The rank whose values all get.
    """
    shared = [variable for variable in variables if not is_owned(variable)]
    for number, variable in enumerate(shared):
        if ranks.size > 1:
            variable.assign(ranks.broadcast(variable, name=f"broadcast_{number}", root=root))


def _name(variable: tf.Variable) -> str:
    return str(variable.name).rsplit(":", 1)[0]
