"""What can go wrong in this package.

ServingError
"""


class ServingError(Exception):
    """Base class of the package's errors."""
