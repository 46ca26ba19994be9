"""What can go wrong in this package.

TrainingError
├── DataError                 raw or prepared data cannot be used
│   ├── FeatureSpecError      a feature spec is wrong
│   ├── SynthesisError        synthetic logs cannot be made
│   ├── RawFileError          a raw file is missing or wrong
│   ├── PreprocessError       the workflow cannot be fitted or applied
│   └── DatasetError          a prepared dataset is missing, unfinished or does not have what was asked for
├── RanksError                the ranks cannot work together
├── WireError                 rows cannot travel in the format that was asked for
├── PlanError                 tables cannot be placed
│   └── NoRoomError           they do not fit the ranks' memory
├── EmbeddingError            a DistributedEmbedding was made or called wrongly
│   └── HostRowsError         a table in host memory has no room there, or too small a cache
├── CompatError               the surface of another library was used wrongly (also a ValueError)
├── OptimizerError            an optimizer was made or called wrongly
├── AucUndefinedError         the scores have no ROC AUC
├── CheckpointError           a checkpoint cannot be saved, found, read or trusted
├── ConfigError               a recipe or a setting is wrong
├── RunFolderError            a run folder is missing, incomplete or in the way
├── ModelError                the model does not fit the dataset
├── DivergedError             the loss is no longer a number
├── LaunchError               ranks could not be started, or one died
└── ExportError               a run cannot become a version, or the version does not score as the trainer does
"""


class TrainingError(Exception):
    """Base class of the package's errors."""


class DataError(TrainingError):
    """Raw or prepared data cannot be used."""


class FeatureSpecError(DataError):
    """A feature spec is wrong: an unknown key, an impossible value, features that contradict each other."""


class SynthesisError(DataError):
    """Synthetic logs cannot be made: an impossible size, day or seed, or no place for the file."""


class RawFileError(DataError):
    """A raw file is missing or wrong; the message names the file and, for its content, row, column and value."""


class PreprocessError(DataError):
    """The workflow cannot be fitted or applied."""


class DatasetError(DataError):
    """A prepared dataset is missing, unfinished, or does not have what was asked for."""


class RanksError(TrainingError):
    """The ranks cannot work together: Horovod is missing where several ranks were started."""


class WireError(TrainingError):
    """Rows cannot travel between ranks in the format that was asked for; the message names the setting."""


class PlanError(TrainingError):
    """Tables cannot be placed: none, two of one name, or impossible sizes."""


class NoRoomError(PlanError):
    """Tables do not fit the memory of the ranks; the message says what would."""


class EmbeddingError(TrainingError):
    """A DistributedEmbedding was made or called wrongly: unknown tables, wrong number or shape of inputs."""


class HostRowsError(EmbeddingError):
    """A table in host memory has no room there, or its cache is too small for a batch; the message names the table."""


class CompatError(TrainingError, ValueError):
    """The surface of another library, in `compat`, was used wrongly; a ValueError, as there."""


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


class DivergedError(TrainingError):
    """The loss is no longer a number."""


class LaunchError(TrainingError):
    """Ranks could not be started, or one died."""


class ExportError(TrainingError):
    """A run cannot become a version, or the version does not score as the trainer does."""
