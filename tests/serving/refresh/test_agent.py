import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.serving.control import transitions
from rankhouse.serving.errors import GoldenMismatchError
from rankhouse.serving.golden import GoldenReport, replay_requests
from rankhouse.serving.model_repository import ensemble_name, written_versions
from rankhouse.serving.refresh import preparation
from rankhouse.serving.triton_server import TritonServer
from tests.serving.refresh.replica import replica
from tests.serving.small_version import MODEL, write_delta, write_version

pytestmark = pytest.mark.triton


def bring(version: Version, store: Path) -> None:
    """Copies a version and what it shares from the store where it was written, its manifest last."""
    for path in version.files():
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(version.store / path, store / path)
    bring_manifest(version, store)


def bring_manifest(version: Version, store: Path) -> None:
    """Copies a manifest alone, as it may be seen first over a network."""
    folder = store / version.path.relative_to(version.store)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(version.path / "manifest.json", folder / "manifest.json")


def flip(path: Path) -> None:
    """Changes the last byte of a file."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_new_versions_full_and_delta_are_served_as_they_come(tmp_path: Path, triton: TritonServer) -> None:
    async def run() -> None:
        async with replica(tmp_path, triton.grpc_url, triton.repository, is_shared=True) as one:
            whole = await asyncio.to_thread(write_version, tmp_path, seed=1)
            await one.serves(whole.name)
            delta = await asyncio.to_thread(write_delta, tmp_path, whole, seed=2)
            await one.serves(delta.name)
            await one.check_scores(whole.name, 1)
            await one.check_scores(delta.name, 2)
            assert one.agent.report().golden is not None
            assert one.agent.loaded == {whole.name, delta.name}
            # Back, at once: nothing is loaded for it.
            here = [one.reported()]
            one.set(transitions.rollback_to(one.state, whole.name, replicas=here, actor="test", now=0.0).state)
            assert (one.state.stable, one.agent.is_ready) == (whole.name, True)
            newest = await asyncio.to_thread(write_version, tmp_path, seed=3)
            await asyncio.sleep(0.3)
            assert newest.name not in one.agent.prepared, "refresh is held"
            assert one.state.stable == whole.name
            goes_on = msgspec.structs.replace(one.state.policy, is_held=False)
            one.set(transitions.set_policy(one.state, goes_on, actor="test", now=0.0).state)
            await one.serves(newest.name)

    VersionStore(tmp_path).storage.prepare()
    asyncio.run(run())


def test_new_versions_in_a_bucket_are_mirrored_and_served(
    rclone_url: str, tmp_path: Path, triton: TritonServer
) -> None:
    writer, mirrors = tmp_path / "writer", tmp_path / "mirrors"
    whole = write_version(writer, seed=4, url=rclone_url)

    async def run() -> None:
        options = {"cache": mirrors, "is_shared": True, "watch_seconds": 0.2}
        async with replica(rclone_url, triton.grpc_url, triton.repository, **options) as one:
            await one.serves(whole.name)
            delta = await asyncio.to_thread(write_delta, writer, whole, seed=5, url=rclone_url)
            await one.serves(delta.name)
            await one.check_scores(delta.name, 5)

    asyncio.run(run())


def test_a_delta_waits_for_its_files_and_an_older_version_is_never_admitted(
    tmp_path: Path, triton: TritonServer
) -> None:
    writer, store = tmp_path / "writer", tmp_path / "store"
    whole = write_version(writer, seed=1)
    parent = write_delta(writer, whole, seed=2)
    child = write_delta(writer, parent, seed=3)
    bring(whole, store)

    async def run() -> None:
        async with replica(store, triton.grpc_url, triton.repository, is_shared=True, waiting_limit_seconds=0.1) as one:
            await one.serves(whole.name)
            bring_manifest(child, store)
            await one.eventually(lambda: child.name in one.agent.report().failed)
            report = one.agent.report()
            assert report.preparing[child.name].startswith(f"waiting for its parent {parent.name} and ")
            assert one.state.stable == whole.name
            assert one.agent.is_ready
            bring(child, store)  # All files that it names, so it is complete without its parent's manifest.
            await one.serves(child.name)
            await one.check_scores(child.name, 3)
            bring(parent, store)
            bring(child, store)  # Twice.
            await asyncio.sleep(0.5)
            assert one.state.stable == child.name
            assert parent.name not in one.agent.prepared

    asyncio.run(run())


def test_a_corrupt_version_is_quarantined_until_its_bytes_change(tmp_path: Path, triton: TritonServer) -> None:
    writer, store = tmp_path / "writer", tmp_path / "store"
    good, bad, newer = (write_version(writer, seed=seed) for seed in (1, 2, 3))
    bring(good, store)
    bring(bad, store)
    damaged = store / bad.dense_path.relative_to(writer)
    flip(damaged)

    async def run() -> None:
        async with replica(store, triton.grpc_url, triton.repository, is_shared=True) as one:
            await one.serves(good.name)
            await one.eventually(lambda: bad.name in one.state.quarantined)
            assert "dense.onnx: its content was altered" in one.state.quarantined[bad.name]
            assert bad.name not in one.agent.report().failed
            flip(damaged)
            await one.serves(bad.name)
            assert one.state.quarantined == {}
            await one.check_scores(bad.name, 2)
            bring(newer, store)
            (store / newer.path.relative_to(writer) / "manifest.json").write_bytes(b"{")
            await one.eventually(lambda: newer.name in one.state.quarantined)
            assert "manifest.json" in one.state.quarantined[newer.name]
            bring_manifest(newer, store)
            await one.serves(newer.name)

    asyncio.run(run())


def test_a_corrupt_stable_version_is_tried_until_it_is_whole(tmp_path: Path, triton: TritonServer) -> None:
    store = tmp_path / "store"
    stable = write_version(store, seed=1)
    flip(stable.dense_path)

    async def run() -> None:
        async with replica(store, triton.grpc_url, triton.repository, is_shared=True) as one:
            one.set(transitions.admit(one.state, stable.name, now=0.0).state)
            await one.eventually(lambda: one.agent.report().attempts.get(stable.name, 0) >= 2)
            assert "dense.onnx: its content was altered" in one.agent.report().failed[stable.name]
            assert one.agent.report().quarantined == {}
            flip(stable.dense_path)
            await one.eventually(lambda: one.agent.is_ready)
            await one.check_scores(stable.name, 1)

    asyncio.run(run())


def test_wrong_golden_scores_are_never_served(tmp_path: Path, triton: TritonServer) -> None:
    async def run() -> None:
        async with replica(tmp_path, triton.grpc_url, triton.repository, is_shared=True) as one:
            await one.serves(good.name)
            wrong = await asyncio.to_thread(write_delta, tmp_path, good, seed=2, wrong_by=2e-5)
            await one.eventually(lambda: wrong.name in one.state.quarantined)
            assert "takes no traffic: golden request 0" in one.state.quarantined[wrong.name]
            assert one.state.stable == good.name
            assert all(wrong.name not in loaded for loaded in one.history)
            await one.eventually(lambda: wrong.name not in written_versions(MODEL, triton.repository))
            assert not await one.client.is_ready(ensemble_name(MODEL, wrong.name))
            one.set(transitions.release(one.state, wrong.name, actor="test", now=0.0).state)
            await one.eventually(lambda: wrong.name in one.state.quarantined)

    good = write_version(tmp_path, seed=1)
    asyncio.run(run())


def test_a_stable_version_that_scores_wrongly_is_loaded_anew(
    tmp_path: Path, triton: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not quarantined, as it is needed; and what Triton has of it may be what is wrong."""
    stable = write_version(tmp_path, seed=1)
    ensemble, loads, faults = ensemble_name(MODEL, stable.name), [], iter([GoldenMismatchError("other scores")])

    async def replay(*arguments: Any, **options: Any) -> GoldenReport:
        if (fault := next(faults, None)) is not None:
            raise fault
        return await replay_requests(*arguments, **options)

    async def run() -> None:
        async with replica(tmp_path, triton.grpc_url, triton.repository, is_shared=True) as one:
            load = one.client.load

            async def counted(name: str, **options: Any) -> None:
                loads.append(name)
                await load(name, **options)

            monkeypatch.setattr(one.client, "load", counted)
            one.set(transitions.admit(one.state, stable.name, now=0.0).state)
            await one.serves(stable.name)
            await one.check_scores(stable.name, 1)
            assert not one.state.quarantined
            assert loads == [ensemble, ensemble]

    monkeypatch.setattr(preparation, "replay_requests", replay)
    asyncio.run(run())


