"""Rows of a variable that stand for other ids from now on: what optimizers keep beside them starts anew."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_HOOKS = "rankhouse_row_hooks"


def make_renewable(variable: tf.Variable) -> None:
    """Notes that rows of a variable may come to stand for something else."""
    setattr(variable, _HOOKS, [])


def when_rows_start(variable: tf.Variable, hook: Callable[[tf.Tensor], Any]) -> None:
    """Has a hook called with the rows int64 [n] that start anew; never where a variable's rows stay what they are."""
    getattr(variable, _HOOKS, []).append(hook)


def start_rows(variable: tf.Variable, rows: tf.Tensor) -> None:
    """Calls the hooks (only eagerly)."""
    for hook in getattr(variable, _HOOKS, []):
        hook(rows)


def keep_beside(variable: tf.Variable, slot: tf.Variable) -> None:
    """Has the rows of a slot, which was just made, start anew with those of its variable."""
    if not hasattr(variable, _HOOKS) or slot.shape != variable.shape:
        return
    with tf.init_scope():
        initial = tf.gather(slot, [0])

    def start(rows: tf.Tensor) -> None:
        slot.scatter_update(tf.IndexedSlices(tf.repeat(initial, tf.size(rows), axis=0), rows))

    when_rows_start(variable, start)
