from pathlib import Path

from rankhouse.cli.export import delta_summary
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.maintenance.collection import collect_garbage
from rankhouse.embedding_cache.maintenance.inventory import additions
from tests.embedding_cache.maintenance.chain import write_chain


def test_a_delta_is_told_also_when_its_parent_was_collected(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    _, parent, version = write_chain(store, tmp_path / "parts")
    (_, added) = additions([parent, version])
    assert f"tombstones beyond {parent.name}, {added.num_bytes:,} bytes; " in delta_summary(store.location, version)
    collect_garbage(store, keep=1)
    rows = sum(table.num_rows for table in version.tables)
    assert delta_summary(store.location, version) == (
        f"a delta beyond {parent.name}; {version.num_bytes:,} bytes, {rows} rows in 2 tables in all"
    )
