"""`rankhouse train`."""


def train() -> None:
    """To be written."""
