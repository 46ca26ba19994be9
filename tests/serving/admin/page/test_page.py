"""The operations page in a real browser, over a real admin port and a real state store."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from rankhouse.serving.admin.operations_page import PAGE
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, ModelState
from rankhouse.serving.control.state_store import StateStore, change_state
from rankhouse.serving.control.state_stores import open_state_store
from tests.serving.admin.page.browser import Browser, Page, until
from tests.serving.admin.page.conftest import SignIn
from tests.serving.admin.page.scene import BROKEN, GOOD, NEWEST, Scene
from tests.serving.admin.page.scene import MODEL as SCENE_MODEL
from tests.serving.admin.world import MODEL, V1, V2, V3, RunningAdmin, has_stable, reports

YAML = f"candidate: {V3}\nsteps: [{{weight: 5, pause: 10m}}, {{weight: 100}}]\n"
EVIL = "<script>window.stolen = 1</script><img src=x onerror='window.stolen = 1'>"


def operator(admin: RunningAdmin, name: str = "ann", role: str = "operator") -> str:
    """Makes a key."""
    with admin.client() as client:
        return str(client.post("/keys", json={"name": name, "role": role}).json()["key"])


def confirm(page: Page, label: str, reason: str) -> None:
    """Gives a reason and confirms; waits until the dialog has gone."""
    page.wait("document.querySelector('#confirmation').open")
    page.fill("#reason", reason)
    page.click(label, "#confirmation")
    page.wait("!document.querySelector('#confirmation').open")


def start(page: Page, yaml: str = YAML, reason: str = "a test") -> None:
    page.click("Start a rollout")
    page.fill("#spec", yaml)
    page.click("Check", "#starting")
    page.wait("!document.querySelector('#plan').hidden")
    page.fill("#start-reason", reason)
    page.click("Start it", "#starting")
    page.wait("!document.querySelector('#starting').open")


def test_it_shows_what_the_state_says_and_asks_nobody_else(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in()
    page.wait_for_text(MODEL, "#model")
    page.wait_for_text("Live", "#liveness")
    assert V2 in page.text("#summary")
    assert "100 % stable" in page.text("#summary")
    assert page.names(".version-row .version-what .version") == [V3, V2, V1]
    assert "loaded on the replica" in page.text("#versions")
    assert "no rollout" in page.text("#rollouts")
    until(lambda: page.evaluate("1") and sum(url.endswith("/overview") for url in page.urls) > 1, "it polls")
    asked = [url for url in page.urls if not url.startswith("data:")]
    assert all(url.startswith(f"{admin.url}/") for url in asked), asked
    assert not [url for url in page.urls if admin.key in url]
    assert not page.complaints


def test_a_viewer_sees_everything_and_no_command(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in(operator(admin, "vic", "viewer"))
    page.wait_for_text("viewer", "#caller")
    page.wait_for_text(V3, "#versions")
    assert {"Start a rollout", "Hold refresh", "Roll back to it", "Quarantine"}.isdisjoint(page.names("button"))
    assert not page.evaluate("document.querySelectorAll('[data-command]').length")


def test_a_rollout_is_started_paused_resumed_and_aborted(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in(operator(admin))
    start(page, reason="new features")
    page.wait_for_text("waiting for replicas", ".rollout")
    page.click("Pause", ".rollout")
    assert "keeps its 0 %" in page.text("#confirmation-effects")
    confirm(page, "Pause", "lunch")
    page.wait_for_text("paused", ".rollout")
    page.click("Resume", ".rollout")
    confirm(page, "Resume", "back again")
    page.wait_for_text("waiting for replicas", ".rollout")
    page.click("Abort", ".rollout")
    confirm(page, "Abort the rollout", "wrong candidate")
    page.wait_for_text("rolled back", "#rollouts")
    with admin.client() as client:
        events = [(each["kind"], each["actor"], each["reason"]) for each in client.get("/history").json()]
    mine = [each for each in events if each[1] == "ann"]
    told = [
        ("rolled_back", "wrong candidate"),
        ("resumed", "back again"),
        ("paused", "lunch"),
        ("started", "new features"),
    ]
    assert [(kind, reason) for kind, _, reason in mine if kind != "policy_changed"] == told
    page.wait_for_text("wrong candidate", "#history")


def test_before_a_start_it_says_what_will_happen(sign_in: SignIn) -> None:
    page = sign_in()
    page.click("Start a rollout")
    page.fill("#spec", YAML.replace(V3, "latest"))
    page.click("Check", "#starting")
    page.wait_for_text(f"5 % of the users get {V3}, for 10 min", "#plan-effects")
    assert f"{V3} becomes the stable version in place of {V2}" in page.text("#plan-effects")
    page.fill("#spec", "something else")
    assert page.evaluate("document.querySelector('#starting-confirm').disabled")
    page.press("Escape", 27)
    page.wait("!document.querySelector('#starting').open")


def test_the_api_s_errors_are_shown_as_they_are(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in()
    page.click("Start a rollout")
    page.fill("#spec", YAML.replace("weight", "wieght", 1))
    page.click("Check", "#starting")
    page.wait_for_text("unknown key 'wieght'; did you mean weight?", "#starting-problem")
    assert page.evaluate("document.querySelector('#starting-confirm').disabled")
    page.fill("#spec", YAML.replace(V3, V2))
    page.click("Check", "#starting")
    page.wait_for_text(V2, "#starting-problem")
    with admin.client() as client:
        assert client.get("/history").json() == []


def test_a_command_needs_a_reason(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in()
    page.click("Hold refresh")
    page.click("Hold refresh", "#confirmation")
    page.wait_for_text("Say why", "#confirmation-problem")
    confirm(page, "Hold refresh", "the night job writes rubbish")
    page.wait_for_text("held", "#summary")
    page.click("Resume refresh")
    confirm(page, "Resume refresh", "it is fixed")
    page.wait_for_text("new versions become stable", "#summary")
    with admin.client() as client:
        assert [each["reason"] for each in client.get("/history").json()] == [
            "it is fixed",
            "the night job writes rubbish",
        ]


def test_a_command_that_came_too_late_says_so(sign_in: SignIn, store: StateStore) -> None:
    page = sign_in()
    start(page)
    page.click("Pause", ".rollout")
    page.fill("#reason", "too slow")
    change_state(store, MODEL, lambda state: transitions.abort(state, "r000001", actor="eve", now=time.time()))
    page.click("Pause", "#confirmation")
    page.wait_for_text("No such rollout", "#confirmation-problem")
    page.click("Cancel", "#confirmation")
    page.wait_for_text("rolled back", "#rollouts")


def test_it_rolls_back_to_an_earlier_version(sign_in: SignIn, store: StateStore) -> None:
    page = sign_in()
    page.click("Roll back to it")
    page.wait_for_text(f"All users get {V1} at once", "#confirmation-effects")
    confirm(page, f"Roll back to {V1}", "complaints")
    page.wait_for_text(V1, "#summary")
    assert store.read(MODEL).state.stable == V1
    page.wait_for_text("refresh is held", "#warnings")
    # What was stable is not merely one of the store's versions, and may be tried again.
    page.wait_for_text("taken back", "#versions")
    assert "so refresh never admits it; a rollout of it may be started" in page.text("#versions")
    assert "Roll out" in page.names("#versions button")


def test_what_comes_from_outside_stays_text(sign_in: SignIn, store: StateStore) -> None:
    reports(store, f"two{EVIL}", loaded=(V1,), failed={V2: EVIL}, preparing={V3: EVIL}, urls={"rest": EVIL})
    change_state(
        store, MODEL, lambda state: transitions.quarantine(state, V1, actor=EVIL, now=time.time(), reason=EVIL)
    )
    page = sign_in()
    start(page, reason=EVIL)
    page.wait_for_text(EVIL, "#history")
    page.wait_for_text(EVIL, ".rollout")
    for place in ("#warnings", "#versions", "#replicas"):
        assert EVIL in page.text(place), place
    assert page.evaluate("window.stolen === undefined")
    assert page.evaluate("document.querySelectorAll('#operations img, #operations script').length") == 0


def test_a_wrong_key_is_refused_and_not_kept(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in("rhk_wrong")
    page.wait_for_text("the key is not known", "#sign-in-problem")
    assert page.evaluate("sessionStorage.length") == 0
    page.fill("#key", "two words")
    page.press("Enter", 13)
    page.wait_for_text("one word", "#sign-in-problem")
    page.fill("#key", admin.key)
    page.press("Enter", 13)
    page.wait_for_text(MODEL, "#model")


def test_a_key_outlives_a_reload_and_not_a_sign_out(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in()
    page.wait_for_text(MODEL, "#model")
    page.open(admin.url)
    page.wait_for_text(MODEL, "#model")
    page.click("Sign out")
    page.wait("!document.querySelector('#sign-in').hidden")
    page.open(admin.url)
    page.wait("!document.querySelector('#sign-in').hidden")
    assert page.evaluate("document.querySelector('#operations').hidden")


def test_a_revoked_key_signs_out(sign_in: SignIn, admin: RunningAdmin) -> None:
    page = sign_in(operator(admin))
    page.wait_for_text(MODEL, "#model")
    with admin.client() as client:
        client.delete("/keys/ann")
    page.wait_for_text("was revoked", "#sign-in-problem")


def test_a_gateway_that_went_is_said_and_commands_wait(store: StateStore, browser: Browser, tmp_path: Path) -> None:
    has_stable(store)
    reports(store)
    with RunningAdmin(store, tmp_path, page=PAGE) as admin:
        page = browser.page()
        page.open(admin.url)
        page.fill("#key", admin.key)
        page.press("Enter", 13)
        page.wait_for_text(MODEL, "#model")
        page.wait_for_text("Hold refresh", "#summary")
    page.wait_for_text("The gateway cannot be reached since", "#trouble")
    page.wait_for_text("Stale", "#liveness")
    page.wait_for_text("Next try in", "#trouble")
    assert V1 in page.text("#summary")
    assert page.evaluate("[...document.querySelectorAll('[data-command], #start')].every((each) => each.disabled)")


def test_a_state_store_that_went_is_said(sign_in: SignIn, tmp_path: Path) -> None:
    page = sign_in()
    page.wait_for_text(MODEL, "#model")
    (tmp_path / "state.db").rename(tmp_path / "elsewhere.db")
    page.wait_for_text("The gateway cannot say how things are", "#trouble")
    (tmp_path / "elsewhere.db").rename(tmp_path / "state.db")
    page.wait_for_text("Live", "#liveness")
    page.wait("document.querySelector('#trouble').hidden")


def test_one_version_and_no_replica_look_sensible(store: StateStore, browser: Browser, tmp_path: Path) -> None:
    has_stable(store)
    with RunningAdmin(store, tmp_path, page=PAGE) as admin:
        page = browser.page()
        page.open(admin.url)
        page.fill("#key", admin.key)
        page.press("Enter", 13)
        page.wait_for_text("There is one version only", "#rollouts")
        assert "No replica has said that it lives" in page.text("#replicas")
        assert "No request has been answered yet" in page.text("#numbers")
        assert "Nothing has happened yet" in page.text("#history")
        assert "no replica has said that it lives" in page.text("#warnings")
        assert not page.complaints


@pytest.mark.parametrize("width", [1280, 390])
def test_a_day_of_operations_fits(browser: Browser, tmp_path: Path, width: int) -> None:
    store = open_state_store(f"sqlite://{tmp_path}/day.db", timeout_seconds=60.0)
    scene = Scene(store, time.time())
    scene.play()
    with RunningAdmin(store, tmp_path, model=SCENE_MODEL, catalog=scene.catalog, page=PAGE) as admin:
        page = browser.page(width=width)
        page.open(admin.url)
        page.fill("#key", admin.key)
        page.press("Enter", 13)
        page.wait_for_text("Error rate", ".rollout")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('.band-chart .limit').length") >= 5
        assert page.evaluate("document.querySelectorAll('.band-history .band').length") >= 5
        assert page.evaluate("document.querySelectorAll('.traffic .area').length") >= 2
        assert f"delta on {GOOD}" in page.text("#versions")
        assert "golden request 3" in page.text("#versions")
        assert "Redis" in page.text("#tiers")
        page.wait_for_text(NEWEST, "#numbers")
        row = f"[...document.querySelectorAll('.version-row')].find((each) => each.innerText.includes('{BROKEN}'))"
        assert page.evaluate(f"{row}.querySelectorAll('.edge').length") >= 2
        assert not page.complaints
    store.close()


def test_older_history_is_a_page_away(sign_in: SignIn, store: StateStore) -> None:
    def turn(number: int) -> Callable[[ModelState], Change]:
        move = transitions.release if number % 2 else transitions.quarantine
        return lambda state: move(state, V3, actor="eve", now=float(number), reason=f"turn {number}.")

    for number in range(60):
        change_state(store, MODEL, turn(number))
    page = sign_in()
    page.wait_for_text("turn 59.", "#history")
    assert "turn 1." not in page.text("#history")
    page.click("Older")
    page.wait_for_text("turn 1.", "#history")
    page.click("Newer")
    page.wait_for_text("turn 59.", "#history")


def test_lineage_has_a_lane_for_each_branch(sign_in: SignIn) -> None:
    page = sign_in()
    lanes = page.evaluate(
        """import('/page/lineage.js').then(({ lanesOf }) => lanesOf([
          {name: 'e', from: 'c', isCopy: false}, {name: 'd', from: 'c', isCopy: false},
          {name: 'c', from: 'b', isCopy: true},
          {name: 'b', from: 'gone', isCopy: false}, {name: 'a', from: null, isCopy: false}]).map((row) =>
          [row.lane, row.above.length, row.below.length, row.isRoot, row.isLoose]))"""
    )
    assert lanes == [
        [0, 0, 1, False, False],
        [1, 1, 2, False, False],
        [0, 2, 1, False, False],
        [0, 1, 0, False, True],
        [0, 0, 0, True, False],
    ]


def test_the_files_are_served_with_a_strict_policy(admin: RunningAdmin) -> None:
    for path in ("/", *(f"/page/{file.name}" for file in PAGE.iterdir())):
        response = httpx.get(f"{admin.url}{path}", timeout=60.0)
        assert response.status_code == 200, path
        policy = response.headers["content-security-policy"]
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        assert "http" not in response.text.replace("http://www.w3.org/2000/svg", "").replace("http://host", ""), path


@pytest.mark.parametrize(
    "path", ["/page/../app.py", "/page/%2e%2e/app.py", "/page/", "/page/nothing.js", "/index.html"]
)
def test_other_files_are_not_served(admin: RunningAdmin, path: str) -> None:
    assert httpx.get(f"{admin.url}{path}", timeout=60.0).status_code in (404, 405)
