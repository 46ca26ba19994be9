"""What can go wrong in this package.

FormatError
"""


class FormatError(Exception):
    """Base class of the package's errors."""
