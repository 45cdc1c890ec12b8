"""What counts as a change of the app's files."""

from flowshare.agents.reload import changed, scan


def test_a_new_a_changed_and_a_removed_file_are_found(tmp_path):
    kept, edited, removed = (tmp_path / name for name in ("kept.py", "edited.py", "removed.py"))
    for path in (kept, edited, removed):
        path.write_text("x = 1\n")
    before = scan(tmp_path)

    edited.write_text("x = 10\n")
    removed.unlink()
    (tmp_path / "new.py").write_text("")

    assert changed(before, scan(tmp_path)) == sorted(
        str(tmp_path / name) for name in ("edited.py", "new.py", "removed.py")
    )


def test_hidden_and_installed_folders_and_other_files_are_left_out(tmp_path):
    for folder in (".venv", "__pycache__", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("")
    (tmp_path / "data.csv").write_text("")
    (tmp_path / "app.py").write_text("")

    assert list(scan(tmp_path)) == [str(tmp_path / "app.py")]
