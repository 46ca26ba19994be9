"""`python -m rankhouse.serving.gateway`: runs the gateway as its environment says."""

import logging
import sys

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.serving.errors import ServingError
from rankhouse.serving.gateway.server import run
from rankhouse.serving.gateway.settings import settings_from_environment


def main() -> None:
    """Runs until a signal; our own errors become one line on stderr and exit status 1."""
    try:
        settings = settings_from_environment()
        logging.basicConfig(level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s")
        # What uvicorn says of its start and stop, we say ourselves.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # It logs whole URLs, and those of webhooks are secrets.
        run(settings)
    except (FormatError, ServingError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
