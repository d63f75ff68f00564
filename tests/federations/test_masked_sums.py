"""Masked sums in whole federations: real devices and a coordinator, in virtual time."""

from dataclasses import replace

import pytest

from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.round.events import Stage
from protofleet.edge_client.privacy import PrivacySettings
from protofleet.edge_client.work_queue import Question
from protofleet.lab.report.run_page import sum_words
from protofleet.protocol.secagg.faults import SecaggError
from protofleet.protocol.settings.reader import encode
from protofleet.protocol.settings.secagg import SecaggSettings
from protofleet.protocol.wire.messages import BlockRequest
from tests.support.few_methods import few
from tests.support.small_federation import assert_same, in_blocks, once_each
from tests.support.summed_simulation import (
    POLICY,
    SETTINGS,
    STEPS,
    STEPS_OF_ROWS,
    SumRecorder,
    books_with_secrets,
    summed,
)

ONE_ROUND = replace(POLICY, rounds=1)


def at(run, step, number=1):
    """Run until the devices have been asked this step."""
    machine = run.service.run.machine

    def asked():
        return (machine.round, machine.asked, machine.stage) == (number, step, Stage.COLLECTING)

    run.run(until=asked)
    assert asked()


@pytest.fixture
def recorder(monkeypatch):
    return SumRecorder(monkeypatch)


def test_a_run_with_masked_sums_learns_the_model_of_a_plain_run(tmp_path, recorder):
    run = summed(tmp_path / "summed").run()
    plain = summed(tmp_path / "plain", settings=None).run()
    assert run.service.finished and plain.service.finished and not run.service.run.diverged
    recorder.check()
    assert [one.survivors for one in recorder.sums] == [tuple(run.shards)] * POLICY.rounds
    one, two = (each.service.run.server_runner.server.state() for each in (run, plain))
    for name, value in two.items():
        if value.is_floating_point():
            assert (one[name] - value).abs().max() < 1e-4


@pytest.mark.parametrize("step", STEPS)
def test_a_device_that_leaves_in_any_step_loses_only_its_own_update(tmp_path, recorder, step):
    run = summed(tmp_path, policy=replace(ONE_ROUND, gather=5), devices=5)
    at(run, step)
    run.kill("device-2")
    run.run()
    assert run.service.finished and not run.service.run.diverged
    recorder.check()
    survivors = recorder.sums[0].survivors
    others = tuple(name for name in run.shards if name != "device-2")
    assert survivors == (others if STEPS.index(step) <= STEPS.index("train.masked") else tuple(run.shards))


@pytest.mark.parametrize("method", ["fedproto", "fednh", "fedhp"])
def test_masked_class_rows_equal_the_rows_of_a_plain_run(tmp_path, recorder, method):
    run = summed(tmp_path / "summed", method).run()
    plain = summed(tmp_path / "plain", method, settings=None).run()
    recorder.check()
    assert [one.terms.stage for one in recorder.sums] == ["presence", "values"] * POLICY.rounds
    one, two = (each.service.run.server_runner.server.state() for each in (run, plain))
    assert one.keys() == two.keys()
    for name, value in two.items():
        if value.is_floating_point():
            assert (one[name] - value).abs().max() < 1e-3
    stated = {member.counts for member in run.service.run.participants.members.values()}
    assert stated == {()}, "the coordinator learns the samples of each class only as a sum"


def test_a_class_with_fewer_holders_than_the_setting_is_in_no_sum(tmp_path, recorder):
    held = [(0, 1), (0, 1), (0, 2), (0, 1, 2)]  # Class 2 has two holders, and class 1 has three.
    run = summed(tmp_path, "fedproto", policy=ONE_ROUND, held=held).run()
    recorder.check()
    server = run.service.run.server_runner.server
    assert server.known.tolist() == [True, True, False]
    (values,) = [one for one in recorder.sums if one.terms.stage == "values"]
    assert not values.words.reshape(3, -1)[2].any() and values.words.reshape(3, -1)[1].any()
    for words in recorder.words[values.terms.hash].values():
        assert not words.reshape(3, -1)[2].any(), "no device sends a row of the class"


