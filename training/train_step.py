"""One step of training: lookup, dense layers, gradients, and the update of everything, as one graph.

With overlap a step also sends the ids of the batch that comes next. That exchange needs nothing from the step and the
step nothing from it, so TensorFlow makes it while it computes. It moves no row: these are read in the step that they
are for, after the update of the step before. So the bits are those of steps without overlap.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import tensorflow as tf

from rankhouse.training.data.rows import Batch
from rankhouse.training.exchange.sent_ids import SentIds
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.optimizers.clipping import clipping_scale, owned_squared_norm


class StepNews(NamedTuple):
    """What all ranks know after a step.

    Attributes:
        loss: The mean over the batch of all ranks.
        num_stopping: How many ranks were told to stop.
        num_failed: On how many ranks the checkpoint that is being written has failed.
    """

    loss: float
    num_stopping: float
    num_failed: float


class TrainStep:
    """Does the steps of a model, one after the other; collective. One thread per process.

    Whatever is done between two steps (an evaluation, a checkpoint) neither sees nor changes the ids that were sent
    ahead; if no step follows, they are dropped.
    """

    def __init__(self, model: RankingModel, *, overlap: bool = False) -> None:
        """Builds the graph, so that the first step takes no longer than the others.

        Args:
            model: What is trained.
            overlap: Whether a step sends the ids of the next batch; the same on all ranks.
        """
        self._model = model
        self._overlap = overlap
        self._announced: tuple[Batch | None, SentIds | None] = None, None
        self._update = _make_update(model)
        self._step = self._make_overlapped() if overlap else self._make_plain()
        # The ids of a batch that no step announced: of the first one.
        self._send = tf.function(model.embedding.send_ids, input_signature=model.batch_signature[1:3], autograph=False)

    def __call__(
        self,
        batch: Batch,
        num_samples: int,
        stop: bool,
        save_failed: bool = False,
        *,
        next_batch: Batch | None = None,
    ) -> StepNews:
        """Does a step.

        Args:
            batch: This rank's part of a batch. If it is not the `next_batch` of the step before, on all ranks alike,
                its ids are sent first.
            num_samples: Samples of the batch over all ranks.
            stop: Whether this rank was told to stop.
            save_failed: Whether this rank could not write a checkpoint.
            next_batch: This rank's part of the batch of the next step; None if there is none, on all ranks alike.
                Without overlap it is not used.
        """
        numbers = float(num_samples), (float(stop), float(save_failed))
        if not self._overlap:
            news = self._step(batch.dense, batch.labels, batch.ids, batch.lengths, *numbers)
            return StepNews(*news.numpy().tolist())
        announced, sent = self._announced
        if announced is not batch:
            sent = self._send(batch.ids, batch.lengths)
        following = _no_samples(batch) if next_batch is None else next_batch
        news, next_sent = self._step(batch.dense, batch.labels, sent, following.ids, following.lengths, *numbers)
        self._announced = next_batch, next_sent
        return StepNews(*news.numpy().tolist())

    def _make_plain(self) -> Any:
        model = self._model
        dense, ids, lengths, labels = model.batch_signature

        @tf.function(input_signature=(dense, labels, ids, lengths, _SCALAR, _FLAGS), autograph=False)  # type: ignore[untyped-decorator]
        def step(
            dense: tf.Tensor,
            labels: tf.Tensor,
            ids: tf.Tensor,
            lengths: tf.Tensor,
            num_samples: tf.Tensor,
            flags: tf.Tensor,
        ) -> tf.Tensor:
            return self._update(lambda: model.logits(dense, ids, lengths, training=True), labels, num_samples, flags)

        step.get_concrete_function()
        return step

    def _make_overlapped(self) -> Any:
        model = self._model
        dense, ids, lengths, labels = model.batch_signature
        sent = model.embedding.sent_spec()
        signature = (dense, labels, sent, ids, lengths, _SCALAR, _FLAGS)

        @tf.function(input_signature=signature, autograph=False)  # type: ignore[untyped-decorator]
        def step(
            dense: tf.Tensor,
            labels: tf.Tensor,
            sent: SentIds,
            next_ids: tf.Tensor,
            next_lengths: tf.Tensor,
            num_samples: tf.Tensor,
            flags: tf.Tensor,
        ) -> tuple[tf.Tensor, SentIds]:
            next_sent = model.embedding.send_ids(next_ids, next_lengths)
            news = self._update(lambda: model.logits_of_sent(dense, sent, training=True), labels, num_samples, flags)
            return news, next_sent

        step.get_concrete_function()
        return step


_SCALAR = tf.TensorSpec([], tf.float32)
_FLAGS = tf.TensorSpec([2], tf.float32)  # Told to stop, could not save.


def _make_update(model: RankingModel) -> Callable[..., tf.Tensor]:
    """Returns a function of logits, labels, samples and flags that moves all variables, and returns the news [3]."""
    variables = model.optimizer.variables
    # Stands in the sum of the gradients for what else the ranks tell each other: [loss, told to stop, could not save,
    # squared norm of the gradients that only this rank has].
    news_slot = tf.Variable(tf.zeros([4]), trainable=False)

    def update(
        logits: Callable[[], tf.Tensor], labels: tf.Tensor, num_samples: tf.Tensor, flags: tf.Tensor
    ) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits())
            loss = tf.reduce_sum(losses) / num_samples
        gradients = tape.gradient(loss, variables)
        owned = owned_squared_norm(model.embedding, gradients, variables) if model.clip_norm else 0.0
        news = tf.concat([loss[tf.newaxis], flags, tf.reshape(owned, [1])], axis=0)
        *gradients, news = model.embedding.sum_gradients([*gradients, news], [*variables, news_slot])
        scale = None
        if model.clip_norm:
            scale = clipping_scale(
                model.embedding, gradients, variables, owned_squared_norm=news[3], clip_norm=model.clip_norm
            )
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True), gradient_scale=scale)
        return news[:3]

    return update


def _no_samples(batch: Batch) -> Batch:
    return replace(batch, ids=batch.ids[:0], lengths=batch.lengths[:, :0])
