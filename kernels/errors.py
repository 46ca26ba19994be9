"""What can go wrong in this package.

KernelError
"""


class KernelError(Exception):
    """Base class of the package's errors."""
