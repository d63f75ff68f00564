"""Answers of the rounds that the plan names are kept, and those of devices whose enrolment ends are deleted."""

import errno
import json
import logging
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest

from protofleet.coordinator.devices.limits import CoordinatorLimits
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.events import Advance
from protofleet.coordinator.spool.kept_rounds import KEPT, KeptRounds, kept_folders, read_about
from protofleet.edge_client.privacy import PrivacySettings
from protofleet.lab.report.run_page import keep_notice
from protofleet.lab.simulation.federation import Simulation, build_half
from protofleet.methods.contract.bridge import to_numpy
from protofleet.protocol.security.keys import Keys
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.storage.disk import Disk
from protofleet.protocol.wire.arrays import Body
from tests.support.few_methods import FEW_STEPS
from tests.support.small_federation import POLICY, plan, shard

DEVICES = ("device-0", "device-1", "device-2")


def federation(folder, keep, method="fedproto", answers=None, **more):
    """Return a simulation that keeps the answers of rounds, and stores in `answers` what the devices send."""

    def build(device, plan, data):
        half = build_half(device, plan, data)
        honest = half.run

        def run(ask):
            found = honest(ask)
            if answers is not None:
                # The halves change their weights in place.
                both = (deepcopy(dict(to_numpy(one))) for one in (ask.payload, found))
                answers[device, half.number, ask.phase] = tuple(both)
            return found

        half.run = run
        return half

    made = replace(plan(method, POLICY.rounds, **FEW_STEPS), keep=keep)
    shards = {name: shard(i) for i, name in enumerate(DEVICES)}
    return Simulation(made, shards, POLICY, folder, build=build, **more)


def folders(run):
    return {folder.name: folder for folder in kept_folders(run.folder / "coordinator" / KEPT)}


def arrays_of(path):
    content = path.read_bytes()
    return dict(Body(lambda start, stop: content[start:stop], len(content)))


def assert_equal(found, sent):
    assert found.keys() == sent.keys()
    assert all(np.array_equal(found[name], sent[name]) for name in sent)


@pytest.mark.parametrize(
    ("method", "phases"), [("fedproto", ["train"]), ("fedpall", ["mix", "train"]), ("fedavg", ["train"])]
)
def test_the_answers_of_the_named_rounds_are_stored_as_the_devices_sent_them(tmp_path, method, phases):
    sent = {}
    run = federation(tmp_path, (1, "last"), method, sent).run()
    assert sorted(folders(run)) == [f"{number}.{phase}" for number in (1, POLICY.rounds) for phase in phases]
    for name, folder in folders(run).items():
        number, phase = name.split(".")
        about = read_about(folder)
        assert about["examples"] == {device: len(run.shards[device].train.y) for device in DEVICES}
        for device in DEVICES:
            broadcast, answer = sent[device, int(number), phase]
            assert_equal(arrays_of(folder / f"{device}.answer"), answer)
            assert_equal(arrays_of(folder / "broadcast.body"), broadcast)
    assert json.loads((run.folder / "coordinator/kept/plan.json").read_bytes())["keep"] == [1, "last"]


