"""Being told by the kernel when a name appears in a folder, so that a new version need not wait for the next look.

Looks go on by time all the same: disks on a network and buckets tell nothing, and neither does a copy that is made in
place.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

_IN_MOVED_TO = 0x80
_EVENT_BYTES = 1 << 16
_libc = ctypes.CDLL(None, use_errno=True)


class FolderNotification:
    """Watches one folder for names that are moved into it, as a version is when it is complete.

    For the event loop's thread, but for `find`. Where the kernel cannot watch, nothing is ever told.

    Args:
        folder: The folder; it need not exist yet.
        on_name: Called when something was moved into it.
    """

    def __init__(self, folder: Path, on_name: Callable[[], None]) -> None:
        self._folder = folder
        self._on_name = on_name
        self._watched: tuple[int, int] | None = None  # Device and inode.
        self._found: tuple[int, int] | None = None
        self._next = -1
        self._descriptor = -1

    def find(self) -> None:
        """Looks which folder has the name now. Blocks where a disk does: call it in a thread, and `keep` after it."""
        try:
            found = self._folder.stat()
        except OSError:
            return
        if (found.st_dev, found.st_ino) == self._watched or self._next >= 0:
            return
        descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if descriptor < 0:
            return
        if _libc.inotify_add_watch(descriptor, os.fsencode(self._folder), _IN_MOVED_TO) < 0:
            os.close(descriptor)
            return
        self._next, self._found = descriptor, (found.st_dev, found.st_ino)

    def keep(self) -> None:
        """Watches the folder that was found, if it is another one than before."""
        if self._next < 0:
            return
        self._stop()
        self._descriptor, self._watched, self._next = self._next, self._found, -1
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def close(self) -> None:
        """Ends watching. Harmless when repeated."""
        self._stop()
        if self._next >= 0:
            os.close(self._next)
        self._next = -1

    def _stop(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
        self._descriptor, self._watched = -1, None

    def _read(self) -> None:
        os.read(self._descriptor, _EVENT_BYTES)
        self._on_name()
