import asyncio
from collections.abc import Awaitable, Callable

import pytest

from rankhouse.serving.errors import ServingError
from rankhouse.serving.refresh import quarantine as quarantine_module
from rankhouse.serving.refresh.quarantine import Quarantine

NAME, BYTES, OTHERS = "000001-aaaaaaaa", (("a", 1, 0, 0, 0),), (("a", 2, 0, 0, 0),)


def test_what_the_state_lets_out_is_out() -> None:
    quarantine = Quarantine()
    assert quarantine.follow({NAME: "bad"}) == []
    assert NAME in quarantine
    assert quarantine.reasons == {NAME: "bad"}
    assert quarantine.follow({}) == [NAME]
    assert NAME not in quarantine


def test_own_findings_stay_until_the_state_has_had_them() -> None:
    quarantine = Quarantine()
    quarantine.take_in(NAME, "bad", BYTES)
    assert quarantine.follow({}) == []
    assert NAME in quarantine


def test_the_stable_version_is_never_in_it() -> None:
    quarantine = Quarantine()
    assert quarantine.take_in(NAME, "bad", BYTES)
    assert quarantine.follow({}, stable=NAME) == [NAME], "others found it good"
    assert not quarantine.take_in(NAME, "bad", BYTES)
    assert NAME not in quarantine


def test_other_bytes_let_it_out() -> None:
    quarantine = Quarantine()
    quarantine.follow({NAME: "bad"})
    assert not quarantine.note_signature(NAME, BYTES), "what it was before is not known"
    assert not quarantine.note_signature(NAME, BYTES)
    assert quarantine.note_signature(NAME, OTHERS)
    assert NAME not in quarantine


def test_the_state_is_told_until_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine_module, "_AGAIN_SECONDS", 0.001)
    told: list[tuple[str, str, str]] = []

    def listener(what: str) -> Callable[[str, str], Awaitable[None]]:
        async def listen(name: str, reason: str) -> None:
            told.append((what, name, reason))
            if len(told) < 3:
                raise ServingError("the store is away")

        return listen

    async def run() -> None:
        quarantine = Quarantine(announce=listener("in"), release=listener("out"))
        quarantine.take_in(NAME, "bad", BYTES)
        while len(told) < 3:
            await asyncio.sleep(0.001)
        quarantine.follow({NAME: "bad"})
        assert quarantine.note_signature(NAME, OTHERS)
        while len(told) < 4:
            await asyncio.sleep(0.001)
        quarantine.close()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert told == [("in", NAME, "bad")] * 3 + [("out", NAME, "its files changed")]
