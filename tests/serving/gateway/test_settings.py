import os
import re

import pytest

from rankhouse.serving.errors import SettingsError
from rankhouse.serving.gateway.settings import settings_from_environment


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in list(os.environ):
        if variable.startswith("RANKHOUSE_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("RANKHOUSE_STORE", "store")
    monkeypatch.setenv("RANKHOUSE_MODEL", "dlrm")


def test_the_environment_replaces_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKHOUSE_PORT", "9000")
    settings = settings_from_environment()
    assert (settings.store, settings.model, settings.port) == ("store", "dlrm", 9000)
    assert settings.version == "latest"


def test_the_resolved_settings_are_shown_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKHOUSE_STATE_URL", "rediss://user:secret@redis:6379/0")
    shown = settings_from_environment().shown()
    assert "model = dlrm" in shown
    assert "state_url = rediss://user:***@redis:6379/0" in shown
    assert "secret@" not in shown


def test_what_the_command_line_reads_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKHOUSE_ADMIN_URL", "http://127.0.0.1:8082")
    assert settings_from_environment().admin_port is None


def test_a_command_is_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKHOUSE_RETRAINING_COMMAND", '["make", "retrain"]')
    assert settings_from_environment().retraining_command == ("make", "retrain")


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("RANKHOUSE_PROT", "1", "RANKHOUSE_PROT is not a setting of the gateway; did you mean RANKHOUSE_PORT?"),
        ("RANKHOUSE_QQQ", "1", "known are STORE, MODEL, "),
        ("RANKHOUSE_PORT", "http", "RANKHOUSE_PORT=http: Input should be a valid integer"),
        ("RANKHOUSE_PORT", "70000", "RANKHOUSE_PORT=70000: Input should be less than or equal to 65535"),
        ("RANKHOUSE_MAX_CANDIDATES", "0", "RANKHOUSE_MAX_CANDIDATES=0: "),
        ("RANKHOUSE_REQUEST_TIMEOUT_SECONDS", "-1", "RANKHOUSE_REQUEST_TIMEOUT_SECONDS=-1: "),
        ("RANKHOUSE_RETRAINING_COMMAND", "make retrain", "retraining_command"),
        ("RANKHOUSE_FEEDBACK_EVENTS", "click,", "RANKHOUSE_FEEDBACK_EVENTS=click,: "),
        ("RANKHOUSE_ADMIN_PORT", "0", "there is nothing to administer without RANKHOUSE_STATE_URL"),
    ],
)
def test_a_wrong_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=re.escape(message)):
        settings_from_environment()


def test_a_missing_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANKHOUSE_STORE")
    with pytest.raises(SettingsError, match=r"RANKHOUSE_STORE is not set: The version store"):
        settings_from_environment()
