"""Brings versions from where they are written to where they are served: late, damaged, in another order, or twice."""

import os
import shutil
from pathlib import Path

from rankhouse.embedding_cache.format.store_layout import VERSIONS
from rankhouse.embedding_cache.format.version import VersionStore


class Courier:
    """Copies files one by one, each complete when it appears. `segments` are brought before the version's folder.

    Args:
        origin: The store that versions are written to.
        target: The store that is served.
    """

    def __init__(self, origin: Path, target: Path) -> None:
        self._origin, self._target = origin, target
        (target / VERSIONS).mkdir(parents=True)

    def bring(self, name: str) -> None:
        """Everything, in order. What is there is written again."""
        self.bring_shared(name)
        self.bring_folder(name)

    def bring_folder(self, name: str) -> None:
        """The version's own files, as one."""
        folder, new = self._target / VERSIONS / name, self._target / f"{name}.new"
        shutil.copytree(self._origin / VERSIONS / name, new)
        if folder.exists():
            for path in new.iterdir():
                os.replace(path, folder / path.name)
            new.rmdir()
        else:
            new.rename(folder)

    def bring_shared(self, name: str, *, is_damaged: bool = False) -> None:
        """The rows that only it, of all that was brought before, is made of, or all if there are none."""
        for path in self._shared(name):
            content = (self._origin / path).read_bytes()
            if is_damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            temporary = self._target / f"{path}.new"
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(content)
            os.replace(temporary, self._target / path)

    def _shared(self, name: str) -> list[str]:
        store = VersionStore(self._origin)
        version = store.read(name)
        of_parent = version.parent.name if version.parent is not None else None
        known = store.read(of_parent).files() if of_parent else {}
        return [path for path in version.files() if not path.startswith(f"{VERSIONS}/") and path not in known]
