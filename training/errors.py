"""What can go wrong in this package.

TrainingError
"""


class TrainingError(Exception):
    """Base class of the package's errors."""