@pytest.mark.parametrize("keep", [(1, "last"), ()])
def test_the_records_and_the_page_of_a_run_name_the_rounds_with_kept_answers(tmp_path, keep):
    run = federation(tmp_path, keep)
    file = RoundsFile(tmp_path / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    run.run()
    assert [record["keep"] for record in file.records] == [[*keep]] * POLICY.rounds + [[]]
    assert file.records == RoundsFile(tmp_path / "rounds.jsonl").records
    assert run.plan.method_words == ("fedproto, answers kept: 1 and last" if keep else "fedproto")
    assert ("answers of round 1 and the last round" in keep_notice(keep)) == bool(keep)


def test_the_stated_counts_of_classes_are_kept_with_the_answers(tmp_path):
    run = federation(tmp_path, (2,), "fedhp").run()
    (folder,) = folders(run).values()
    counts = {name: run.shards[name].train.y.bincount(minlength=3).tolist() for name in DEVICES}
    assert folder.name == "2.train" and read_about(folder)["counts"] == counts


def test_kept_answers_of_a_run_with_a_codec_are_decoded(tmp_path):
    sent = {}
    run = federation(tmp_path / "whole", (1,), "fedproto", sent)
    coded = run.plan.with_codec("small")
    run = Simulation(coded, run.shards, POLICY, tmp_path, build=run.build).run()
    (folder,) = folders(run).values()
    for device in DEVICES:
        found, answer = arrays_of(folder / f"{device}.answer"), sent[device, 1, "train"][1]
        assert found.keys() == answer.keys() and np.array_equal(found["labels"], answer["labels"])
        assert not np.array_equal(found["prototypes"], answer["prototypes"])
        assert np.allclose(found["prototypes"], answer["prototypes"], atol=0.1)


def test_by_default_no_answer_is_kept_and_the_plan_has_the_bytes_of_earlier_versions(tmp_path):
    run = federation(tmp_path, ()).run()
    assert not (tmp_path / "coordinator" / KEPT).exists() and b"keep" not in run.plan.encode()


def names_in(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix == ".answer")


def test_the_answers_of_a_removed_device_are_deleted_while_the_run_waits(tmp_path, caplog):
    run = federation(tmp_path, (1, 2))
    run.run(lambda: run.service.run.machine.round == 2)
    folder = folders(run)["1.train"]
    content = (folder / "device-1.answer").read_bytes()
    with caplog.at_level(logging.INFO, "protofleet.coordinator"):
        del run.keyring["device-1"]
        run.kill("device-1")
        run.run(lambda: False, 5)  # The quorum is three devices, so no round ends any more.
    assert (
        "the kept answers of device-1 to 1.train are deleted, because their enrolment has ended"
        in caplog.text
    )
    assert names_in(folder) == ["device-0.answer", "device-2.answer"]
    files = [path for path in folder.parent.rglob("*") if path.is_file()]
    assert not any(path.read_bytes() == content for path in files)
    assert "device-1" not in (folder / "answers.json").read_text()


def test_the_earlier_answers_of_a_device_that_is_enrolled_again_are_deleted(tmp_path):
    run = federation(tmp_path, (1, 3))
    run.run(lambda: run.service.run.machine.round == 2)
    run.kill("device-1")
    run.keys["device-1"] = Keys.new()
    run.keyring["device-1"] = run.keys["device-1"].public
    run.boot_device("device-1")
    run.run()
    assert run.service.finished
    assert names_in(folders(run)["1.train"]) == ["device-0.answer", "device-2.answer"]
    assert names_in(folders(run)["3.train"]) == [f"device-{i}.answer" for i in range(3)]


def test_answers_of_rounds_above_the_limit_are_not_kept_and_the_run_continues(tmp_path, caplog):
    whole = federation(tmp_path / "whole", (1, 2, 3)).run()
    sizes = [sum(path.stat().st_size for path in folder.iterdir()) for folder in folders(whole).values()]
    limits = CoordinatorLimits(kept_bytes=sizes[0] + sizes[1] + 100)
    run = federation(tmp_path / "few", (1, 2, 3), limits=limits).run()
    assert run.service.finished and list(folders(run)) == ["1.train", "2.train"]
    (said,) = [record.getMessage() for record in caplog.records if "is not kept" in record.getMessage()]
    assert "3.train is not kept: its answers and their broadcast take" in said
    assert (
        "limits.kept_bytes is" in said
        and "name fewer rounds in keep.answers, or raise limits.kept_bytes" in said
    )


class FullDisk(Disk):
    """A disk that has no space for kept answers, although it reported free bytes."""

    def before_step(self, step, what):
        if step == "sync" and "1.train" in str(what):
            raise OSError(errno.ENOSPC, "no space left")


def test_a_full_disk_keeps_no_answers_and_does_not_stop_the_run(tmp_path, caplog):
    run = federation(tmp_path, (1, 2), make_disk=lambda name: FullDisk(durable=False)).run()
    assert run.service.finished and list(folders(run)) == ["2.train"]
    assert "round 1 train is not kept: the disk is full" in caplog.text
    assert not list((tmp_path / "coordinator" / KEPT).glob(".*")), "no file of the round stays"


class SmallDisk(Disk):
    """A disk with a number of free bytes that a test sets."""

    room = 1 << 40

    def free_bytes(self, folder):
        return self.room


def test_answers_are_not_kept_if_they_would_take_the_space_of_the_next_save(tmp_path, caplog):
    disk = SmallDisk(durable=False)
    run = federation(tmp_path, (), make_disk=lambda name: disk)
    run.run(lambda: run.service.run.machine.round == 2)
    spool, reader = run.service.run.spool, run.service.run.server_runner.reader
    kept = KeptRounds(replace(run.plan, keep=(1,)), spool, reader, 1 << 40)
    used = Advance(1, "train", DEVICES), [], spool.answers(1, "train"), dict.fromkeys(DEVICES, "")
    disk.room = spool.bytes_of_a_save + 500
    kept.keep(*used)
    assert not folders(run)
    assert "1.train is not kept: its answers and their broadcast take" in caplog.text
    assert "but beside the next save the disk has room for 500" in caplog.text
    disk.room = 1 << 40
    kept.keep(*used)
    assert list(folders(run)) == ["1.train"]


@pytest.mark.parametrize(
    ("keep", "words"),
    [((4,), 'keep.answers names round 4, but the run has 3 rounds; take 3 or "last"')],
)
def test_a_plan_that_keeps_a_round_after_the_last_round_is_refused(keep, words):
    with pytest.raises(SettingsError, match=words):
        replace(plan("fedproto", 3), keep=keep)


def test_a_device_can_refuse_a_run_that_keeps_answers():
    careful, made = PrivacySettings(refuse=("keep",)), plan("fedproto", 3)
    careful.check(made)
    PrivacySettings().check(replace(made, keep=(1,)))
    words = r"keeps the answers of round 1, the last round \(keep.answers\), and this device refuses that"
    with pytest.raises(SettingsError, match=words) as error:
        careful.check(replace(made, keep=(1, "last")))
    assert len(str(error.value).splitlines()) == 1


def test_a_device_that_refuses_kept_answers_leaves_before_it_sends_an_answer(tmp_path):
    sent = {}
    run = federation(tmp_path, (1,), answers=sent, privacy=PrivacySettings(refuse=("keep",)))
    run.run(lambda: all(agent.view.problem for agent in run.agents.values()), 100)
    for agent in run.agents.values():
        assert (
            "cannot follow the run's plan: the coordinator keeps the answers of round 1" in agent.view.problem
        )
    assert not sent and not folders(run)


def test_a_run_with_masked_sums_keeps_no_answers():
    made = plan("fedavg", 3)
    with pytest.raises(SettingsError, match="secagg and keep.answers are both set") as error:
        replace(made, keep=(1,), secagg=SecaggSettings())
    assert len(str(error.value).splitlines()) == 1
