"""Who may have `/home/user` where desktops are plain processes."""

from __future__ import annotations

import json
import os

import pytest

from osworld_rollouts.desktops._provider import DesktopUnavailable
from osworld_rollouts.desktops.local import home_link


@pytest.fixture
def link(tmp_path):
    (tmp_path / "homes").mkdir()
    return tmp_path / "homes" / "user"


def desktop(tmp_path, name, state="ready"):
    """The folder of a desktop without processes; its home."""
    home = tmp_path / "desktops" / name / "home"
    home.mkdir(parents=True)
    (home.parent / "record.json").write_text(json.dumps({"state": state, "marker": "no process has this"}))
    return home


def test_held_and_released(tmp_path, link):
    home = desktop(tmp_path, "a")
    home_link.hold(home, link)
    home_link.hold(home, link)
    assert link.readlink() == home
    home_link.release(desktop(tmp_path, "b"), link)
    assert link.is_symlink()
    home_link.release(home, link)
    assert not link.is_symlink()
    home_link.release(home, link)


def test_one_that_is_being_made_keeps_it(tmp_path, link):
    home_link.hold(desktop(tmp_path, "a", state="making"), link)
    with pytest.raises(DesktopUnavailable, match=r"belongs to the desktop in .*/desktops/a: .* one desktop at a time"):
        home_link.hold(desktop(tmp_path, "b"), link)


def test_one_whose_processes_are_gone_loses_it(tmp_path, link):
    home_link.hold(desktop(tmp_path, "a"), link)
    home = desktop(tmp_path, "b")
    home_link.hold(home, link)
    assert link.readlink() == home


def test_one_whose_files_are_gone_loses_it(tmp_path, link):
    link.symlink_to(tmp_path / "desktops" / "gone" / "home")
    home = desktop(tmp_path, "b")
    home_link.hold(home, link)
    assert link.readlink() == home


def test_somebodys_home_is_left_alone(tmp_path, link):
    link.mkdir()
    (link / "thesis.txt").touch()
    with pytest.raises(DesktopUnavailable, match="exists and is somebody's own"):
        home_link.hold(desktop(tmp_path, "a"), link)
    assert (link / "thesis.txt").exists()


def test_somebodys_link_is_left_alone(tmp_path, link):
    link.symlink_to(tmp_path)
    with pytest.raises(DesktopUnavailable, match="which is no desktop's"):
        home_link.hold(desktop(tmp_path, "a"), link)
    assert link.readlink() == tmp_path


def test_a_user_who_may_not_make_it_is_told(tmp_path, link, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != link.parent or mode != os.W_OK)
    assert home_link.fault(link) == f"{link} cannot be made by this user"
    with pytest.raises(DesktopUnavailable, match="cannot be made by this user"):
        home_link.hold(desktop(tmp_path, "a"), link)
