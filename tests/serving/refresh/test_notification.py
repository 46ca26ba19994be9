import asyncio
import shutil
from pathlib import Path

from rankhouse.serving.refresh.notification import FolderNotification


def test_a_name_that_is_moved_in_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "versions"

    async def run() -> None:
        told = asyncio.Event()
        notification = FolderNotification(folder, told.set)
        notification.find()  # It does not exist yet.
        notification.keep()
        for _ in range(2):
            folder.mkdir()
            for _ in range(2):
                notification.find()
                notification.keep()
            (folder / ".tmp").mkdir()
            (folder / ".tmp").rename(folder / "000001-aaaaaaaa")
            await asyncio.wait_for(told.wait(), 60)
            told.clear()
            shutil.rmtree(folder)  # Another one takes its name.
        notification.close()
        notification.close()

    asyncio.run(run())


def test_what_cannot_be_watched_tells_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        notification = FolderNotification(tmp_path / "nowhere", lambda: None)
        notification.find()
        notification.keep()
        notification.close()

    asyncio.run(run())
