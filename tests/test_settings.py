"""Settings: which place wins, what is said about a mistake, and that nothing secret is shown."""

from __future__ import annotations

import threading

import pytest

from osworld_rollouts import settings as module
from osworld_rollouts.settings import (
    SettingsError,
    default_capacity,
    describe_settings,
    explain_settings,
    load_settings,
    unknown_environment,
)


@pytest.fixture(autouse=True)
def _nowhere(tmp_path, monkeypatch):
    """No file, no variable, no home of the developer's."""
    for name in list(module.os.environ):
        if name.startswith(("ROLLOUTS_", "TEMPORAL_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


def origin(name: str) -> str:
    return next(origin for key, _, origin in explain_settings() if key == name)


def test_defaults_need_nothing(tmp_path):
    settings = load_settings()
    assert settings.state_dir == tmp_path / "state" / "osworld-rollouts"
    assert settings.store.url == (settings.state_dir / "evidence").as_uri()
    assert settings.temporal.address == "127.0.0.1:7233"
    assert settings.host.capacity == default_capacity() >= 1
    assert {origin for _, _, origin in explain_settings()} == {"default"}


def test_a_wrong_capacity_is_named(monkeypatch):
    monkeypatch.setenv("ROLLOUTS_HOST__CAPACITY", "many")
    with pytest.raises(SettingsError, match=r"host\.capacity: .*integer"):
        load_settings()
    monkeypatch.setenv("ROLLOUTS_HOST__CAPACITY", "0")
    assert load_settings().host.capacity == default_capacity()


def test_every_setting_has_a_reason():
    assert [name for name, reason in describe_settings().items() if not reason] == []


def test_argument_beats_environment_beats_file_beats_temporal(tmp_path, monkeypatch):
    monkeypatch.setenv("TEMPORAL_ADDRESS", "temporal-env:1")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "their-namespace")
    assert load_settings().temporal.address == "temporal-env:1"
    assert origin("temporal.address") == "Temporal's environment configuration"

    (tmp_path / "rollouts.toml").write_text(
        '[temporal]\naddress = "file:1"\n[timeouts]\nmodel_s = 7\n', encoding="utf-8"
    )
    assert load_settings().temporal.address == "file:1"
    assert load_settings().temporal.namespace == "their-namespace"
    assert origin("temporal.address") == "file rollouts.toml"

    monkeypatch.setenv("ROLLOUTS_TEMPORAL__ADDRESS", "env:1")
    assert load_settings().temporal.address == "env:1"
    assert load_settings().timeouts.model_s == 7
    assert origin("temporal.address") == "environment ROLLOUTS_TEMPORAL__ADDRESS"
    assert load_settings(temporal={"address": "argument:1"}).temporal.address == "argument:1"


def test_the_server_that_up_started_is_found(tmp_path):
    run = load_settings().run_dir
    run.mkdir(parents=True)
    (run / "temporal.json").write_text('{"facts": {"address": "127.0.0.1:7999"}}', encoding="utf-8")
    assert load_settings().temporal.address == "127.0.0.1:7999"
    assert origin("temporal.address") == "server started by `rollouts up`"
    (run / "temporal.json").write_text("{damaged", encoding="utf-8")
    assert load_settings().temporal.address == "127.0.0.1:7233"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ROLLOUTS_TIMEOUTS__MODEL_S", "soon", "timeouts.model_s"),
        ("ROLLOUTS_TIMEOUTS__MODEL_S", "-1", "timeouts.model_s"),
        ("ROLLOUTS_TEMPORAL__ADRESS", "x:1", "temporal.adress: unknown setting"),
        ("ROLLOUTS_WORKER__ROLES", '["workflows", "desktop"]', "worker.roles"),
        ("ROLLOUTS_LOG__LEVEL", "loud", "log.level"),
    ],
)
def test_a_mistake_is_named(monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=says) as caught:
        load_settings()
    assert "\n" not in str(caught.value)


def test_a_file_that_is_named_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLOUTS_CONFIG", str(tmp_path / "absent.toml"))
    with pytest.raises(SettingsError, match=r"absent\.toml"):
        load_settings()


def test_a_damaged_file_is_one_line(tmp_path):
    (tmp_path / "rollouts.toml").write_text("[temporal\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="line 1"):
        load_settings()


def test_a_variable_that_sets_nothing_is_reported(monkeypatch):
    monkeypatch.setenv("ROLLOUTS_STOER__URL", "x")
    monkeypatch.setenv("ROLLOUTS_STORE__URL", "file:///x")
    assert unknown_environment() == ["ROLLOUTS_STOER__URL"]


def test_secrets_are_masked_and_still_used(monkeypatch):
    monkeypatch.setenv("TEMPORAL_API_KEY", "very-secret")
    assert "very-secret" not in repr(explain_settings())
    assert "very-secret" not in repr(load_settings())
    config = load_settings().connect_config()
    assert config.get("api_key") == "very-secret"
    assert config.get("tls") is True


def test_tls_can_be_switched_off(monkeypatch):
    monkeypatch.setenv("ROLLOUTS_TEMPORAL__TLS", "false")
    assert load_settings().connect_config().get("tls") is False


def test_host_id_is_made_once_also_by_many_at_once():
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(load_settings().host_id())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1
    assert load_settings().host_id() == found[0]
    assert load_settings().host_queue() == f"desktop-host/{found[0]}"
    assert [path.name for path in load_settings().state_dir.iterdir()] == ["host_id"]
