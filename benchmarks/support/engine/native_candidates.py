"""The candidates that run in our own environment, for one dataset."""

from pathlib import Path
from typing import Any

from benchmarks.support.embedding.cells import TableShape
from benchmarks.support.engine.c_stores import STORES, CStore, StoreMissingError
from benchmarks.support.engine.candidate import Candidate
from benchmarks.support.engine.dataset import Dataset
from benchmarks.support.engine.engine_candidates import (
    CACHED_SHARES,
    GatherLimit,
    MappedNumPy,
    RedisTier,
    ThroughC,
    ThroughPython,
)


def make_candidates(
    *, folder: str, tables: dict[str, Any], shares: list[float], num_threads: int, redis_url: str | None = None
) -> tuple[list[Candidate], list[str]]:
    """Returns the candidates, and why some could not be made; with a URL only those of the Redis tier.

    Stores are filled the first time.
    """
    dataset = Dataset(Path(folder), TableShape(**tables), tuple(shares))
    threads = {"num_threads": num_threads}
    if redis_url:
        return [RedisTier(dataset, url=redis_url, cached_share=share, **threads) for share in CACHED_SHARES], []
    candidates: list[Candidate] = [
        GatherLimit(dataset, in_huge_pages=True, **threads),
        GatherLimit(dataset, in_huge_pages=False, **threads),
        ThroughC(dataset, memory="pin", num_deltas=0, **threads),
        ThroughC(dataset, memory="map", num_deltas=0, **threads),
        *(
            ThroughC(dataset, memory=memory, num_deltas=count, **threads)
            for count in (1, 8)
            for memory in ("pin", "map")
            if count <= len(shares)
        ),
        ThroughPython(dataset, **threads),
        MappedNumPy(dataset),
    ]
    notes = []
    for store, package in STORES:
        try:
            made = CStore(store, package, dataset)
            made.build()
            candidates.append(made)
        except StoreMissingError as exc:
            notes.append(str(exc))
    return candidates, notes
