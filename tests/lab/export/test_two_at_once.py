"""Two exports that write to one folder at once do not delete each other's files, and the last one is complete."""

import pytest

from protofleet.lab.export.folder import new_folder
from protofleet.runtime.command.errors import RunError


def written(folder, *names):
    for name in names:
        (folder / name).write_text(name)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_folder_contains_the_export_that_has_ended_last(tmp_path):
    place, left = tmp_path / "m", tmp_path / ".m.killed.new"
    left.mkdir()
    with new_folder(place) as first:
        written(first, "card.json")
        with new_folder(place) as second:
            written(second, "card.json", "model.pt2")
        assert names_in(place) == ["card.json", "model.pt2"] and not left.exists()
        written(first, "model.onnx")
    assert names_in(place) == ["card.json", "model.onnx"] and names_in(tmp_path) == ["m"]


def test_an_export_that_fails_does_not_delete_the_folder_of_another_export(tmp_path):
    place = tmp_path / "a" / "m"
    with new_folder(place) as first:
        with pytest.raises(RunError), new_folder(place) as second:
            written(second, "card.json")
            raise RunError("no")
        written(first, "card.json", "model.onnx")
    assert names_in(place) == ["card.json", "model.onnx"] and names_in(tmp_path / "a") == ["m"]
