"""One optimizer for embedding tables and dense layers together.

Settings of `rankhouse.kernels.optimizer_settings` say what it does: `Optimizer(Adam(kind="exact"), ...)`. Tables get
IndexedSlices and are updated in place, touched rows only, by the kernels; dense variables are updated by TensorFlow's
own fused operations. Both follow the formulas of tf_keras' legacy optimizers and are tested equal to them.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.optimizer_settings import Adam, OptimizerSettings, RowwiseAdagrad
from rankhouse.training.errors import OptimizerError
from rankhouse.training.optimizers.dense_updates import update_dense
from rankhouse.training.optimizers.learning_rates import LearningRate, check_positive, learning_rate_at
from rankhouse.training.optimizers.row_wise import SliceGradient, apply_to_slice, slice_gradients
from rankhouse.training.tables.host_rows import HostRows, host_rows_of
from rankhouse.training.tables.new_rows import when_rows_start
from rankhouse.training.tables.variable_rows import read_rows

# Rows are compared in blocks of this many bytes.
_BLOCK_BYTES = 64 << 20


class Optimizer:
    """Applies gradients to a fixed list of variables, eagerly or in a `tf.function`.

    With the exact kind of a rule a table's rows lag behind: `catch_up` must move them before they are looked up or read
    (`DistributedEmbedding.before_lookup`), `catch_up_all` before whole tables are.

    For each row of a table it keeps the step that last wrote it, so that what changed since an earlier step can be told
    without comparing tables. Of the exact kinds that is so after `catch_up_all`.

    Attributes:
        settings: The rule and its settings.
        tables: The variables [R, D] whose rows are looked up.
        variables: What it updates: the tables, then the dense variables.
        iterations: int64 [], the number of steps applied.
    """

    def __init__(
        self,
        settings: OptimizerSettings,
        *,
        tables: Sequence[tf.Variable] = (),
        dense: Sequence[tf.Variable] = (),
        learning_rate: LearningRate,
    ) -> None:
        """Makes the slots.

        Args:
            settings: The rule and its settings.
            tables: All tables that will ever be updated.
            dense: All other variables that will. With row-wise Adagrad theirs is Adagrad.
            learning_rate: A positive number, or a function of the steps done, such as `Warmup`.

        Raises:
            OptimizerError: A setting is out of its range, a variable is listed twice, or a table lies in host memory
                and the rule moves rows that are not looked up.
            HostRowsError: The folder of a table on the host cannot hold its slots.
        """
        if not callable(learning_rate):
            check_positive("learning_rate", learning_rate)
        self.settings = settings
        self.tables = list(tables)
        self.variables = [*tables, *dense]
        self.iterations = tf.Variable(0, dtype=tf.int64, trainable=False, name="iterations")
        self._learning_rate = learning_rate
        self._caught_up_step = 0  # When no row lagged behind.
        self._table_slots = {table.ref(): tf_ops.make_slots(table, settings) for table in tables}
        self._touched_steps = {table.ref(): _make_touched_steps(table) for table in tables}
        self._dense_slots = {variable.ref(): self._make_dense_slots(variable) for variable in dense}
        if len(self._table_slots.keys() | self._dense_slots.keys()) != len(self.variables):
            raise OptimizerError("a variable is listed twice; list each once, or it would be updated twice")
        for table in tables:
            self._attach_slots(table, host_rows_of(table))
            when_rows_start(table, partial(self._start_rows, table))
        # What the exact kind of Adam needs to know of earlier steps.
        keeps_rates = isinstance(settings, Adam) and settings.is_exact and callable(learning_rate)
        self._learning_rates = _LearningRates() if keeps_rates else None

    @property
    def slot_names(self) -> tuple[str, ...]:
        """What it remembers for each variable."""
        return self.settings.slot_names

    def slots(self, variable: tf.Variable) -> dict[str, tf.Variable]:
        """Returns what is remembered for a variable, by slot name. With the exact kinds see `set_iterations`."""
        table_slots = self._table_slots.get(variable.ref())
        slots = table_slots.variables if table_slots else self._dense_slots.get(variable.ref())
        if slots is None:
            raise OptimizerError(f"{variable.name} is not among this optimizer's variables; list it on creation")
        return dict(zip(self.slot_names, slots, strict=True))

    def touched_steps(self, table: tf.Variable) -> tf.Variable:
        """Returns the step that last wrote each row of a table, int32 [R]; 0 where none did."""
        if table.ref() not in self._touched_steps:
            raise OptimizerError(f"{table.name} is not among this optimizer's tables; list it on creation")
        return self._touched_steps[table.ref()]

    def learning_rate(self) -> tf.Tensor:
        """Returns the learning rate of the step to come, float32 []."""
        return learning_rate_at(self._learning_rate, self.iterations)

    def apply_gradients(
        self, gradients_and_variables: Iterable[tuple[Any, tf.Variable]], *, gradient_scale: tf.Tensor | None = None
    ) -> None:
        """Makes one step.

        Args:
            gradients_and_variables: Pairs; the gradient of a table is IndexedSlices with sorted unique indices, or a
                dense tensor that touches all rows; that of another variable is dense.
            gradient_scale: float32 [], what all gradients are multiplied with first, not 0; see `clipping.py`.

        Raises:
            OptimizerError: A variable has no gradient, or is not one of this optimizer's.
        """
        learning_rate, step = self.learning_rate(), self.iterations + 1
        if self._learning_rates is not None:
            self._learning_rates.record(self.iterations, learning_rate)
        gradients = [(self._checked(gradient, variable), variable) for gradient, variable in gradients_and_variables]
        slices = {}
        if isinstance(self.settings, RowwiseAdagrad):
            slices = slice_gradients(gradients, self.settings, gradient_scale=gradient_scale)
        for gradient, variable in gradients:
            if variable.ref() in self._table_slots:
                of_slice = slices.get(variable.ref())
                self._apply_rows(variable, gradient, learning_rate, step, gradient_scale, of_slice)
            else:
                update_dense(
                    variable,
                    list(self.slots(variable).values()),
                    tf.convert_to_tensor(gradient),
                    self.settings,
                    learning_rate=learning_rate,
                    step=step,
                    gradient_scale=gradient_scale,
                )
        self.iterations.assign_add(1)

    def catch_up(self, table: tf.Variable, ids: tf.Tensor) -> None:
        """Makes the steps that rows of a table have missed; does nothing for other kinds than the exact ones.

        Args:
            table: One of this optimizer's.
            ids: int64 or int32 [N], the rows, in any order and several times.
        """
        if not self.settings.is_exact:
            return
        tf_ops.catch_up(
            table,
            self._table_slots[table.ref()],
            self.settings,
            ids=ids,
            step=self.iterations,
            learning_rate=learning_rate_at(self._learning_rate, tf.maximum(self.iterations - 1, 0)),
            learning_rates=self._learning_rates.read() if self._learning_rates else None,
        )

    def catch_up_all(self) -> None:
        """Makes the steps that any row of any table has missed: before tables are read whole (only eagerly)."""
        if not self.settings.is_exact:
            return
        for table in self.tables:
            num_rows, dim = table.shape
            block = max(1, _BLOCK_BYTES // (4 * dim))
            for start in range(0, num_rows, block):
                self._catch_up_block(table, start, min(start + block, num_rows))
        self._caught_up_step = int(self.iterations.numpy())

    def set_iterations(self, iterations: int) -> None:
        """Goes on after so many steps, all rows being at the last of them, as after `catch_up_all` (only eagerly)."""
        self.iterations.assign(iterations)
        self._caught_up_step = iterations
        for slots in self._table_slots.values():
            if slots.last_steps is not None:
                slots.last_steps.assign(tf.fill(slots.last_steps.shape, tf.constant(iterations, tf.int32)))
        if self._learning_rates is not None:
            self._learning_rates.make_room(iterations)

    def _start_rows(self, table: tf.Variable, rows: tf.Tensor) -> None:
        """Forgets rows, which stand for other ids from now on."""
        for name, slot in self.slots(table).items():
            shape = [len(rows), *slot.shape[1:]]
            slot.scatter_update(tf.IndexedSlices(tf.fill(shape, tf.constant(self.settings.initial_value(name))), rows))
        _scatter(self._touched_steps[table.ref()], rows, tf.constant(0))
        last_steps = self._table_slots[table.ref()].last_steps
        if last_steps is not None:
            _scatter(last_steps, rows, self.iterations)

    def _catch_up_block(self, table: tf.Variable, start: int, stop: int) -> None:
        """Catches up rows [start, stop), and notes which of them are others than when all were last caught up.

        A row that no gradient ever reached does not move. One that does is compared: its momentum may have faded.
        """
        slots, touched_steps = self._table_slots[table.ref()], self._touched_steps[table.ref()]
        assert slots.last_steps is not None
        last, touched = read_rows(slots.last_steps, start, stop), read_rows(touched_steps, start, stop)
        # Caught up for a lookup that no step followed, in an evaluation: what it was before is gone.
        looked_up = (touched > 0) & (last > np.maximum(touched, self._caught_up_step))
        behind = start + np.flatnonzero((touched > 0) & (last < self.iterations.numpy()))
        before = tf.gather(table, behind).numpy()
        self.catch_up(table, tf.constant(behind))
        after = tf.gather(table, behind).numpy()
        moved = (before.view(np.uint8) != after.view(np.uint8)).any(axis=1)
        written = np.concatenate([start + np.flatnonzero(looked_up), behind[moved]])
        _scatter(touched_steps, tf.constant(written), self.iterations)

    def _attach_slots(self, table: tf.Variable, host_rows: HostRows | None) -> None:
        """Has what is remembered for the rows of a table on the host come and go with them."""
        if host_rows is None:
            return
        if self.settings.is_exact or self.settings.is_dense:
            raise OptimizerError(
                f"table {host_rows.table!r} lies in host memory, but with this kind of {type(self.settings).__name__} "
                'every step moves all rows; take kind = "lazy", or place the table on the device'
            )
        for name, slot in self.slots(table).items():
            host_rows.attach(slot, fill=self.settings.initial_value(name))
        host_rows.attach(self._touched_steps[table.ref()])
        host_rows.note_optimizer()

    def _make_dense_slots(self, variable: tf.Variable) -> list[tf.Variable]:
        initial = {name: tf.constant(self.settings.initial_value(name)) for name in self.slot_names}
        return [
            tf.Variable(tf.fill(variable.shape, value), trainable=False, name=name) for name, value in initial.items()
        ]

    def _checked(self, gradient: Any, variable: tf.Variable) -> Any:
        """Returns the gradient of a variable; that of a table as IndexedSlices."""
        if gradient is None:
            raise OptimizerError(f"{variable.name} has no gradient: the loss does not depend on it; leave it out")
        if variable.ref() not in self._table_slots or isinstance(gradient, tf.IndexedSlices):
            return gradient
        host_rows = host_rows_of(variable)
        if host_rows is not None:
            raise OptimizerError(
                f"the gradient of table {host_rows.table!r} is dense, but not all its rows are there: it lies in "
                "host memory; give IndexedSlices, as those of a lookup"
            )
        return tf.IndexedSlices(gradient, tf.range(variable.shape[0], dtype=tf.int64))

    def _apply_rows(
        self,
        table: tf.Variable,
        gradient: tf.IndexedSlices,
        learning_rate: tf.Tensor,
        step: tf.Tensor,
        scale: tf.Tensor | None,
        of_slice: SliceGradient | None,
    ) -> None:
        host_rows = host_rows_of(table)
        if host_rows is not None:
            rows = host_rows.before_update(gradient.indices)
            gradient = tf.IndexedSlices(gradient.values, rows, gradient.dense_shape)
        slots = self._table_slots[table.ref()]
        if of_slice is not None and isinstance(self.settings, RowwiseAdagrad):
            rates = {"learning_rate": learning_rate, "step": step}
            apply_to_slice(table, slots.variables[0], gradient.indices, of_slice, self.settings, **rates)
        else:
            tf_ops.apply(
                table,
                slots,
                gradient,
                self.settings,
                learning_rate=learning_rate,
                step=step,
                learning_rates=self._learning_rates.read() if self._learning_rates else None,
                gradient_scale=1.0 if scale is None else scale,
            )
        self._note(table, gradient.indices, step)
        if host_rows is not None:
            host_rows.after_update()

    def _note(self, table: tf.Variable, ids: tf.Tensor, step: tf.Tensor) -> None:
        """Notes that a step has written rows."""
        touched_steps = self._touched_steps[table.ref()]
        if self.settings.is_dense:
            touched_steps.assign(tf.fill(touched_steps.shape, tf.cast(step, tf.int32)))
        else:
            _scatter(touched_steps, ids, step)


def _make_touched_steps(table: tf.Variable) -> tf.Variable:
    return tf.Variable(tf.zeros(table.shape[0], tf.int32), trainable=False, name="touched_steps")


def _scatter(touched_steps: tf.Variable, ids: tf.Tensor, step: tf.Tensor) -> None:
    tf.raw_ops.ResourceScatterUpdate(resource=touched_steps.handle, indices=ids, updates=tf.cast(step, tf.int32))


class _LearningRates:
    """The learning rates of all steps so far: element s - 1 is that of step s. It doubles its room when it is full."""

    def __init__(self) -> None:
        self._rates = tf.Variable(tf.zeros([1024]), shape=[None], trainable=False, name="learning_rates")

    def make_room(self, num_steps: int) -> None:
        self._rates.assign(tf.zeros([max(1024, 2 * num_steps)]))

    def record(self, index: tf.Tensor, learning_rate: tf.Tensor) -> None:
        room = tf.size(self._rates, out_type=tf.int64)

        def double() -> tf.Tensor:
            rates = self._rates.read_value()
            self._rates.assign(tf.concat([rates, tf.zeros_like(rates)], axis=0))
            return tf.constant(True)

        tf.cond(index < room, lambda: tf.constant(False), double)
        self._rates.scatter_nd_update(index[tf.newaxis, tf.newaxis], learning_rate[tf.newaxis])

    def read(self) -> tf.Tensor:
        return self._rates.read_value()
