"""A queue that was restored from a backup pauses its runs. A run continues under its next name on the wire."""

import time

import pytest

from tests.crash.queue_world import DEVICES
from tests.crash.restored_world import RUN, restored_world, virtual


@pytest.fixture
def world(tmp_path):
    made = restored_world(tmp_path)
    with virtual(made):
        yield made.begin()


def restore(world, behind, at=2, method="fedavg", rounds=6, **more):
    """Let the run come `behind` rounds further than its backup, which is of round `at`, and put the backup back."""
    world.submit(method, rounds)
    world.until_round(at)
    backup = world.back_up()
    world.until_round(at + behind)
    world.until(lambda: all(saved(world, device).last_round >= at + behind for device in DEVICES))
    world.put_back(backup, **more)


def saved(world, device, run=RUN):
    return world.agents[device].state.of(run).saved


def finish(world):
    world.until(lambda: world.rows().get(RUN, {}).get("over"))
    assert world.rows()[RUN]["state"] == "finished"


@pytest.mark.parametrize("behind", [1, 3])
def test_a_run_behind_its_devices_stays_paused_until_it_gets_a_new_generation(world, behind):
    restore(world, behind)
    row = world.rows()[RUN]
    assert row["state"] == "paused" and row["reason"].startswith("restored from a backup; ")
    sent, before = len(world.asked), world.clock.now
    world.hears_devices()
    refused = world.order("resume")
    assert refused["verdict"] == "refused"
    assert f"have answered up to round {2 + behind}, and this folder is at round 2" in refused["words"]
    assert f"`protofleet resume {RUN} --new-generation`" in refused["words"]
    world.until(lambda: world.clock.now > before + 60.0)
    assert len(world.asked) == sent and world.red is None, "no device is asked"
    assert world.order("resume", new_generation=True, keep_halves=False)["verdict"] == "done"
    finish(world)
    assert world.rows()[RUN]["generation"] == 2 and world.mixed() == []
    assert {run for _, run, *_ in world.asked[sent:]} == {f"{RUN}.2"}


def test_a_run_from_a_backup_without_a_lost_round_continues_under_its_name(world):
    restore(world, 0)
    world.hears_devices()
    assert world.order("resume")["verdict"] == "done"
    finish(world)
    assert world.mixed() == [] and {run for _, run, *_ in world.asked} == {RUN}


def test_a_restored_run_is_not_resumed_before_its_devices_report_their_rounds(world):
    restore(world, 1)
    refused = world.order("resume")
    assert refused["verdict"] == "refused" and "0 present devices say" in refused["words"]


def half_of(world, device, run):
    return saved(world, device, run).half


@pytest.mark.parametrize("method", ["fedper", "ditto"])
@pytest.mark.parametrize("keep", [True, False])
def test_devices_keep_their_halves_in_a_new_generation_only_with_keep_halves(world, method, keep):
    restore(world, 1, method=method)
    before = {device: half_of(world, device, RUN) for device in DEVICES}
    assert all(before.values())
    begun = []

    def has_begun():
        entries = {device: saved(world, device, f"{RUN}.2") for device in DEVICES}
        for device, entry in entries.items():
            if entry.run and device not in [name for name, _ in begun]:
                assert not entry.answers and not saved(world, device).run, "one write replaces the entry"
                begun.append((device, entry.half))
        return len(begun) == len(DEVICES)

    assert world.order("resume", new_generation=True, keep_halves=keep)["verdict"] == "done"
    world.until(has_begun)
    assert dict(begun) == (before if keep else dict.fromkeys(DEVICES, ""))
    finish(world)
    assert world.mixed() == []


def test_each_generation_of_a_run_has_its_own_name_on_the_wire(world):
    restore(world, 1)
    world.order("resume", new_generation=True, keep_halves=True)
    world.until(lambda: any(run == f"{RUN}.2" for _, run, *_ in world.asked))
    world.order("pause")
    world.until(lambda: world.rows()[RUN]["state"] == "paused")
    assert world.order("resume", new_generation=True, keep_halves=True)["verdict"] == "done"
    finish(world)
    assert {run for _, run, *_ in world.asked} == {RUN, f"{RUN}.2", f"{RUN}.3"} and world.mixed() == []
    shown = world.order("show")
    assert shown["run"] == RUN and shown["generation"] == 3
    assert (world.runs_folder / RUN / "rounds.jsonl").exists() and not (
        world.runs_folder / f"{RUN}.2"
    ).exists()


