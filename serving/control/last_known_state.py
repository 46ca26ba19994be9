"""The last state that a replica has read, in a file: what it serves by when it starts while the store is gone."""

from pathlib import Path

from rankhouse.embedding_cache.format.files import write_durably
from rankhouse.serving.control.model_state import decode_state, encode_state
from rankhouse.serving.control.state_store import Stored
from rankhouse.serving.errors import CorruptStateError, StoreFullError


class LastKnownState:
    """A file beside a replica. Called from one thread at a time.

    Args:
        path: The file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, stored: Stored) -> None:
        """Keeps a state in place of the one before; a crash leaves one of them.

        Raises:
            StoreFullError: The file cannot be written.
        """
        content = b"%d\n" % stored.revision + encode_state(stored.state)
        try:
            write_durably(self._path, content)
        except OSError as exc:
            raise StoreFullError(f"the last known state cannot be kept in {self._path}: {exc}") from exc

    def read(self, model: str) -> Stored | None:
        """The state that was kept; None: none yet.

        Args:
            model: Whose it must be.

        Raises:
            CorruptStateError: The file is damaged, or of another model.
        """
        try:
            revision, content = self._path.read_bytes().split(b"\n", 1)
            stored = Stored(decode_state(content), int(revision))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, CorruptStateError) as exc:
            raise CorruptStateError(f"the last known state {self._path} cannot be read: {exc}; remove it") from exc
        if stored.state.model != model:
            raise CorruptStateError(
                f"the last known state {self._path} is of model {stored.state.model}, not {model}; remove it"
            )
        return stored
