"""Who is at work in a bucket, told by small objects: writers and collections meet without locks.

    versions/.<name>               a claim: a writer that is about to put this version; the paths of the shared files
                                   that it relies on, a line each
    versions/.collection-<hex>     an announcement: a collection that is about to remove files; their paths, a line each
    versions/<name>/manifest.json  of the content `ABANDONED`: this version was given up and can never appear

Everything rests on one rule: each writes its own object first and looks for the others' then, so of two that meet at
least one sees the other. Storages show in a list what was put before it began. FORMAT.md says what follows from that.
"""

import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rankhouse.embedding_cache.format.errors import ContentError, StorageError
from rankhouse.embedding_cache.format.files import MANIFEST_NAME
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.store_layout import ABANDONED, ANNOUNCEMENT, VERSIONS, oldest_first
from rankhouse.embedding_cache.format.version_record import is_version_name, sequence_of

# A writer takes a collection for dead whose announcement is there for that long. The collection removes nothing more
# after a third of it, so a removal that it began has ten minutes to take effect: longer than any client tries.
ANNOUNCED_SECONDS = 900.0

# How long a version that must be the newest waits for those that claimed lower numbers.
EARLIER_SECONDS = 600.0

_POLL_SECONDS = 1.0

_CLAIM = re.compile(r"\.(\d{6,}-[0-9a-f]{8})")


@dataclass(frozen=True)
class Sight:
    """What one listing of `versions/` shows.

    Attributes:
        versions: The names of those that exist, oldest first.
        abandoned: The names of those that never can.
        claims: The names that writers have claimed.
        started: The names of all that have a claim or any file.
        announcements: The names of the objects by which collections announce removals.
    """

    versions: list[str]
    abandoned: frozenset[str]
    claims: frozenset[str]
    started: frozenset[str]
    announcements: frozenset[str]

    @property
    def next_sequence(self) -> int:
        """A number above all that were ever taken, as far as can be seen."""
        return max(map(sequence_of, self.started), default=0) + 1

    def is_ahead(self, name: str) -> bool:
        """Says whether a claim's number is above all others."""
        return all(sequence_of(other) < sequence_of(name) for other in self.started - {name})

    def is_open(self, name: str) -> bool:
        """Says whether a claim still counts: nobody removed it or gave its version up."""
        return name in self.claims and name not in self.abandoned


class BucketClaims:
    """The claims and announcements in a bucket. Any thread may use it."""

    def __init__(self, objects: ObjectStorage) -> None:
        self._objects = objects

    def look(self) -> Sight:
        """Lists the versions and who is at work.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        versions, abandoned, claims, started, announcements = [], set(), set(), set(), set()
        for path, found in self._objects.listing(VERSIONS).items():
            folder, _, file = path.partition("/")
            if is_version_name(folder):
                started.add(folder)
                if file == MANIFEST_NAME and found.bytes == len(ABANDONED):
                    abandoned.add(folder)
                elif file == MANIFEST_NAME:
                    versions.append(folder)
            elif claim := _CLAIM.fullmatch(path):
                claims.add(claim[1])
            elif path.startswith(ANNOUNCEMENT):
                announcements.add(path)
        return Sight(
            oldest_first(versions),
            frozenset(abandoned),
            frozenset(claims),
            frozenset(started | claims),
            frozenset(announcements),
        )

    def put(self, name: str, files: Collection[str]) -> None:
        """Claims a version's name and the shared files that it relies on."""
        self._objects.write(claim_path(name), "\n".join(files).encode())

    def drop(self, name: str) -> None:
        """Removes a claim that does not count any more; where that fails, a collection does it later."""
        with suppress(StorageError):
            self._objects.delete(claim_path(name))

    def claimed(self) -> dict[str, frozenset[str]]:
        """Reads all claims: path of the claim to paths of the files."""
        return {claim_path(name): self._files(claim_path(name)) for name in sorted(self.look().claims)}

    def abandon(self, name: str) -> bool:
        """Gives a version up whose writer seems dead: its manifest cannot be created any more.

        Returns:
            Whether it is given up; not if its manifest is there.
        """
        manifest = f"{VERSIONS}/{name}/{MANIFEST_NAME}"
        found = self._objects.size(manifest)
        if found is not None:  # Where creation is not exclusive it would replace the manifest.
            return found == len(ABANDONED)
        return self._objects.create(manifest, ABANDONED)

    @contextmanager
    def announced(self, files: Collection[str]) -> Iterator[Callable[[], bool]]:
        """Announces a removal; what the block is given says whether it may remove more.

        If the block fails, the announcement stays: a removal may still be on its way.
        """
        path = f"{VERSIONS}/{ANNOUNCEMENT}{uuid.uuid4().hex}"
        begin = time.monotonic()
        self._objects.write(path, "\n".join(files).encode())
        yield lambda: time.monotonic() - begin < ANNOUNCED_SECONDS / 3
        self._objects.delete(path)

    def wait_for_removals(self, files: Collection[str]) -> None:
        """Waits until no collection is about to remove one of these files; one that died is waited for in vain."""
        first_seen: dict[str, float] = {}

        def is_in_the_way(name: str) -> bool:
            seen_for = time.monotonic() - first_seen.setdefault(name, time.monotonic())
            return seen_for < ANNOUNCED_SECONDS and not self._files(f"{VERSIONS}/{name}").isdisjoint(files)

        # All of them each time: several dead ones are waited for together.
        while sum(map(is_in_the_way, self.look().announcements)):
            time.sleep(_POLL_SECONDS)

    def wait_for_earlier(self, name: str) -> None:
        """Waits until no version of a lower number than a claimed one can appear any more.

        Raises:
            ContentError: That takes too long.
        """
        begin = time.monotonic()
        while earlier := self._earlier(name):
            if time.monotonic() - begin > EARLIER_SECONDS:
                raise ContentError(
                    f"{self._objects.url}/{claim_path(earlier[0])}: its writer began before and has not finished: try "
                    "again later, or, if it died, remove its claim with `rankhouse version gc` and a shorter grace"
                )
            time.sleep(_POLL_SECONDS)

    def _earlier(self, name: str) -> list[str]:
        sight = self.look()
        pending = sight.claims - sight.abandoned - set(sight.versions)
        return oldest_first(other for other in pending if sequence_of(other) < sequence_of(name))

    def _files(self, path: str) -> frozenset[str]:
        """What a claim or an announcement names; nothing if it has just gone."""
        return frozenset((self._objects.read(path) or b"").decode().splitlines())


def claim_path(name: str) -> str:
    """Where a claim lies in the store."""
    return f"{VERSIONS}/.{name}"


def claimed_name(path: str) -> str | None:
    """The version that a path in the store belongs to, as its claim or its folder; None if it is neither."""
    name = path.removeprefix(f"{VERSIONS}/").removeprefix(".")
    return name if path.startswith(f"{VERSIONS}/") and is_version_name(name) else None
