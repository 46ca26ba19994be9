"""What can go wrong in this package.

ServingError
├── ProgramMissing       a program or file of Triton's is not installed
├── ProcessFailed        a process that we started died, or was not ready in time
├── ModelLoadFailed      Triton refused to load a version
├── GoldenMismatch       Triton's scores are not the trainer's: the version must take no traffic
└── TritonError          a call to Triton came back without an answer
    ├── TritonUnavailable    no server there, or it is stopping
    ├── TritonTimeout        no answer within the deadline
    ├── UnknownModel         the server has no such model loaded
    └── InvalidTensors       the server refused the request's tensors
"""


class ServingError(Exception):
    """Base class of the package's errors."""


class ProgramMissing(ServingError):
    """A program or file of Triton's is not installed."""


class ProcessFailed(ServingError):
    """A process that we started died, or was not ready in time."""


class ModelLoadFailed(ServingError):
    """Triton refused to load a version."""


class GoldenMismatch(ServingError):
    """Triton's scores are not the trainer's: the version must take no traffic."""


class TritonError(ServingError):
    """A call to Triton came back without an answer."""


class TritonUnavailable(TritonError):
    """No server there, or it is stopping."""


class TritonTimeout(TritonError):
    """No answer within the deadline."""


class UnknownModel(TritonError):
    """The server has no such model loaded."""


class InvalidTensors(TritonError):
    """The server refused the request's tensors."""
