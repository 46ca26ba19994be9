"""What can go wrong in this package.

AnalysisError
├── AnalysisSpecError     an analysis or a monitor asks for what there is not
└── SummaryError          bytes that are no summary, or summaries that do not belong together
"""


class AnalysisError(ValueError):
    """Base class of the package's errors: a value that it was given is not one that it can take."""


class AnalysisSpecError(AnalysisError):
    """An analysis or a monitor asks for what there is not."""


class SummaryError(AnalysisError):
    """Bytes that are no summary, or summaries that do not belong together."""
