"""Naming tasks: what is found, and one clear line for everything that is not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from osworld_rollouts.tasks import TaskError, load_tasks, shipped_tasks

if TYPE_CHECKING:
    from pathlib import Path

TASK = {"id": "t1", "instruction": "Do it.", "config": [], "evaluator": {"func": "infeasible"}}


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small copy of OSWorld's layout."""
    root = tmp_path / "OSWorld"
    for domain, name in (("chrome", "c1"), ("os", "o1"), ("os", "o2")):
        write(root / "evaluation_examples/examples" / domain / f"{name}.json", {**TASK, "id": name})
    write(root / "evaluation_examples/test_small.json", {"os": ["o2"], "chrome": ["c1"]})
    return root


def ids(spec, **more) -> list[str]:
    return [task.task_id for task in load_tasks(spec, **more)]


def test_shipped_tasks_are_unique_and_named_by_their_files():
    tasks = shipped_tasks()
    assert len(tasks) >= 9
    assert len({task.task_id for task in tasks}) == len({task.instruction for task in tasks}) == len(tasks)
    assert ids("shipped") == [task.task_id for task in tasks]


def test_a_shipped_task_by_name_keeps_its_whole_document():
    (task,) = load_tasks("calc-total-formula")
    assert task.domain == "libreoffice_calc"
    assert task.document["evaluator"]["func"][0] == "compare_table"


def test_a_task_file_takes_its_domain_from_the_directory(tmp_path):
    (task,) = load_tasks(write(tmp_path / "chrome/t1.json", TASK))
    assert (task.domain, task.task_id) == ("chrome", "t1")


def test_a_task_file_elsewhere_says_its_domain_or_is_custom(tmp_path):
    assert load_tasks(write(tmp_path / "a/t1.json", TASK))[0].domain == "custom"
    assert load_tasks(write(tmp_path / "b/t1.json", {**TASK, "domain": "gimp"}))[0].domain == "gimp"


@pytest.mark.parametrize("below", ["", "evaluation_examples", "evaluation_examples/examples"])
def test_a_checkout_at_any_level(checkout, below):
    assert ids(checkout / below) == ["c1", "o1", "o2"]
    assert ids(checkout / below, index="test_small.json") == ["o2", "c1"]


def test_an_index_file_alone(checkout):
    assert ids(checkout / "evaluation_examples/test_small.json") == ["o2", "c1"]


def test_several_names_keep_their_order(checkout):
    assert ids(["text-edit-save", checkout / "evaluation_examples/examples/os/o1.json"]) == ["text-edit-save", "o1"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "../../etc/passwd"}, "task id '../../etc/passwd' is not a name"),
        ({"id": "/abs"}, "is not a name"),
        ({"id": ""}, "is not a name"),
        ({"id": "ok\n"}, "is not a name"),
        ({"id": 7}, "task field 'id' must be a str, got int"),
        ({"instruction": None}, "task field 'instruction' must be a str, got NoneType"),
        ({"instruction": ""}, "instruction"),
        ({"evaluator": []}, "task field 'evaluator' must be a dict, got list"),
        ({"evaluator": {}}, "'evaluator.func' must be the name of a metric"),
        ({"evaluator": {"func": [1]}}, "'evaluator.func' must be the name of a metric"),
        ({"evaluator": {"func": "x", "postconfig": {}}}, "evaluator.postconfig must be a list of steps, got dict"),
        ({"config": {}}, "task field 'config' must be a list"),
        ({"config": [{"type": "sleep"}]}, "config[0] must be an object with a 'type'"),
    ],
)
def test_what_is_wrong_with_a_task_file_is_said_in_one_line(tmp_path, change, says):
    path = write(tmp_path / "os/t.json", {**TASK, **change})
    with pytest.raises(TaskError) as caught:
        load_tasks(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["id", "instruction", "evaluator"])
def test_a_missing_field_is_named(tmp_path, field):
    with pytest.raises(TaskError, match=f"'{field}'"):
        load_tasks(write(tmp_path / "os/t.json", {key: value for key, value in TASK.items() if key != field}))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"id": "x",', r"is not JSON: .* at line 1, column \d+"),
        ('{"id": NaN}', "is not JSON: NaN"),
        ("[" * 100_000, "is not JSON: nested too deeply"),
        ("[1]", "an OSWorld task is a JSON object"),
        ("{}", "task field 'id'"),
    ],
)
def test_a_file_that_is_no_task(tmp_path, text, says):
    with pytest.raises(TaskError, match=says):
        load_tasks(write(tmp_path / "os/t.json", text))


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "t.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="not UTF-8"):
        load_tasks(path)


def test_an_id_named_twice(checkout, tmp_path):
    other = write(tmp_path / "os/other.json", {**TASK, "id": "o1"})
    with pytest.raises(TaskError, match=r"'o1' is named twice: by .*o1\.json and by .*other\.json"):
        load_tasks([checkout, other])
    with pytest.raises(TaskError, match="named twice"):
        load_tasks(["text-edit-save", "shipped"])


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("calc-totl-formula", "unknown task 'calc-totl-formula'; did you mean calc-total-formula"),
        ("pdf", "did you mean writer-export-pdf"),
        ("zzzz", "unknown task 'zzzz'; there are: "),
        ("../../etc/passwd/x", "no task file or directory at ../../etc/passwd/x"),
        ("nothing.json", "no task file or directory at nothing.json"),
        ("a\0b", "unknown task"),
        ("x" * 5000, "unknown task"),
    ],
)
def test_an_unknown_name(name, says):
    with pytest.raises(TaskError) as caught:
        load_tasks(name)
    assert says in str(caught.value)


def test_nothing_named():
    with pytest.raises(TaskError, match="no task was named"):
        load_tasks([])


def test_an_index_with_a_task_that_is_not_there(checkout):
    write(checkout / "evaluation_examples/test_small.json", {"os": ["o3"]})
    with pytest.raises(TaskError, match=r"lists os/o3, but there is no .*o3\.json; did you mean"):
        load_tasks(checkout, index="test_small.json")


def test_an_index_that_leaves_its_directory(checkout):
    for content in ({"os": ["../../../x"]}, {"../os": ["o1"]}):
        write(checkout / "evaluation_examples/test_small.json", content)
        with pytest.raises(TaskError, match="is not a name"):
            load_tasks(checkout, index="test_small.json")


def test_an_index_that_is_none_or_not_there(checkout):
    write(checkout / "evaluation_examples/bad.json", {"os": "o1"})
    with pytest.raises(TaskError, match="is not an index file"):
        load_tasks(checkout, index="bad.json")
    with pytest.raises(
        TaskError, match=r"no index file test_all\.json; beside the examples there are: bad\.json, test_small\.json"
    ):
        load_tasks(checkout, index="test_all.json")


def test_a_directory_without_tasks(tmp_path):
    with pytest.raises(TaskError, match="holds no OSWorld tasks"):
        load_tasks(tmp_path)
