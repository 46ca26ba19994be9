"""What can go wrong in this package.

KernelError
├── LibraryError              the compiled library is missing, or of another version than this code
├── ArgumentError             a shape, dtype or value that an operation does not take (also a ValueError)
├── IdOutOfRangeError         an id outside its table (also an IndexError)
├── OutOfMemoryError          (also a MemoryError)
├── UnsupportedError          this build or machine cannot do it: built without CUDA
├── CudaError                 CUDA reports an error
└── InternalError             a bug in the library
"""


class KernelError(Exception):
    """Base class of the package's errors."""


class LibraryError(KernelError):
    """The compiled library is missing, cannot be loaded, or is of another version than this code."""


class ArgumentError(KernelError, ValueError):
    """A shape, dtype or value that an operation does not take."""


class IdOutOfRangeError(KernelError, IndexError):
    """An id outside its table; the message names feature, sample, position, id and the table's rows."""


class OutOfMemoryError(KernelError, MemoryError):
    """An operation could not get the memory it needs."""


class UnsupportedError(KernelError):
    """This build or machine cannot do it, for example a CUDA operation in a build without CUDA."""


class CudaError(KernelError):
    """CUDA reports an error."""


class InternalError(KernelError):
    """A bug in the library."""


# The error of each rh_status in kernels/include/rankhouse/kernels.h.
STATUS_ERRORS: dict[int, type[KernelError]] = {
    1: ArgumentError,
    2: IdOutOfRangeError,
    3: OutOfMemoryError,
    4: UnsupportedError,
    5: CudaError,
    6: InternalError,
}
