"""`rankhouse plan`."""


def plan() -> None:
    """To be written."""
