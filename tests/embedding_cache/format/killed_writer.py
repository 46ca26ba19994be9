"""Writes versions and is killed: `python -m ... URL FOLDER`.

For each number from the standard input, a process writes a version and ends, without clean-up, before its call to the
storage of this number. Prints "killed" or "done" for each.
"""

import os
import sys
from pathlib import Path
from typing import Any

import fsspec

from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.version import VersionStore
from tests.embedding_cache.format.small_store import small_content

KILLED = 9
CALLS = ("listing", "size", "read", "put", "write", "create", "delete")


def kill_before(call: int) -> None:
    left = call

    def counted(name: str) -> None:
        method = getattr(ObjectStorage, name)

        def run(*arguments: Any) -> Any:
            nonlocal left
            if left == 0:
                os._exit(KILLED)
            left -= 1
            return method(*arguments)

        setattr(ObjectStorage, name, run)

    for name in CALLS:
        counted(name)


def main(url: str, folder: Path) -> None:
    fsspec.get_filesystem_class("s3")  # Imported once for all children.
    for line in sys.stdin:
        # The parent never talks to the storage itself: its client does not survive a fork.
        child = os.fork()
        if child == 0:
            kill_before(int(line))
            content = small_content(folder / "parts", first=float(line))
            VersionStore(url, cache=folder / "mirror").write(content)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print({0: "done", KILLED: "killed"}.get(status, f"status {status}"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
