"""What the version store says of a model's versions: their lineage and what each adds, read from manifests alone."""

import logging
import threading
import time
from pathlib import Path

import msgspec

from rankhouse.embedding_cache.format.errors import FormatError, VersionNotFoundError
from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.maintenance.inventory import additions

_LISTING_SECONDS = 2.0
_log = logging.getLogger(__name__)


class CatalogEntry(msgspec.Struct, frozen=True):
    """A version in the store.

    Attributes:
        name: Its name.
        made_by: `export`, `delta`, `compact`, `rollback` or `import`.
        parent: The version that a delta continues.
        made_from: The version that a compaction or a rollback repeats.
        created_at: When, in unix seconds.
        num_rows: The rows of all tables.
        num_bytes: The bytes of all its files, shared ones included.
        added_rows: The rows in files that no version before it has.
        added_bytes: The bytes of these files.
        metrics: What is known of the model: the held-out AUC, ...
        problem: Why its manifest cannot be read; then nothing else is known.
    """

    name: str
    made_by: str = ""
    parent: str | None = None
    made_from: str | None = None
    created_at: float = 0.0
    num_rows: int = 0
    num_bytes: int = 0
    added_rows: int = 0
    added_bytes: int = 0
    metrics: dict[str, float | int | str] = {}
    problem: str = ""


class VersionCatalog:
    """Lists a model's versions. Blocks, for a store behind a URL for its answers; any thread may use it.

    Versions never change, so each manifest is read once; who asks often gets a list that is two seconds old.

    Args:
        store: The version store: a folder or a URL.
        model: The model's name.
        cache: The folder below which a URL is mirrored.
    """

    def __init__(self, store: Path | str, model: str, *, cache: Path | None = None) -> None:
        self._store = VersionStore(store, cache=cache)
        self._model = model
        self._lock = threading.Lock()
        self._read: dict[str, Version | str | None] = {}  # A text is what is wrong with it; None: another model's.
        self._entries: list[CatalogEntry] = []
        self._listed_at = float("-inf")

    def entries(self) -> list[CatalogEntry]:
        """The model's versions, oldest first. A store that cannot be reached gives those that were there before."""
        with self._lock:
            if time.monotonic() - self._listed_at > _LISTING_SECONDS:
                try:
                    self._list()
                except FormatError as error:
                    _log.warning("the version store cannot be listed: %s", error)
                self._listed_at = time.monotonic()
            return self._entries

    def statistics(self, name: str) -> TrainingStatistics | None:
        """The training statistics of a version; None where it has none.

        Raises:
            FormatError: There is no such version, or the store cannot be reached.
        """
        return TrainingStatistics.of(self._store.read(name).metrics, version=name)

    def _list(self) -> None:
        names = self._store.names()
        if set(names) == set(self._read):
            return
        self._read = {name: self._read[name] if name in self._read else self._open(name) for name in names}
        versions = [version for version in self._read.values() if isinstance(version, Version)]
        known = [
            CatalogEntry(
                name=version.name,
                made_by=version.origin.action,
                parent=version.parent.name if version.parent else None,
                made_from=version.origin.version,
                created_at=version.created_at.timestamp(),
                num_rows=sum(table.num_rows for table in version.tables),
                num_bytes=version.num_bytes,
                added_rows=addition.num_rows,
                added_bytes=addition.num_bytes,
                metrics={k: v for k, v in version.metrics.items() if isinstance(v, float | int | str)},
            )
            for version, addition in zip(versions, additions(versions), strict=True)
        ]
        broken = [CatalogEntry(name, problem=found) for name, found in self._read.items() if isinstance(found, str)]
        self._entries = sorted([*known, *broken], key=lambda entry: entry.name)

    def _open(self, name: str) -> Version | str | None:
        try:
            version = self._store.read(name)
        except VersionNotFoundError:  # It was collected since the names were listed.
            return None
        except FormatError as error:
            return str(error)
        return version if version.model == self._model else None
