"""Which versions stay loaded: what routing needs, then earlier ones for an instant rollback, within a budget."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.format.version_record import sequence_of


@dataclass(frozen=True)
class Footprint:
    """What a loaded version takes.

    Attributes:
        own_bytes: Bytes of the files that no other version can share: the dense part above all.
        shared: Bytes of the files that it may share with others, by SHA-256.
    """

    own_bytes: int
    shared: Mapping[str, int]

    def alone(self, others: Iterable["Footprint"]) -> int:
        """The bytes that would be free if it went, while the others stay."""
        held = {sha256 for other in others for sha256 in other.shared}
        return self.own_bytes + sum(size for sha256, size in self.shared.items() if sha256 not in held)


def footprint_of(version: Version) -> Footprint:
    """Measures a version by its manifest."""
    own = sum(file.bytes for file in version.manifest.files.values())
    return Footprint(own, {file.sha256: file.bytes for file in version.record.shared_files})


def surplus(
    loaded: Mapping[str, Footprint], *, needed: Collection[str], earlier: Sequence[str], keep_loaded_bytes: int
) -> tuple[str, ...]:
    """Says what is to be unloaded, in this order: what nobody may go back to, then earlier versions, oldest first.

    Args:
        loaded: The loaded versions.
        needed: Those that must stay, whatever they take.
        earlier: Versions to go back to, newest first; they stay as long as they fit, and after the first that does not
            fit none does, so that what stays is always the newest.
        keep_loaded_bytes: What these may take, besides what they share with those that are needed.
    """
    kept = [footprint for name, footprint in loaded.items() if name in needed]
    left = keep_loaded_bytes
    too_much: list[str] = []
    for name in earlier:
        if name in needed or name not in loaded:
            continue
        size = loaded[name].alone(kept)
        if too_much or size > left:
            too_much.append(name)
        else:
            left -= size
            kept.append(loaded[name])
    strangers = sorted(loaded.keys() - set(needed) - set(earlier), key=sequence_of)
    return (*strangers, *reversed(too_much))
