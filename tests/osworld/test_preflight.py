"""The checks before a task is run: by themselves, and against all canonical tasks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from osworld_rollouts.osworld.package import package_names
from osworld_rollouts.osworld.preflight import DesktopFacts, EvaluatorFacts, check_task, desktop_probe, read_probe
from tests.osworld.rig import command_task, step, task

pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")

BARE = EvaluatorFacts(names=package_names(), modules=frozenset({"numba", "bs4"}), tools=frozenset({"file"}))
"""The evaluator as the lock installs it: everything but easyocr, no Google account."""
FULL = EvaluatorFacts(names=package_names(), modules=frozenset({"numba", "bs4", "easyocr"}), tools=frozenset({"file"}))


def codes(document, evaluator=FULL, desktop=None, **how) -> set[str]:
    return {problem.code for problem in check_task(document, evaluator, desktop, **how) if problem.fatal}


class TestShape:
    def test_a_good_task(self):
        assert check_task(task([step("execute", command=["x"])]), FULL) == []
        assert check_task(command_task(), FULL) == []

    @pytest.mark.parametrize(
        ("document", "where"),
        [
            ({}, "id"),
            ({"id": "x", "instruction": "y"}, "evaluator"),
            ({"id": "x", "instruction": "y", "evaluator": {}}, "evaluator"),
            ({**task(), "config": "run"}, "config"),
            ({**task(), "config": ["run"]}, "config"),
            ({**task(), "config": [{"parameters": {}}]}, "config"),
            (task(func="exact_match", result="file"), "evaluator.result"),
            (task(func="exact_match", result={"path": "x"}), "evaluator.result"),
            (task(func=["exact_match", "exact_match"], result=[{"type": "rule"}]), "evaluator.result"),
            (task(func="infeasible", postconfig=[{}]), "evaluator.postconfig"),
        ],
    )
    def test_a_malformed_task_is_told_by_its_field(self, document, where):
        problems = check_task(document, FULL)
        assert [problem.code for problem in problems] == ["malformed"] * len(problems)
        assert where in [problem.where for problem in problems]

    @pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", "a/../../b", ".."])
    @pytest.mark.parametrize("kind", ["vm_file", "cloud_file", "cache_file"])
    def test_names_that_leave_the_cache_folder(self, name, kind):
        getter = (
            {"type": kind, "path": name, "dest": name}
            if kind == "cache_file"
            else {"type": kind, "path": "x", "dest": name}
        )
        assert codes(task(func="exact_match", result=getter)) == {"unsafe_name"}

    def test_output_written_outside_the_cache_folder(self):
        assert codes(task([step("execute", command=["x"], stdout="../x")])) == {"unsafe_name"}


class TestNames:
    def test_unknown_names(self):
        assert codes(task(func="no_such_metric")) == {"unknown_metric"}
        assert codes(task(func="exact_match", result={"type": "no_such"})) == {"unknown_getter"}
        assert codes(task([step("no_such")])) == {"unknown_step"}
        assert codes(task(func="infeasible", postconfig=[step("no_such")])) == {"unknown_step"}

    @pytest.mark.parametrize("kind", ["act", "replay", "tidy_desktop"])
    def test_steps_that_only_raise(self, kind):
        assert codes(task([step(kind)])) == {"unknown_step"}

    def test_a_host_without_the_package(self):
        (problem,) = check_task(task(), EvaluatorFacts(names=None))
        assert problem.code == "evaluator_missing"
        assert "make setup" in problem.remedy


class TestScoreWouldLie:
    @pytest.mark.parametrize(
        ("metric", "module"),
        [("compare_image_text", "easyocr"), ("compare_audios", "numba"), ("check_html_background_image", "bs4")],
    )
    def test_a_missing_package(self, metric, module):
        without = EvaluatorFacts(FULL.names, FULL.modules - {module}, FULL.tools)
        problems = check_task(task(func=metric), without)
        assert [problem.code for problem in problems] == ["missing_module"]
        assert module in problems[0].message
        assert codes(task(func=metric)) == set()

    def test_a_missing_program(self):
        assert codes(task(func="compare_image_text"), EvaluatorFacts(FULL.names, FULL.modules, frozenset())) == {
            "missing_tool"
        }

    def test_running_the_agents_code_is_told_and_allowed(self):
        problems = check_task(task(func="check_python_file_by_test_suite"), FULL)
        assert [(problem.code, problem.fatal) for problem in problems] == [("runs_agent_code", False)]


class TestHost:
    def test_the_worker_s_files_stay_on_the_worker(self, tmp_path):
        document = task([step("upload_file", files=[{"local_path": str(tmp_path / "x"), "path": "/x"}])])
        assert codes(document) == {"host_file"}
        allowed = EvaluatorFacts(FULL.names, FULL.modules, FULL.tools, upload_roots=(tmp_path,))
        assert codes(document, allowed) == set()
        escaping = task([step("upload_file", files=[{"local_path": str(tmp_path / ".." / "x"), "path": "/x"}])])
        assert codes(escaping, allowed) == {"host_file"}

    def test_google_accounts(self, tmp_path):
        document = task(
            [step("login", settings_file="evaluation_examples/settings/google/settings.json", platform="googledrive")]
        )
        assert codes(document) == {"google_account"}
        (tmp_path / "evaluation_examples/settings/google").mkdir(parents=True)
        (tmp_path / "evaluation_examples/settings/google/settings.json").write_text("{}")
        assert codes(document, EvaluatorFacts(FULL.names, FULL.modules, FULL.tools, settings_root=tmp_path)) == set()

    def test_files_that_are_not_there_offline(self):
        document = task([step("download", files=[{"url": "https://x.invalid/a", "path": "/a"}])])
        assert codes(document, missing_files=list) == {"file_missing"}
        assert codes(document, missing_files=lambda _files: []) == set()


class TestDesktop:
    def test_what_is_unknown_is_not_held_against_it(self):
        document = task([step("launch", command=["code"]), step("execute", command="sudo -S x", shell=True)])
        assert codes(document, desktop=DesktopFacts()) == set()

    @pytest.mark.parametrize(
        ("document", "needs"),
        [
            (task([step("chrome_open_tabs", urls_to_open=["https://example.com/"])]), True),
            (
                task(
                    [
                        step(
                            "chrome_open_tabs",
                            urls_to_open=["http://localhost:8000/", "chrome://settings", "file:///x"],
                        )
                    ]
                ),
                False,
            ),
            (task([step("execute", command="sudo -S apt-get install -y jq", shell=True)]), True),
            (task([step("command", command=["pip", "install", "pygame"])]), True),
            (task([step("execute", command=["pip", "install", "/home/user/x.whl"])]), False),
            (task(func="exact_match", result={"type": "info_from_website", "url": "https://example.com"}), True),
            (task([step("execute", command=["apt", "list", "--installed"])]), False),
        ],
    )
    def test_network(self, document, needs):
        assert ("needs_network" in codes(document, desktop=DesktopFacts(network=False))) is needs
        assert codes(document, desktop=DesktopFacts(network=True)) == set()

    def test_sudo(self):
        document = task([step("execute", command="echo {CLIENT_PASSWORD} | sudo -S mkdir /x", shell=True)])
        assert codes(document, desktop=DesktopFacts(sudo=False)) == {"needs_sudo"}
        assert codes(document, desktop=DesktopFacts(sudo=True)) == set()

    @pytest.mark.parametrize(
        ("document", "program"),
        [
            (task([step("launch", command=["code", "/x"])]), "code"),
            (task([step("launch", command="VLC_VERBOSE=-1 vlc --no-audio", shell=True)]), None),
            (task([step("launch", command="/usr/bin/thunderbird -compose x", shell=True)]), "thunderbird"),
            (task([step("execute", command=["/bin/bash", "-c", "cd /x && unzip -q a.zip"])]), "unzip"),
            (task([step("execute", command="./setup.sh", shell=True)]), None),
            (task([step("execute", command=["./setup.sh"])]), None),
            (
                task(
                    func="exact_match",
                    result={"type": "vm_command_line", "command": "timedatectl status", "shell": True},
                ),
                "timedatectl",
            ),
            ({**task(), "related_apps": ["vscode", "os"]}, "code"),
        ],
    )
    def test_programs(self, document, program):
        found = [problem.message for problem in check_task(document, FULL, DesktopFacts(programs=frozenset()))]
        assert any(program in message for message in found) if program else not found

    def test_chrome_under_another_name(self):
        document = task(func="exact_match", result={"type": "active_tab_info"})
        assert codes(document, desktop=DesktopFacts(browser="Chromium")) == {"browser_name"}
        assert codes(document, desktop=DesktopFacts(browser="Google Chrome")) == set()
        window = task([step("activate_window", window_name="Google Chrome")])
        assert codes(window, desktop=DesktopFacts(browser="Chromium")) == {"browser_name"}

    def test_a_probe_is_read(self):
        facts = read_probe(
            "program gimp\nprogram vlc\nsudo no\nbrowser Chromium 156.0.1 built on Debian\n", network=False
        )
        assert facts == DesktopFacts(network=False, sudo=False, programs=frozenset({"gimp", "vlc"}), browser="Chromium")
        assert read_probe("sudo yes\nbrowser Google Chrome 140.0\n", network=True).browser == "Google Chrome"
        assert read_probe("sudo yes\nbrowser\n", network=None).browser is None
        assert "command -v" in desktop_probe()


@pytest.fixture(scope="module")
def table(shared):
    """The 369 canonical tasks, each with the line of the developers' table about it."""
    folder: Path = shared / "data" / "osworld"
    with (folder / "task_table.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [(row, json.loads((folder / "examples" / row["domain"] / f"{row['id']}.json").read_text())) for row in rows]


def ids(table, evaluator, code, desktop=None) -> set[str]:
    return {row["id"] for row, document in table if code in {p.code for p in check_task(document, evaluator, desktop)}}


class TestCanonicalTasks:
    def test_all_are_read(self, table):
        assert len(table) == 369
        assert ids(table, FULL, "malformed") == set()
        assert ids(table, FULL, "unsafe_name") == set()

    def test_names_the_wheel_lacks(self, table):
        expected = {row["id"] for row, _ in table if row["missing_in_wheel_1_0_2"]}
        found = (
            ids(table, FULL, "unknown_metric") | ids(table, FULL, "unknown_getter") | ids(table, FULL, "unknown_step")
        )
        assert found == expected
        assert {task_id[:8] for task_id in found} == {"93eabf48", "e8172110", "5ac2891a"}

    def test_the_one_task_that_reads_text_from_an_image(self, table):
        assert {task_id[:8] for task_id in ids(table, BARE, "missing_module")} == {"02ce9a50"}

    def test_the_three_that_compare_sound(self, table):
        silent = EvaluatorFacts(FULL.names, FULL.modules - {"numba"}, FULL.tools)
        expected = {row["id"] for row, _ in table if row["heavy_eval"] == "librosa+numba"}
        assert ids(table, silent, "missing_module") == expected
        assert len(expected) == 3

    def test_google_accounts(self, table):
        assert ids(table, FULL, "google_account") == {row["id"] for row, _ in table if row["gdrive"] == "1"}

    def test_sudo(self, table):
        expected = {row["id"] for row, _ in table if row["sudo"] == "1"} - {"a462a795-fdc7-4b23-b689-e8b6df786b78"}
        assert ids(table, FULL, "needs_sudo", DesktopFacts(sudo=False)) == expected

    def test_live_web(self, table):
        found = ids(table, FULL, "needs_network", DesktopFacts(network=False))
        live = {row["id"] for row, _ in table if row["network_class"] in {"live-web", "gdrive"}}
        assert live <= found
        # One task installs a Python package and is called files-only in the table; one installs an editor extension.
        assert {task_id[:8] for task_id in found - live} <= {"26150609", "e2b5e914"}

    def test_programs_debian_does_not_have(self, table):
        found = ids(table, FULL, "missing_program", DesktopFacts(programs=frozenset()))
        code = {row["id"] for row, _ in table if row["domain"] == "vs_code"}
        assert code <= found

    def test_what_the_local_desktop_can_host(self, table, shared):
        """Every verified task passes every check against the facts of the local desktop."""
        verified = json.loads((shared / "data/osworld/verified_offline.json").read_text())["tasks"]
        programs = frozenset(
            {
                "google-chrome",
                "gimp",
                "vlc",
                "libreoffice",
                "socat",
                "gsettings",
                "python",
                "python3",
                "pkill",
                "mkdir",
                "bc",
                "timeout",
                "sudo",
            }
        )
        local = DesktopFacts(network=False, sudo=False, programs=programs, browser="Chromium")
        documents = {document["id"]: document for _, document in table}
        problems = {entry["id"][:8]: check_task(documents[entry["id"]], BARE, local) for entry in verified}
        assert {name: found for name, found in problems.items() if found} == {}
