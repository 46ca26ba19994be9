"""`rankhouse demo`."""


def demo() -> None:
    """To be written."""
