"""`rankhouse score`."""


def score() -> None:
    """To be written."""
