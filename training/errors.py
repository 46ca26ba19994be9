"""What can go wrong in this package.

TrainingError
├── RanksError                the ranks cannot work together
├── PlanError                 tables cannot be placed
├── EmbeddingError            a DistributedEmbedding was made or called wrongly
├── OptimizerError            an optimizer was made or called wrongly
├── AucUndefinedError         the scores have no ROC AUC
├── CheckpointError           a checkpoint cannot be saved, found, read or trusted
├── ConfigError               a recipe or a setting is wrong
├── RunFolderError            a run folder is missing, incomplete or in the way
├── ModelError                the model does not fit the dataset
└── LaunchError               ranks could not be started, or one died
"""


class TrainingError(Exception):
    """Base class of the package's errors."""


class RanksError(TrainingError):
    """The ranks cannot work together: Horovod is missing where several ranks were started."""


class PlanError(TrainingError):
    """Tables cannot be placed: none, two of one name, or impossible sizes."""


class EmbeddingError(TrainingError):
    """A DistributedEmbedding was made or called wrongly: unknown tables, wrong number or shape of inputs."""


class OptimizerError(TrainingError):
    """An optimizer was made or called wrongly: impossible settings, or gradients that do not fit its variables."""


class AucUndefinedError(TrainingError):
    """The scores have no ROC AUC: no samples, one class only, or scores that are not numbers."""


class CheckpointError(TrainingError):
    """A checkpoint cannot be saved, found, read or trusted; the message names the file."""


class ConfigError(TrainingError):
    """A recipe or a setting is wrong."""


class RunFolderError(TrainingError):
    """A run folder is missing, incomplete or in the way."""


class ModelError(TrainingError):
    """The model does not fit the dataset."""


class LaunchError(TrainingError):
    """Ranks could not be started, or one died."""
