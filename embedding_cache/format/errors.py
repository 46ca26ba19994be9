"""What can go wrong in this package.

FormatError
├── CorruptFileError       a file is missing, truncated, altered or not of the kind that its name promises
├── ManifestError          a manifest is missing, unreadable, of another kind, or made by a newer release
├── ContentError           what was given to be written contradicts itself
├── VersionNotFoundError   no such version store, or no such version in it
├── NotServableError       a version has no dense part
├── StorageError           a disk is full or denies access; a storage of objects cannot be reached or lacks a bucket
├── TransformError         a compiled transform is malformed, or was given a batch of another shape
└── RawValueError          a row has an unknown feature or a value of the wrong type
"""


class FormatError(Exception):
    """Base class of the package's errors."""


class CorruptFileError(FormatError):
    """A file is missing, truncated, altered or not of the kind that its name promises."""


class ManifestError(FormatError):
    """A manifest is missing, unreadable, of another kind, or made by a newer release."""


class ContentError(FormatError):
    """What was given to be written contradicts itself."""


class VersionNotFoundError(FormatError):
    """No such version store, or no such version in it."""


class NotServableError(FormatError):
    """A version has no dense part."""


class StorageError(FormatError):
    """A disk is full or denies access; a storage of objects cannot be reached, lacks a bucket, or denies access."""


class TransformError(FormatError):
    """A compiled transform is malformed, or was given a batch of another shape."""


class RawValueError(FormatError):
    """A row has an unknown feature or a value of the wrong type.

    Args:
        message: What is wrong with the value and what was expected.
        row: The row's position in the batch.
        feature: The feature's name as it stood in the row.
        position: The value's position in a list; None where the whole value is meant.
    """

    def __init__(self, message: str, *, row: int, feature: str, position: int | None = None) -> None:
        place = "" if position is None else f", position {position}"
        super().__init__(f"row {row}, feature {feature!r}{place}: {message}")
        self.message = message
        self.row = row
        self.feature = feature
        self.position = position
