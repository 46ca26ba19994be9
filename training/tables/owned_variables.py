"""Which variables only this rank holds, as a tape, an optimizer or a broadcast must know.

`DistributedEmbedding` notes them; all others are meant to be the same on every rank.
"""

import gc
import weakref
from collections.abc import Iterable, Sequence

import tensorflow as tf

from rankhouse.training.errors import EmbeddingError
from rankhouse.training.ranks import Ranks

_MARK, _CUT = "rankhouse_owned", "rankhouse_cut_table"
_Key = tuple[str, tuple[int | None, ...]]
# The marked variables by name and shape.
_marked: dict[_Key, list[weakref.ref[tf.Variable]]] = {}


def mark_owned(variable: tf.Variable, *, cut_table: str | None = None) -> None:
    """Notes that only this rank holds a variable.

    Args:
        variable: The variable.
        cut_table: A table of which no rank has more than a part, here or on another rank; see `cut_table_of`.
    """
    _mark(variable, is_owned=True)
    if cut_table is not None:
        setattr(variable, _CUT, cut_table)


def mark_shared(variable: tf.Variable) -> None:
    """Notes that every rank holds a table's variable: its slots are not those of another one of its name."""
    _mark(variable, is_owned=False)


def mark_slot(slot: tf.Variable, variable: tf.Variable) -> None:
    """Notes that a slot of an optimizer lies where its variable does."""
    setattr(slot, _MARK, is_owned(variable))


def is_owned(variable: tf.Variable) -> bool:
    """Whether only this rank holds a variable: one that was marked, or what a Keras optimizer keeps beside it.

    A Keras optimizer says only by their names to which variable its slots belong: "<optimizer>/<slot>/<variable>", or
    "<optimizer>/<variable>/<slot>" for legacy ones. Slots are not trainable and have their variable's shape, so neither
    the kernel of a dense layer that is named like a table, "tower/user/kernel", nor what a normalization of this name
    keeps, "tower/user/moving_mean", is one. Those of a `distributed_optimizer` are marked.

    Raises:
        EmbeddingError: It is a slot of one of two tables of one name, of which only one is this rank's alone.
    """
    if hasattr(variable, _MARK):
        return bool(getattr(variable, _MARK))
    if variable.trainable:
        return False
    parts, shape = _name(variable).split("/"), tuple(variable.shape)
    references = [("/".join(parts[2:]), shape), ("/".join(parts[1:-1]), shape)]
    found = _marks(references)
    if len(found) > 1:
        gc.collect()  # One of them may be that of a model that is gone.
        found = _marks(references)
    if len(found) > 1:
        raise EmbeddingError(
            f"{variable.name} may belong to either of two tables of one name, of which one lies on all ranks and one "
            "on this alone: give the layers of the two models different names, or take a distributed_optimizer"
        )
    return found == {True}


def cut_table_of(variables: Iterable[tf.Variable]) -> str | None:
    """Returns the name of a table that is cut over the ranks, if there is one in the layers of these variables.

    All ranks find one or none, also those that hold no part of it.
    """
    return next((getattr(variable, _CUT) for variable in variables if hasattr(variable, _CUT)), None)


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


def _mark(variable: tf.Variable, *, is_owned: bool) -> None:
    setattr(variable, _MARK, is_owned)
    _marked.setdefault((_name(variable), tuple(variable.shape)), []).append(weakref.ref(variable))


def _marks(keys: Sequence[_Key]) -> set[bool]:
    """Returns the marks of the variables that there still are."""
    alive = (found for key in keys for reference in _marked.get(key, ()) if (found := reference()) is not None)
    return {getattr(variable, _MARK) for variable in alive}


def _name(variable: tf.Variable) -> str:
    return str(variable.name).rsplit(":", 1)[0]
