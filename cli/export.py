"""`rankhouse export`."""


def export() -> None:
    """To be written."""
