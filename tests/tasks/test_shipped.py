"""What every shipped task and its solution promise, as far as it shows without a desktop."""

from __future__ import annotations

import json

import pytest

from osworld_rollouts.osworld.preflight import DesktopFacts, EvaluatorFacts, check_task
from osworld_rollouts.tasks import shipped_tasks
from osworld_rollouts.testing.locate import load_template
from osworld_rollouts.testing.scripts import SOLUTIONS, Code, Script, shipped_scripts

TASKS = shipped_tasks()
SCRIPTS = shipped_scripts()


def gestures(script: Script) -> list[object]:
    steps = [step for step in script.steps if isinstance(step.do, tuple)]
    return [gesture for step in steps for gesture in (*step.do, *step.instead)]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.task_id)
class TestEach:
    def test_needs_no_network(self, task):
        text = json.dumps(task.document)
        assert '"download"' not in text
        assert "cloud_file" not in text
        assert "https://" not in text

    def test_has_the_fields_of_an_osworld_task(self, task):
        required = {
            "id",
            "snapshot",
            "instruction",
            "source",
            "config",
            "related_apps",
            "evaluator",
            "proxy",
            "fixed_ip",
        }
        assert required <= task.document.keys()

    def test_is_solved_in_the_gui_alone(self, task):
        assert not [gesture for gesture in gestures(SCRIPTS[task.task_id]) if isinstance(gesture, Code)]

    def test_is_solved_well_within_the_default_horizon(self, task):
        assert len(SCRIPTS[task.task_id].steps) <= 8

    def test_ends_once_at_its_last_step(self, task):
        script = SCRIPTS[task.task_id]
        wanted = "FAIL" if task.document["evaluator"] == {"func": "infeasible"} else "DONE"
        assert [step.do for step in script.steps if isinstance(step.do, str)] == [wanted] == [script.steps[-1].do]

    def test_clicks_what_it_finds_on_the_screen(self, task):
        script = SCRIPTS[task.task_id]
        if any("chrome" in app for app in task.document["related_apps"]):
            assert script.steps[1].clicked()
        assert any(step.clicked() for step in script.steps)

    def test_is_known_to_desktop_env(self, task):
        pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")
        facts = EvaluatorFacts.here()
        assert check_task(task.document, facts, DesktopFacts()) == []


def test_no_instruction_is_part_of_another():
    texts = [task.instruction for task in TASKS]
    assert not [(a, b) for a in texts for b in texts if a is not b and a in b]


def test_every_picture_is_used_and_can_be_searched_for():
    named = {
        picture for script in SCRIPTS.values() for target in script.targets.values() for picture in target.pictures
    }
    present = {path.relative_to(SOLUTIONS).as_posix() for path in SOLUTIONS.rglob("*.png")}
    assert named == present
    for picture in present:
        load_template(SOLUTIONS / picture)


def test_every_solution_belongs_to_a_task():
    assert {path.stem for path in SOLUTIONS.glob("*.json")} == {task.task_id for task in TASKS}


def test_every_target_is_looked_for():
    for task_id, script in SCRIPTS.items():
        looked_for = {name for step in script.steps for name in step.looks_for()}
        assert looked_for == script.targets.keys(), task_id


def test_the_suite_covers_what_it_should():
    kinds = {(task.domain, app) for task in TASKS for app in task.document["related_apps"]}
    assert {domain for domain, _ in kinds} == {"chrome", "libreoffice_calc", "libreoffice_writer", "multi_apps", "os"}
    assert sum(task.document["evaluator"]["func"] == "infeasible" for task in TASKS) == 1
