"""`rankhouse serve`."""


def serve() -> None:
    """To be written."""
