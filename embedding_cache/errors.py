"""What can go wrong in this package, beside the files themselves (see `format/errors.py`).

EmbeddingCacheError
├── BatchError   a batch of ids contradicts itself or the version
└── HpsError     a model of HPS cannot be taken over
"""


class EmbeddingCacheError(Exception):
    """Base class of the package's errors."""


class BatchError(EmbeddingCacheError):
    """A batch of ids contradicts itself or the version."""


class HpsError(EmbeddingCacheError):
    """A model of HPS cannot be taken over."""
