"""A folder of versions of a model: which versions count, which one is served, and which ones stay."""

import json

import pytest

from protofleet.edge_client.serving.versions import ModelVersions, Version
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk

PLAN, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def versions(tmp_path):
    return ModelVersions(tmp_path / "models", keep=2, disk=Disk(durable=False))


def write(versions, round, validation=None, waits=False, plan=PLAN, tensors=""):
    tensors = tensors or f"{round:064x}"
    card = {"plan_sha256": plan, "round": round, "tensors": tensors, "validation": validation}
    card["device"] = "owl" if waits else None
    fresh = Version(0, versions.folder, plan, round, validation, tensors, "personal" if waits else "global")
    return versions.write(
        fresh, lambda folder: (folder / "card.json").write_text(json.dumps(card)), waits=waits
    )


def named(versions, link):
    found = versions.named(link)
    return found and found.round


def rounds(versions):
    return [version.round for version in versions.whole()]


def test_a_global_model_is_served_as_soon_as_it_is_complete(versions):
    assert write(versions, 1) and write(versions, 2)
    assert (named(versions, "current"), named(versions, "previous")) == (2, 1)
    assert (versions.folder / "current").resolve() == versions.folder / "v000002"


def test_a_personal_model_is_served_after_its_update_is_accepted(versions):
    write(versions, 3, waits=True)
    assert named(versions, "current") is None and rounds(versions) == []
    versions.accept(PLAN, 2)
    versions.accept(OTHER, 3)
    assert rounds(versions) == []
    versions.accept(PLAN, 3)
    assert named(versions, "current") == 3
    versions.accept(PLAN, 3)  # its receipt arrives a second time
    assert rounds(versions) == [3]


def test_a_personal_model_whose_update_was_not_accepted_is_removed(versions):
    write(versions, 3, waits=True)
    write(versions, 4, waits=True)
    versions.accept(PLAN, 4)
    assert rounds(versions) == [4]
    assert sorted(entry.name for entry in versions.folder.iterdir()) == ["current", "v000002"]


def test_the_same_model_is_not_written_as_a_second_version(versions):
    assert write(versions, 1) and not write(versions, 1)
    assert write(versions, 2, waits=True) and not write(versions, 2, waits=True)
    versions.accept(PLAN, 2)
    assert not write(versions, 2, waits=True)


def test_the_newest_versions_and_the_linked_versions_are_kept(versions):
    for round, validation in enumerate((0.5, 0.9, 0.6, 0.9, 0.7, 0.8), 1):
        write(versions, round, validation)
    assert named(versions, "champion") == 2  # the first of equal versions
    assert rounds(versions) == [2, 5, 6]


def test_the_champion_belongs_to_the_run_that_is_served(versions):
    write(versions, 9, 0.99)
    write(versions, 1, 0.2, plan=OTHER)
    assert named(versions, "champion") == 1
    write(versions, 2, None, plan="ef" * 32)
    assert named(versions, "champion") is None


def test_a_pinned_device_writes_versions_without_moving_its_links(versions):
    write(versions, 1, 0.5)
    write(versions, 2, 0.6)
    versions.pin(1)
    links = {link: named(versions, link) for link in ("current", "previous", "champion", "pinned")}
    for round in (3, 4, 5):
        write(versions, round, 0.9)
    assert {link: named(versions, link) for link in links} == links and links["current"] == 1
    assert rounds(versions) == [1, 2, 4, 5]
    assert versions.unpin().round == 5
    assert (named(versions, "current"), named(versions, "champion")) == (5, 4)


def test_a_rollback_serves_the_previous_version_and_a_second_one_undoes_it(versions):
    for round in (1, 2, 3):
        write(versions, round)
    assert versions.rollback().round == 2
    write(versions, 4)
    assert named(versions, "current") == 2
    assert versions.rollback().round == 3


def test_a_rollback_without_an_earlier_version_is_refused(versions):
    write(versions, 1)
    with pytest.raises(
        SettingsError, match="there is no earlier version in .*: only v000001 has been served"
    ):
        versions.rollback()


def test_the_error_for_a_missing_version_lists_the_versions_that_exist(versions):
    write(versions, 1)
    write(versions, 2)
    with pytest.raises(SettingsError, match="no version v000007 in .*; the versions are: v000001, v000002"):
        versions.pin(7)
    with pytest.raises(SettingsError, match="no version is pinned"):
        versions.unpin()


def test_a_version_with_a_damaged_card_is_neither_pinned_nor_served(versions):
    write(versions, 1)
    write(versions, 2)
    (versions.folder / "v000002" / "card.json").write_text("{")
    versions.settle()
    assert named(versions, "current") == 1
    with pytest.raises(SettingsError, match=r"v000002 cannot be served: card.json cannot be read"):
        versions.pin(2)


def test_a_version_removed_by_hand_is_not_served_any_more(versions):
    write(versions, 1)
    write(versions, 2)
    (versions.folder / "v000002" / "card.json").unlink()
    (versions.folder / "v000002").rmdir()
    versions.settle()
    assert named(versions, "current") == 1
