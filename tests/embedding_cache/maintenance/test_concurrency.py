"""Writers, readers and collections at the same time, each a process of its own."""

import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np

from rankhouse.embedding_cache.format.records import TableContent
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.maintenance.verification import verify_versions
from tests.embedding_cache.maintenance.chain import write_whole

ROOT = Path(__file__).parents[3]

HEAD = """
import sys
from contextlib import suppress
from pathlib import Path
import numpy as np
from rankhouse.embedding_cache.format.errors import ContentError, FormatError
from rankhouse.embedding_cache.format.records import TableContent, TableDelta
from rankhouse.embedding_cache.format.version import DeltaContent, VersionStore
from rankhouse.embedding_cache.maintenance.collection import collect_garbage
from rankhouse.embedding_cache.maintenance.publication import compact_version, roll_back

root, number = Path(sys.argv[1]), int(sys.argv[2])
store = VersionStore(root / "store")
done = 0
"""

# All rows of a version hold one number, which its metrics name.
WRITER = """
while done < 12:
    name = store.names()[-1]
    try:
        parent = store.open(name, verify=False)
        if done % 6 == 4:
            with suppress(ContentError):  # The other writer made a newer one meanwhile.
                compact_version(store, parent.name)
        elif done % 6 == 5:
            roll_back(store, parent.name)
        else:
            value = 100 * number + done
            tables = [
                TableDelta(table.name, table.num_rows, np.arange(table.num_rows), [np.full(
                    (table.num_rows, table.dim), value, np.float32)])
                for table in parent.tables
            ]
            parts = root / "parts"
            content = DeltaContent(parts / "dense.onnx", parts, 2, tables, metrics={"value": value})
            store.write_delta(content, parent)
        done += 1
    except FormatError as error:  # The parent was collected meanwhile.
        assert name not in store.names(), f"{name} is there, but: {error}"
"""

# The writers make more than 20 versions, so it ends.
COLLECTOR = """
while done < 15:
    done += sum(item.kind == "version" for item in collect_garbage(store, keep=2, grace_seconds=0))
"""

READER = """
while done < 25:
    name = store.names()[-1]
    try:
        version = store.open(name)
        for table in version.tables:
            assert (version.rows(table.name, np.arange(table.num_rows)) == version.metrics["value"]).all()
        done += 1
    except FormatError as error:
        assert name not in store.names(), f"{name} is there, but: {error}"
"""


def finish(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Waits for all, and fails as soon as one does: without its writers, the collector would never end."""

    def wait(process: "subprocess.Popen[str]") -> None:
        _, error = process.communicate(timeout=800)
        assert process.returncode == 0, error

    with ThreadPoolExecutor(len(processes)) as pool:
        try:
            for ended in as_completed([pool.submit(wait, process) for process in processes]):
                ended.result()
        finally:
            for process in processes:
                process.kill()


def test_writers_readers_and_collections_do_not_harm_each_other(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    tables = [
        TableContent("T", 8, 3, [np.zeros((8, 3), np.float32)]),
        TableContent("U", 2, 2, [np.zeros((2, 2), np.float32)]),
    ]
    write_whole(store, tmp_path / "parts", tables=tables, features=[], metrics={"value": 0})
    jobs = [(WRITER, 1), (WRITER, 2), (READER, 0), (READER, 0), (COLLECTOR, 0)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", HEAD + job, str(tmp_path), str(number)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for job, number in jobs
    ]
    finish(processes)
    names = store.names()
    assert 21 <= int(names[-1].split("-")[0]) <= 25  # A whole version is not folded, nor one that is not the newest.
    assert verify_versions(store, names).damages == ()