def test_what_is_over_the_budget_is_unloaded_in_order(tmp_path: Path, triton: TritonServer) -> None:
    versions = [write_version(tmp_path, seed=1)]

    async def run() -> None:
        async with replica(tmp_path, triton.grpc_url, triton.repository, is_shared=True, keep_loaded_bytes=0) as one:
            await one.serves(versions[0].name)
            for seed in (2, 3):
                versions.append(await asyncio.to_thread(write_delta, tmp_path, versions[-1], seed=seed))
                await one.serves(versions[-1].name)
            await one.eventually(lambda: set(one.agent.prepared) == {versions[-1].name})
            assert one.drained == [version.name for version in versions[:2]]
            assert not await one.client.is_ready(ensemble_name(MODEL, versions[0].name))
            await one.eventually(lambda: versions[1].name not in written_versions(MODEL, triton.repository))
            await one.check_scores(versions[-1].name, 3)

    asyncio.run(run())


def test_triton_killed_while_it_loads_hung_and_started_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    first = write_version(store, seed=1)

    async def run(server: TritonServer) -> None:
        async with replica(store, server.grpc_url, server.repository) as one:
            await one.serves(first.name)
            pid = server.process.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            second = await asyncio.to_thread(write_delta, store, first, seed=2)
            await one.eventually(lambda: one.agent.report().preparing.get(second.name) == "loading")
            await one.eventually(lambda: not one.agent.is_ready)
            os.kill(pid, signal.SIGKILL)
            await one.eventually(lambda: second.name in one.agent.report().failed)
            assert one.state.stable == first.name
            one.history.clear()
            server.stop()
            await asyncio.to_thread(server.start)
            await one.serves(second.name)
            await one.check_scores(second.name, 2)
            await one.check_scores(first.name, 1)
            loaded = [names for names in one.history if names]
            assert loaded[-1] == {first.name, second.name}

    with TritonServer(tmp_path / "models", run_dir=tmp_path) as server:
        asyncio.run(run(server))


def test_what_an_earlier_gateway_left_is_unloaded(tmp_path: Path) -> None:
    store = tmp_path / "store"
    old, new = write_version(store, seed=1), write_version(store, seed=2)

    async def run(server: TritonServer) -> None:
        async with replica(store, server.grpc_url, server.repository) as one:
            one.set(transitions.admit(one.state, old.name, now=0.0).state)
            await one.serves(new.name)
            await one.eventually(lambda: old.name in one.agent.loaded)
        # Nobody unloads it: this gateway was killed, as it were.
        async with replica(store, server.grpc_url, server.repository) as another:
            await another.serves(new.name)
            await another.eventually(lambda: written_versions(MODEL, server.repository) == [new.name])
            assert not await another.client.is_ready(ensemble_name(MODEL, old.name))

    with TritonServer(tmp_path / "models", run_dir=tmp_path) as server:
        asyncio.run(run(server))