def test_a_device_that_missed_a_generation_joins_the_newest_generation(world):
    restore(world, 1, rounds=40)
    away = DEVICES[1]
    world.kill(away)
    world.order("resume", new_generation=True, keep_halves=False)
    world.until(lambda: saved(world, DEVICES[0], f"{RUN}.2").run == f"{RUN}.2")
    world.put_back(world.back_up("later"))
    world.order("resume", new_generation=True, keep_halves=True)
    world.boot_device(away)
    world.until(lambda: all(saved(world, device, f"{RUN}.3").answers for device in DEVICES))
    assert not saved(world, away).run and not saved(world, DEVICES[0], f"{RUN}.2").run
    assert world.mixed() == []
    world.order("stop")


def test_a_device_of_one_run_starts_afresh_in_a_new_generation(tmp_path):
    world = restored_world(tmp_path, old=(DEVICES[0],))
    with virtual(world):
        world.begin()
        restore(world, 1)
        world.hears_devices()
        refused = world.order("resume")
        assert "Old devices, and devices of one run, do not say it" in refused["words"]
        assert world.order("resume", new_generation=True, keep_halves=True)["verdict"] == "done"
        finish(world)
        assert world.mixed() == []
        assert {(device, run) for device, run, *_ in world.asked} == {
            (device, run) for device in DEVICES for run in (RUN, f"{RUN}.2")
        }


def test_a_restored_coordinator_ends_if_a_device_proves_a_higher_epoch(world):
    world.submit()
    world.until_round(2)
    backup = world.back_up()
    for _ in range(3):
        world.restart_coordinator()
    heard = world.connection.link.epoch
    # Without the retained state and with the lower epoch, only a device can prove the higher epoch.
    world.until(lambda: all(agent.link.proof.frame for agent in world.agents.values()))
    world.put_back(backup, above=False, lower=True)
    assert world.connection.link.epoch < heard
    world.until(lambda: world.conducted.service.end is not None)
    assert world.conducted.service.end.proven == heard
    assert world.rows()[RUN]["state"] == "paused"


def test_a_hello_at_the_change_of_generation_gets_no_finished_message(world):
    world.submit()
    world.until_round(2)
    world.order("pause")
    world.until(lambda: world.rows()[RUN]["state"] == "paused" and world.red is not None)
    ends = world.sent_to_devices("finished")
    world.say_hello_beside("resume", new_generation=True, keep_halves=True)
    world.until(lambda: all(saved(world, device, f"{RUN}.2").run for device in DEVICES))
    assert ends == []
    finish(world)
    assert world.mixed() == []


def test_a_queue_claims_an_epoch_above_the_highest_epoch_that_it_has_found(tmp_path):
    world = restored_world(tmp_path, highest=int(time.time()) + 1000)
    with virtual(world):
        world.begin()
        assert world.connection.link.epoch == world.highest + 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            {"new_generation": True, "keep_halves": True},
            "the run is running; only a paused run gets a new generation",
        ),
        ({"new_generation": False, "keep_halves": True}, "the second needs the first"),
        ({"new_generation": 1}, "takes the booleans"),
    ],
)
def test_a_new_generation_is_refused_in_one_line_unless_the_run_is_paused(world, args, words):
    world.submit()
    world.until_round(1)
    world.until(lambda: world.rows()[RUN]["state"] == "running")
    refused = world.order("resume", **args)
    assert refused["verdict"] == "refused" and words in refused["words"]
    world.order("stop")


def test_a_run_cannot_be_submitted_under_a_name_that_is_used_on_the_wire(world):
    restore(world, 1)
    world.order("resume", new_generation=True, keep_halves=False)
    request = {"experiment": "", "after": "", "priority": 0}
    long = world.order("submit", run="x" * 61, request=request)
    assert long["verdict"] == "refused" and "61 letters; the limit is 60" in long["words"]
    taken = world.order("submit", run=f"{RUN}.2", request=request | {"experiment": world.experiment()})
    assert taken["verdict"] == "refused" and f"is a name of {RUN} on the wire" in taken["words"]
    finish(world)


def test_a_new_generation_skips_a_name_that_another_run_has(world):
    world.submit(rounds=40)
    world.until_round(1)
    request = {"experiment": world.experiment(), "after": RUN, "priority": 0}
    assert world.order("submit", run=f"{RUN}.2", request=request)["verdict"] == "done"
    world.order("pause")
    world.until(lambda: world.rows()[RUN]["state"] == "paused")
    assert "goes on as red.3" in world.order("resume", new_generation=True, keep_halves=False)["words"]
    world.order("stop")
