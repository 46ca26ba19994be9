"""What can go wrong in this package, beside the files themselves (see `format/errors.py`).

EmbeddingCacheError
├── BatchError    a batch of ids contradicts itself or the version
├── OptionError   an engine has no such option, or it cannot have this value
├── ClosedError   a version was closed before it was used
├── TierError     rows lie in a store that is down or late
└── HpsError      a model of HPS cannot be taken over
"""


class EmbeddingCacheError(Exception):
    """Base class of the package's errors."""


class BatchError(EmbeddingCacheError):
    """A batch of ids contradicts itself or the version, or has an id outside its table."""


class OptionError(EmbeddingCacheError, ValueError):
    """An engine has no such option, or it cannot have this value."""


class ClosedError(EmbeddingCacheError):
    """A version was closed before it was used."""


class TierError(EmbeddingCacheError):
    """Rows lie in a store that is down or late."""


class HpsError(EmbeddingCacheError):
    """A model of HPS cannot be taken over."""