def test_the_record_of_a_round_names_the_holders_of_each_class(tmp_path):
    held = [(0, 1), (0, 1), (0, 2), (0, 1, 2), (0, 2), (0, 2)]
    policy = replace(ONE_ROUND, gather=6)
    run = summed(tmp_path, "fedproto", policy=policy, held=held, hyper={"least_samples": 2})
    file = RoundsFile(tmp_path / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    run.run()
    figures = file.records[0]["figures"]
    assert [figures[f"devices.{label}"] for label in range(3)] == [6, 3, 4]


def test_a_class_that_may_have_lost_holders_since_the_count_is_in_no_sum(tmp_path, caplog):
    held = [(0, 1), (0, 1), (0, 2), (0, 1, 2), (0, 2), (0, 2)]  # Class 1 has three holders.
    policy = replace(ONE_ROUND, gather=6, attempts=2)
    settings = replace(SETTINGS, patience_seconds=5.0, strict_cohort=False)
    run = summed(tmp_path, "fedproto", policy=policy, held=held, settings=settings)
    at(run, "train.masked")
    run.kill("device-0")
    run.run(limit=600)
    assert "class 1 may have fewer than 3 holders in the sum" in caplog.text
    assert not run.service.run.server_runner.server.known[1]


def test_a_device_that_refuses_a_step_deletes_the_secrets_of_the_attempt(tmp_path, caplog):
    held = [(0, 1), (0, 1), (0, 2), (0, 1, 2), (0, 2), (0, 2)]  # Class 1 has three holders.
    settings = replace(SETTINGS, patience_seconds=5.0, strict_cohort=False)
    run = summed(tmp_path, "fedproto", policy=replace(ONE_ROUND, gather=6), held=held, settings=settings)
    at(run, "train.masked")
    run.kill("device-0")
    stores = [agent.state.store for name, agent in run.agents.items() if name != "device-0"]
    assert all(list(books_with_secrets(store)) for store in stores)
    words = "class 1 may have fewer than 3 holders in the sum"
    run.run(until=lambda: caplog.text.count(words) == len(stores), limit=60)
    assert [list(books_with_secrets(store)) for store in stores] == [[]] * len(stores)


@pytest.mark.parametrize("strict", [True, False])
def test_a_strict_cohort_without_one_device_makes_no_sums_and_the_run_continues(
    tmp_path, recorder, caplog, strict
):
    settings = replace(SETTINGS, strict_cohort=strict, patience_seconds=5.0)
    policy = replace(POLICY, rounds=3, gather=4)
    run = summed(tmp_path / "run", "fedproto", devices=4, policy=policy, settings=settings)
    file, metrics = RoundsFile(tmp_path / "rounds.jsonl"), Metrics(run.service.run.view)
    keep_journal(run.service.run, [file, metrics])
    at(run, "train", 2)
    run.kill("device-2")
    run.run(limit=2000)
    assert run.service.finished and not run.service.run.diverged
    counted = metrics.registry.get_sample_value("protofleet_rounds_without_sum_total")
    assert counted == (2 if strict else 0)
    recorder.check()
    rounds = [one.terms.round for one in recorder.sums if one.terms.stage == "values"]
    assert rounds == ([1] if strict else [1, 2, 3])
    without = [record["without_sum"] for record in file.records]
    assert ["differ only by device-2" in words for words in without] == [False, strict, strict, False]
    used = [[name[-1:] for name in record["participants"]] for record in file.records[:3]]
    assert used == [["0", "1", "2", "3"], *([[]] * 2 if strict else [["0", "1", "3"]] * 2)]
    waits = f"waits up to {policy.patience_seconds:.0f} s (policy.patience_seconds) for device-2"
    assert caplog.text.count(waits) == strict, "the run waits once for each absence"


def test_a_strict_cohort_waits_for_a_device_that_comes_back(tmp_path, recorder):
    settings = replace(SETTINGS, patience_seconds=5.0)
    run = summed(tmp_path, "fedproto", devices=4, policy=POLICY, settings=settings)
    at(run, "train.masked", 2)
    run.kill("device-2")
    run.run(until=lambda: run.service.run.machine.sums.wait_until, limit=300)
    run.boot_device("device-2")
    run.run(limit=2000)
    assert run.service.finished and not run.service.run.diverged
    recorder.check()
    values = [one for one in recorder.sums if one.terms.stage == "values"]
    assert [one.terms.round for one in values] == [1, 2]
    assert [len(one.survivors) for one in values] == [4, 4]


def test_a_new_device_waits_until_the_cohort_differs_by_enough_devices(tmp_path, recorder):
    run = summed(tmp_path, "fedproto", devices=6, policy=replace(POLICY, rounds=3, gather=3))
    new = ("device-3", "device-4", "device-5")
    for name in new:
        run.kill(name)
    at(run, "train.presence.masked", 1)
    run.boot_device(new[0])
    at(run, "train.agree", 1)
    run.kill("coordinator")  # The next coordinator knows the cohort of the sum.
    run.boot_coordinator()
    run.run(until=lambda: new[0] in run.service.run.machine.roster, limit=60)
    at(run, "train", 2)
    assert run.service.run.machine.cohort == ("device-0", "device-1", "device-2")
    for name in new[1:]:
        run.boot_device(name)
    run.run(until=lambda: len(run.service.run.machine.roster) == 6, limit=60)
    run.run(limit=2000)
    assert run.service.finished and not run.service.run.diverged
    recorder.check()
    newest = {(one.terms.round, one.terms.stage): len(one.survivors) for one in recorder.sums}
    assert newest == {(number, stage): 6 if number == 3 else 3 for number, stage in newest}
    assert len(newest) == 6


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_the_numbers_of_a_sum_have_the_bits_of_the_settings(tmp_path, recorder, bits):
    run = summed(tmp_path, policy=ONE_ROUND, settings=replace(SETTINGS, bits=bits, limit=8.0)).run()
    assert run.service.finished
    recorder.check()
    assert recorder.sums[0].terms.field.bits == bits


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the run of a method in which no process is killed."""
    return once_each(lambda method: summed(tmp_path_factory.mktemp(method), method).run())


@pytest.mark.parametrize(
    ("method", "step", "killed"),
    few(
        [
            (method, step, killed)
            for method, steps in (("fedavg", STEPS), ("fedproto", STEPS_OF_ROWS))
            for step in steps
            for killed in ("coordinator", "device-1")
        ],
        9,
    ),
)
def test_a_restart_in_a_step_changes_no_bit(tmp_path, whole, method, step, killed):
    run = summed(tmp_path, method)
    at(run, step, 2)
    run.kill(killed)
    if killed == "coordinator":
        run.boot_coordinator()
    else:
        run.boot_device(killed)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    assert_same(run, whole(method))


def test_too_few_devices_for_a_sum_start_the_round_again(tmp_path, recorder):
    run = summed(tmp_path, policy=ONE_ROUND, devices=4)
    at(run, "train.masked")
    run.kill("device-0")
    run.kill("device-1")
    run.run(until=lambda: run.service.run.machine.attempt == 1)
    run.boot_device("device-0")
    run.boot_device("device-1")
    run.run()
    assert run.service.finished and not run.service.run.diverged
    recorder.check()
    assert len(recorder.sums) == 1 and len(recorder.words) == 2


def test_a_device_trains_once_for_all_attempts_of_a_round(tmp_path, monkeypatch):
    trained = []
    run = summed(tmp_path, policy=ONE_ROUND, devices=4)
    for agent in run.agents.values():
        job = agent.tasks.runner.start_job

        def start(plan, real=job, name=agent.link.me.name):
            made = real(plan)
            work = made.run

            def counted(phase, number, arrays):
                trained.append((name, phase))
                return work(phase, number, arrays)

            made.run = counted
            return made

        agent.tasks.runner.start_job = start
    at(run, "train.masked")
    run.kill("device-0")
    run.kill("device-1")
    run.run(until=lambda: run.service.run.machine.attempt == 1)
    run.boot_device("device-0")
    run.boot_device("device-1")
    run.run()
    assert run.service.finished
    assert trained.count(("device-2", "train")) == 1


def test_the_coordinator_cannot_fetch_private_objects_of_a_device(tmp_path, monkeypatch):
    run = summed(tmp_path, policy=ONE_ROUND)
    in_blocks(run, monkeypatch)
    agent, machine = run.agents["device-1"], run.service.run.machine
    run.run(until=lambda: machine.asked == "train.masked" and agent.link.served)
    own = {bytes.fromhex(name) for name in agent.state.saved.masked.objects()}
    assert len(own) == 3 and all(agent.state.store.has(name) for name in own)

    def blocks():
        return sum(
            n for (way, kind, _), n in agent.link.meter.messages.items() if (way, kind) == ("up", "block")
        )

    run.run(until=lambda: machine.asked == "train.agree")
    before = blocks()
    for name in own:
        run.service.run.link.send("device-1", BlockRequest(name, ((0, 1),), again=True))
    run.run(until=lambda: False, limit=0.2)
    assert blocks() == before


@pytest.mark.parametrize("phase", ["mix", "mix.masked", "evaluate.masked"])
def test_a_device_refuses_a_phase_that_the_plan_does_not_sum(tmp_path, phase):
    """A coordinator that lies could ask the method of the plan for another phase."""
    run = summed(tmp_path, policy=ONE_ROUND).run()
    agent = run.agents["device-1"]
    broadcast = bytes.fromhex(agent.state.saved.broadcast)
    question = Question("a" * 64, 3, phase, broadcast, agent.state.saved.epoch)
    with pytest.raises(SecaggError, match=f"phase {phase} is not summed"):
        agent.tasks.runner.answer(agent.tasks.run.job, question, agent.tasks.run.name)


def test_a_device_deletes_its_secrets_after_the_sum(tmp_path):
    run = summed(tmp_path, policy=ONE_ROUND)
    at(run, "train.unmask")
    agent = run.agents["device-1"]
    before = agent.state.saved.masked
    run.run()
    after = agent.state.saved.masked
    assert not after.payload and not after.words
    assert not any(agent.state.store.has(bytes.fromhex(name)) for name in before.objects())


@pytest.mark.parametrize("restarts", [True, False])
def test_an_absent_device_deletes_its_secrets_after_the_end_of_the_run(tmp_path, restarts):
    run = summed(tmp_path, policy=ONE_ROUND)
    at(run, "train.unmask")
    run.kill("device-1")
    run.run()
    assert run.service.finished and run.agents["device-0"].run.over
    run.boot_device("device-1")
    agent = run.agents["device-1"]
    before, store = agent.state.saved.masked, agent.state.store
    assert before.payload and list(books_with_secrets(store))
    if restarts:  # The process dies after it has noted the end, before it deletes anything.
        agent.places.first.context.heard_file.note_run_end(agent.state.saved.run)
        run.kill("device-1")
        run.boot_device("device-1")
        agent, store = run.agents["device-1"], run.agents["device-1"].state.store
    else:
        run.run(until=lambda: agent.run.over, limit=120)
    assert not list(books_with_secrets(store))
    after = agent.state.saved.masked
    assert not (after.payload or after.words) and not store.has(bytes.fromhex(before.words))
    assert after.book, "the device still remembers its attempts"


def test_a_number_above_the_limit_is_logged_with_the_setting_to_change(tmp_path, caplog):
    run = summed(tmp_path, policy=ONE_ROUND, settings=SecaggSettings(limit=1e-3, metrics="each"))
    run.run(until=lambda: "set a larger limit" in caplog.text, limit=300)
    assert "out_of_range" in caplog.text


def test_metrics_of_single_devices_are_off_by_default(tmp_path):
    run = summed(tmp_path, policy=ONE_ROUND, settings=SecaggSettings(limit=64.0)).run()
    assert run.service.finished
    for agent in run.agents.values():
        for answer in agent.state.saved.answers:
            assert {name.partition(".")[0] for name in answer.metrics} <= {"seconds", "joules", "celsius"}


@pytest.mark.parametrize("settings", [SETTINGS, None])
def test_a_device_that_requires_masked_sums_leaves_a_run_without_them(tmp_path, settings):
    run = summed(tmp_path, policy=ONE_ROUND, settings=settings)
    agent = run.agents["device-1"]
    agent.tasks.runner.privacy = PrivacySettings(require=("secagg",))
    run.run()
    assert run.service.finished
    assert ("takes part only in runs of masked sums" in agent.view.problem) == (settings is None)
    assert bool(agent.state.saved.answers) == (settings is not None)


@pytest.mark.parametrize("settings", [SETTINGS, None])
def test_the_records_of_a_run_show_masked_sums(tmp_path, settings):
    run = summed(tmp_path / "run", policy=ONE_ROUND, settings=settings)
    file = RoundsFile(tmp_path / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    run.run()
    phases = [phase["phase"] for phase in file.records[0]["phases"]]
    assert phases == ([*STEPS] if settings else ["train"])
    assert run.plan.method_words == ("fedavg, masked sums" if settings else "fedavg")
    words = "".join(sum_words({"secagg": encode(settings)} if settings else {}))
    assert ("only the sums of at least 3 updates, in numbers of 32 bits" in words) == bool(settings)


def test_a_round_whose_sum_may_be_unmasked_is_not_repeated(tmp_path, caplog):
    run = summed(tmp_path, policy=ONE_ROUND)
    at(run, "train.unmask")
    run.kill("device-0")
    run.kill("device-1")
    run.run(limit=600)
    assert run.service.finished and not run.service.run.diverged
    assert "round 1 ends without a sum, and the model stays as it was" in caplog.text
    assert "begins again" not in caplog.text


def test_a_repeated_round_counts_the_holders_of_classes_again(tmp_path, recorder):
    run = summed(tmp_path, "fedproto", policy=ONE_ROUND)
    at(run, "train.masked")
    for name in ("device-0", "device-1"):
        run.kill(name)
    run.run(until=lambda: run.service.run.machine.attempt == 1)
    for name in ("device-0", "device-1"):
        run.boot_device(name)
    run.run()
    assert run.service.finished and not run.service.run.diverged
    recorder.check()
    assert [one.terms.stage for one in recorder.sums] == ["presence", "presence", "values"]


def test_a_device_that_has_lost_its_attempt_joins_no_further_attempt(tmp_path, caplog):
    run = summed(tmp_path, policy=ONE_ROUND, settings=replace(SETTINGS, patience_seconds=5.0))
    at(run, "train.masked")
    state = run.agents["device-1"].state
    book = state.saved.masked.book
    run.kill("device-1")
    for path in state.store.folder.glob(f"{book}*"):
        path.unlink()
    run.boot_device("device-1")
    run.run(limit=600)
    assert run.service.finished and not run.service.run.diverged
    assert not run.agents["device-1"].state.saved.masked.book
