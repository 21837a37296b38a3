"""A run's folder: an existing one is refused, and replacing it touches nothing but what runs write."""

from __future__ import annotations

from pathlib import Path

import pytest

from boreal.model.errors import UserError
from embedded import run_folder


def test_an_existing_folder_is_refused_without_force(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--force"):
        run_folder.check(tmp_path, force=False)
    run_folder.check(tmp_path, force=True)
    run_folder.check(tmp_path / "new", force=False)


@pytest.mark.parametrize("force", [False, True])
def test_a_file_is_no_folder(tmp_path: Path, force: bool) -> None:
    path = tmp_path / "out"
    path.write_text("mine")
    with pytest.raises(UserError, match="not a directory"):
        run_folder.check(path, force)
    assert path.read_text() == "mine"


def test_making_room_leaves_foreign_files_alone(tmp_path: Path) -> None:
    others = ("notes.txt", "part/stable.jsonl", "part/notes.txt", "old/report.json", "other/report.json")
    for name in (*run_folder.RUN_FILES, *others):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    run_folder.prepare(tmp_path, parts=("part", "old", "absent"))
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["notes.txt", "other", "other/report.json", "part", "part/notes.txt"]


def test_a_link_is_removed_and_what_it_points_to_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "stable.jsonl").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "stable.jsonl").symlink_to(tmp_path / "kept" / "stable.jsonl")
    (out / "part").symlink_to(tmp_path / "kept")
    run_folder.prepare(out, parts=("part",))
    assert (tmp_path / "kept" / "stable.jsonl").read_text() == "mine"
    assert not (out / "stable.jsonl").exists()


def test_where_nothing_can_be_written_the_user_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        run_folder.prepare(tmp_path / "file" / "out")
    assert caught.value.field == "--out"


def test_a_folder_in_the_place_of_a_result_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    with pytest.raises(UserError):
        run_folder.prepare(tmp_path)
    assert (tmp_path / "report.json").is_dir()
