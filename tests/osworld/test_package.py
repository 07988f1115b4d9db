import pytest

from osworld_rollouts.osworld import package

pytest.importorskip("desktop_env", reason="the evaluator extra is not installed")


def test_names_are_read_without_importing_the_package():
    names = package.package_names()
    assert {"exact_match", "compare_table", "infeasible"} <= names.metrics
    assert {"vm_file", "cloud_file", "rule", "vm_command_line"} <= names.getters
    assert {"execute", "launch", "download", "chrome_open_tabs", "sleep"} <= names.setup_steps
    assert names.unimplemented_steps == {"act", "replay", "tidy_desktop"}


def test_the_identity_is_complete_and_content_addressed():
    identity = package.package_identity()
    assert identity["package"] == "desktop-env"
    assert identity["version"] == "1.0.2"
    assert len(identity["content_sha256"]) == 64
    assert identity["packages"]["numpy"][0].isdigit()


def test_the_content_hash_sees_a_changed_byte_and_a_renamed_file_and_no_compiled_ones(tmp_path):
    (tmp_path / "a.py").write_text("x = 1")
    first = package.content_hash(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "a.pyc").write_text("compiled")
    assert package.content_hash(tmp_path) == first
    (tmp_path / "a.py").write_text("x = 2")
    assert package.content_hash(tmp_path) != first
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert package.content_hash(tmp_path) != first
