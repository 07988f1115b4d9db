"""docker-compose.yml and its scripts: consistent with the code, pinned, and published on loopback only."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from osworld_rollouts.settings import describe_settings
from osworld_rollouts.temporal import SEARCH_ATTRIBUTES

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict = COMPOSE["services"]
ONE_SHOT = {"temporal-schema", "temporal-namespace"}
DEPLOY = ROOT / "deploy" / "temporal"


def registered() -> dict[str, str]:
    lines = (DEPLOY / "search-attributes.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split() for line in lines if line and not line.startswith("#"))


def test_search_attributes_are_the_codes():
    assert registered() == SEARCH_ATTRIBUTES


def test_sql_visibility_has_room_for_them():
    kinds = list(SEARCH_ATTRIBUTES.values())
    assert kinds.count("Keyword") <= 10
    assert all(kinds.count(kind) <= 3 for kind in ("Int", "Double", "Bool", "Text", "Datetime", "KeywordList"))


@pytest.mark.parametrize(("name", "service"), SERVICES.items())
def test_images_are_pinned_to_a_version(name, service):
    if "build" in service:
        assert (ROOT / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        return
    repository, _, tag = service["image"].rpartition(":")
    assert repository in {"postgres", "temporalio/server", "temporalio/admin-tools", "temporalio/ui"}, name
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?(-bookworm)?", tag), name


def test_server_and_admin_tools_are_one_version():
    tags = {
        service["image"].rpartition(":")[2]
        for service in SERVICES.values()
        if service.get("image", "").startswith(("temporalio/server", "temporalio/admin-tools"))
    }
    assert len(tags) == 1


@pytest.mark.parametrize(("name", "service"), SERVICES.items())
def test_ports_are_published_on_loopback_only(name, service):
    for port in service.get("ports", []):
        assert str(port).startswith("127.0.0.1:"), name
    assert service.get("network_mode") != "host"
    assert not service.get("privileged")
    assert "/var/run/docker.sock" not in str(service.get("volumes", ""))


@pytest.mark.parametrize(("name", "service"), SERVICES.items())
def test_what_stays_up_is_watched_and_what_is_needed_is_waited_for(name, service):
    for needed, how in service.get("depends_on", {}).items():
        assert needed in SERVICES
        expected = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
        assert how["condition"] == expected, (name, needed)
        if expected == "service_healthy":
            assert "healthcheck" in SERVICES[needed], needed
    assert service["restart"] == ("on-failure:5" if name in ONE_SHOT else "unless-stopped")


def test_mounted_files_exist_and_volumes_are_declared():
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), (name, source)
                assert volume.endswith(":ro"), (name, volume)
            else:
                assert source in COMPOSE["volumes"], (name, source)
    assert (DEPLOY / Path(SERVICES["temporal"]["environment"]["DYNAMIC_CONFIG_FILE_PATH"]).name).is_file()


def test_the_workers_settings_are_settings():
    known = {f"ROLLOUTS_{name.upper().replace('.', '__')}" for name in describe_settings()}
    given = {name for name in SERVICES["worker"]["environment"] if name.startswith("ROLLOUTS_")}
    assert given <= known
    dockerfile = (ROOT / "deploy" / "worker.Dockerfile").read_text(encoding="utf-8")
    assert set(re.findall(r"\bROLLOUTS_\w+", dockerfile)) <= known
    state = re.search(r"ROLLOUTS_STATE_DIR=(\S+)", dockerfile)[1]
    assert any(volume.endswith(f":{state}") for volume in SERVICES["worker"]["volumes"])


def test_the_image_copies_what_the_package_is_made_of():
    dockerfile = (ROOT / "deploy" / "worker.Dockerfile").read_text(encoding="utf-8")
    sources = [word for line in re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE) for word in line.split()[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    assert {
        "worker.py",
        "workflows",
        "activities",
        "osworld_rollouts",
        "LICENSE",
        "README.md",
        "pyproject.toml",
    } <= set(sources)
    assert re.match(r".*FROM debian:12\.\d+-slim", dockerfile, re.DOTALL)


FAKE_TEMPORAL = """#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in
  *"namespace describe"*) [ -e "$STATE/namespace" ] ;;
  *"namespace create"*) touch "$STATE/namespace" ;;
  *"search-attribute list"*) cat "$STATE/attributes" 2>/dev/null || true ;;
  *"search-attribute create"*) shift 2; while [ $# -gt 0 ]; do [ "$1" = --name ] && echo "$2  Keyword" >> "$STATE/attributes"; shift; done ;;
esac
"""


def test_the_namespace_script_registers_everything_once(tmp_path):
    fake = tmp_path / "temporal"
    fake.write_text(FAKE_TEMPORAL, encoding="utf-8")
    fake.chmod(0o755)
    script = (
        (DEPLOY / "namespace.sh")
        .read_text(encoding="utf-8")
        .replace("/deploy/", f"{DEPLOY}/")
        .replace("/tmp/there", str(tmp_path / "there"))
    )
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(tmp_path / "log"), "STATE": str(tmp_path)}
    logs = []
    for _ in range(2):
        (tmp_path / "log").write_text("", encoding="utf-8")
        subprocess.run(["sh", "-c", script], env=environment, check=True, timeout=30)
        logs.append((tmp_path / "log").read_text(encoding="utf-8"))
    created = dict(re.findall(r"search-attribute create .*--name (\w+) --type (\w+)", logs[0]))
    assert created == SEARCH_ATTRIBUTES
    assert "namespace create" in logs[0]
    assert "create" not in logs[1]


def test_the_schema_script_makes_both_databases(tmp_path):
    fake = tmp_path / "temporal-sql-tool"
    fake.write_text('#!/bin/sh\necho "$*" >> "$LOG"\n', encoding="utf-8")
    fake.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "LOG": str(tmp_path / "log"),
        **{name: str(value) for name, value in SERVICES["temporal-schema"]["environment"].items()},
    }
    subprocess.run(["sh", str(DEPLOY / "schema.sh")], env=environment, check=True, timeout=30)
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert log.count("--plugin postgres12 --ep postgresql -p 5432 -u temporal") == 6
    assert "--db temporal update-schema -d /etc/temporal/schema/postgresql/v12/temporal/versioned" in log
    assert "--db temporal_visibility update-schema -d /etc/temporal/schema/postgresql/v12/visibility/versioned" in log


def test_the_worker_may_make_sandboxes():
    """Tried with Docker: seccomp alone leaves /proc masked, and bubblewrap then cannot mount its own."""
    assert {"seccomp=unconfined", "systempaths=unconfined"} <= set(SERVICES["worker"]["security_opt"])
