"""A ranking model in training: tables spread over the ranks, dense layers on every rank, one optimizer for both."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import tensorflow as tf
import tf_keras

from rankhouse.training.checkpoint.checkpoint import TrainingState
from rankhouse.training.config import Config, OptimizerConfig
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.exchange.sent_ids import SentIds
from rankhouse.training.exchange.wire_format import WireFormat, with_dtypes
from rankhouse.training.models.dlrm import DLRM
from rankhouse.training.models.model_tables import model_tables
from rankhouse.training.optimizers.learning_rates import Decay, LearningRate, Warmup
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan
from rankhouse.training.planner.at_start import plan_at_start
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings


@dataclass(frozen=True)
class RankingModel:
    """Everything that training changes.

    Attributes:
        embedding: The tables.
        dense: The dense layers.
        optimizer: Of both.
        clip_norm: The largest global norm of all gradients that stays as it is; 0 is no limit.
        initial_rows: How many rows each table had when its first run began, where it has grown since.
        lineage: (id, iterations) of the checkpoints that led here, oldest first.
    """

    embedding: DistributedEmbedding
    dense: DLRM
    optimizer: Optimizer
    clip_norm: float = 0.0
    initial_rows: Mapping[str, int] = field(default_factory=dict)
    lineage: list[tuple[str, int]] = field(default_factory=list)

    @classmethod
    def build(
        cls,
        config: Config,
        dataset: PreparedDataset,
        *,
        ranks: Ranks,
        plan: Plan | None = None,
        initial_rows: Mapping[str, int] | None = None,
    ) -> "RankingModel":
        """Makes a model with its initial values, which depend on the seed but not on the number of ranks.

        Args:
            config: The configuration.
            dataset: Says which tables there are and how large they are.
            ranks: The ranks that train together.
            plan: Who holds which table; by default what `plan_at_start` decides.
            initial_rows: How many rows each table had when its first run began; by default as many as now. A row's
                initial value depends on that number, so that it is the same however far the table has grown.

        Raises:
            ConfigError: The recipe does not go with the tables that learn their keys.
            ModelError: The model does not fit the dataset.
            PlanError: The tables cannot be placed as the recipe says, or do not fit the memory at hand.
        """
        dense = build_dense(config, dataset, precision=config.training.precision)
        sizes = model_tables(config, dataset)
        initial_rows = {name: table.num_rows for name, table in sizes.items()} | dict(initial_rows or {})
        plan = plan or plan_at_start(config, dataset, ranks=ranks)
        embedding = DistributedEmbedding(
            [
                EmbeddingSpec(
                    *(table.num_rows, table.dim, name),
                    embeddings_initializer=_initial_values(initial_rows[name]),
                    vocabulary=_vocabulary(config, name),
                    dtype=plan.dtypes.get(name, "float32"),
                )
                for name, table in sizes.items()
            ],
            inputs=[Input(feature.name, feature.table, feature.combiner) for feature in dataset.spec.categorical],
            ranks=ranks,
            plan=plan,
            seed=config.training.seed,
            wire=_wire_formats(config, plan),
            name="embedding",
        )
        tables = [shard.variable for shard in embedding.shards]
        refs = {table.ref() for table in tables}
        others = [variable for variable in embedding.trainable_variables if variable.ref() not in refs]
        optimizer = Optimizer(
            config.optimizer.settings(),
            tables=tables,
            dense=[*others, *dense.trainable_variables],
            learning_rate=_learning_rate(config.optimizer),
        )
        if optimizer.settings.is_exact:
            embedding.before_lookup = optimizer.catch_up
        clip_norm = config.optimizer.clip_global_norm
        return cls(embedding, dense, optimizer, clip_norm=clip_norm, initial_rows=initial_rows)

    @property
    def state(self) -> TrainingState:
        """What checkpoints hold."""
        return TrainingState(
            self.embedding,
            self.dense.named_variables(),
            self.optimizer,
            initial_rows=self.initial_rows,
            lineage=self.lineage,
        )

    @property
    def batch_signature(self) -> tuple[tf.TensorSpec, ...]:
        """The types of a batch: dense, ids, lengths, labels. Functions of it are traced once, whatever the sizes."""
        return (
            tf.TensorSpec([None, self.dense.num_dense], tf.float32),
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([self.dense.num_features, None], tf.int32),
            tf.TensorSpec([None], tf.float32),
        )

    def logits(self, dense: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, *, training: bool = False) -> tf.Tensor:
        """Scores this rank's part of a batch; collective.

        Args:
            dense: float32 [B, num_dense].
            ids: int64 [N], feature-major.
            lengths: int32 [F, B].
            training: Whether a step of training follows; see `DistributedEmbedding.lookup`.

        Returns:
            float32 [B].
        """
        return self.dense((dense, self.embedding.lookup(ids, lengths, training=training)))

    def logits_of_sent(self, dense: tf.Tensor, sent: SentIds, *, training: bool = False) -> tf.Tensor:
        """Scores this rank's part of a batch whose ids were sent by the tables' `send_ids`; collective.

        Args:
            dense: float32 [B, num_dense].
            sent: The ids.
            training: As of `logits`.

        Returns:
            float32 [B].
        """
        return self.dense((dense, self.embedding.lookup_sent(sent, training=training)))


def build_dense(config: Config, dataset: PreparedDataset, *, precision: str = "float32") -> DLRM:
    """Makes the dense layers that fit a dataset, with their initial values.

    Args:
        config: The configuration.
        dataset: Says which features there are.
        precision: What the hidden layers compute in, as of `DLRM`.

    Raises:
        ModelError: The model does not fit the dataset.
    """
    return DLRM(
        config.model,
        num_dense=len(dataset.spec.continuous),
        feature_dims={feature.name: feature.dim for feature in dataset.spec.categorical},
        seed=config.training.seed,
        precision=precision,
    )


def _wire_formats(config: Config, plan: Plan) -> dict[str, WireFormat]:
    """Returns how the rows of each table travel: as the plan says, or else as the recipe says for all.

    Their gradients, which a mean loss divides by the batch size, are scaled by about it.
    """
    common = WireFormat(
        forward=config.parallel.wire_forward,
        backward=config.parallel.wire_backward,
        gradient_scale=2.0 ** math.floor(math.log2(config.training.batch_size)),
        max_relative_error=config.parallel.wire_max_error,
    )
    planned = {name: with_dtypes(common, dtypes) for name, dtypes in plan.wires.items()}
    return {table.name: planned.get(table.name, common) for table in plan.tables}


def _initial_values(num_rows: int) -> tf_keras.initializers.Initializer:
    bound = 1 / math.sqrt(num_rows)
    return tf_keras.initializers.RandomUniform(-bound, bound)


def _vocabulary(config: Config, table: str) -> VocabularySettings | None:
    keys = config.model.vocabularies.get(table)
    return None if keys is None else VocabularySettings(keys.min_steps, keys.when_full, keys.max_candidates)


def _learning_rate(config: OptimizerConfig) -> LearningRate:
    rate: LearningRate = config.learning_rate
    if config.warmup_steps:
        rate = Warmup(config.learning_rate, config.warmup_steps)
    if config.decay_steps:
        rate = Decay(rate, config.decay_first_step, config.decay_steps, config.decay_power)
    return rate
