"""The right sensor is chosen, its readings become joules, and its failure is reported."""

import logging

import pytest

from protofleet.edge_client.host.answer_energy import AnswerEnergy
from protofleet.edge_client.host.energy import EnergyMeter, meter_of_board
from protofleet.edge_client.host.power import power_sensor
from protofleet.edge_client.metrics import DeviceMetrics
from protofleet.edge_client.state.file import Answer
from protofleet.edge_client.task_handler import figures_of
from tests.edge_client.host.boards_of_power import ina, rapl, write
from tests.support.small_federation import simulation


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def draws(root, watts, rail="VDD_IN"):
    ina(root, 3, {rail: watts})


def test_the_input_rail_of_a_board_is_counted_without_the_rails_it_feeds(tmp_path):
    ina(tmp_path, 2, {"VDD_IN": 6.0, "VDD_CPU_GPU_CV": 2.0, "VDD_SOC": 1.5})
    ina(tmp_path, 4, {"OTHER": 1.0})
    rapl(tmp_path, "intel-rapl:0", "package-0", 0)
    assert power_sensor(tmp_path).name == "hwmon2:VDD_IN"


def test_parallel_rails_are_added_up_if_the_board_has_no_input_rail(tmp_path, clock):
    ina(tmp_path, 0, {"VDD_GPU_SOC": 4.0, "VDD_CPU_CV": 2.0})
    ina(tmp_path, 1, {"VIN_SYS_5V0": 3.0})
    write(
        tmp_path, sys__class__hwmon__hwmon2__power1_input=90_000_000
    )  # a graphics card measures only itself
    write(tmp_path, sys__class__hwmon__hwmon2__name="amdgpu")
    meter = EnergyMeter(power_sensor(tmp_path), clock=clock)
    before = meter.read()
    clock.now += 10
    assert meter.read().since(before) == pytest.approx(90.0)


def test_energy_between_two_readings_is_their_mean_power_times_the_time(tmp_path, clock):
    draws(tmp_path, 2.0)
    meter = EnergyMeter(power_sensor(tmp_path), clock=clock)
    joules, before = [], meter.read()
    for seconds, watts in ((1.0, 6.0), (0.5, 6.0), (4.0, 0.0)):
        clock.now += seconds
        draws(tmp_path, watts)
        joules.append(meter.read().since(before))
    assert joules == pytest.approx([4.0, 7.0, 19.0])


def test_a_negative_current_counts_as_no_energy(tmp_path, clock):
    draws(tmp_path, -0.5)
    meter = EnergyMeter(power_sensor(tmp_path), clock=clock)
    before = meter.read()
    clock.now += 10
    assert meter.read().since(before) == 0.0


def test_rapl_energy_is_that_of_packages_and_memory_without_nested_zones(tmp_path, clock):
    first = rapl(tmp_path, "intel-rapl:0", "package-0", 999_000_000)
    memory = rapl(tmp_path, "intel-rapl:0:1", "dram", 5_000_000)
    others = []
    for zone, name in (
        ("intel-rapl:0:0", "core"),
        ("intel-rapl:1", "psys"),
        ("intel-rapl-mmio:0", "package-0"),
    ):
        others.append(rapl(tmp_path, zone, name, 0))
    meter = EnergyMeter(power_sensor(tmp_path), clock=clock)
    before = meter.read()
    clock.now += 1
    write(first, energy_uj=2_999_999)  # the counter has wrapped at 1,000 J
    write(memory, energy_uj=6_500_000)
    for zone in others:
        write(zone, energy_uj=77_000_000)
    assert meter.read().since(before) == pytest.approx(4.0 + 1.5)


def test_energy_is_unknown_after_its_counter_was_reset(tmp_path, clock):
    zone = rapl(tmp_path, "intel-rapl:0", "package-0", 200_000_000_000, most=262_000_000_000)
    meter = EnergyMeter(power_sensor(tmp_path), clock=clock)
    before = meter.read()
    clock.now += 1
    write(zone, energy_uj=10)
    assert meter.read().since(before) is None
    after = meter.read()
    clock.now += 1
    write(zone, energy_uj=5_000_010)
    assert meter.read().since(after) == pytest.approx(5.0)


def test_a_board_without_a_readable_sensor_reports_no_energy(tmp_path, caplog):
    zone = rapl(tmp_path, "intel-rapl:0", "package-0", 1)
    (zone / "energy_uj").unlink()
    (zone / "energy_uj").mkdir()  # even root cannot read it
    with caplog.at_level(logging.INFO, "protofleet.device"):
        assert meter_of_board(str(tmp_path), 1) is None
    assert "no power sensor can be read: energy is not measured" in caplog.text
    answers = AnswerEnergy(None)
    answers.join_run()
    answers.begin_work()
    assert answers.end_work(0.0) == {}


def test_devices_that_share_a_board_divide_its_energy(tmp_path, clock):
    draws(tmp_path, 6.0)
    meters = [EnergyMeter(power_sensor(tmp_path), 3, clock) for _ in range(3)]
    before = [meter.read() for meter in meters]
    clock.now += 5
    assert sum(m.read().since(b) for m, b in zip(meters, before)) == pytest.approx(30.0)


@pytest.fixture
def answers(tmp_path, clock):
    draws(tmp_path, 6.0)
    found = AnswerEnergy(EnergyMeter(power_sensor(tmp_path), clock=clock))
    found.join_run()
    return found


def answer(answers, clock, idle, work, waited=0.0):
    clock.now += idle
    answers.begin_work()
    clock.now += work
    return answers.end_work(waited)


def test_an_update_reports_the_energy_since_the_previous_update(answers, clock):
    assert answer(answers, clock, 2, 10) == pytest.approx({"joules.send": 12.0, "joules.train": 60.0})
    assert answer(answers, clock, 5, 1) == pytest.approx({"joules.send": 30.0, "joules.train": 6.0})


def test_energy_while_work_waits_for_its_turn_does_not_count_as_training(answers, clock):
    assert answer(answers, clock, 0, 10, 0.25) == pytest.approx({"joules.send": 15.0, "joules.train": 45.0})


def test_energy_of_failed_work_counts_as_send_energy_of_the_next_update(answers, clock):
    answers.begin_work()
    clock.now += 3
    assert answer(answers, clock, 1, 2) == pytest.approx({"joules.send": 24.0, "joules.train": 12.0})


def test_updates_omit_energy_after_a_sensor_failure_until_it_is_known_again(answers, clock, tmp_path, caplog):
    rail = tmp_path / "sys/class/hwmon/hwmon3/curr1_input"
    answers.begin_work()
    rail.rename(rail.with_name("away"))
    clock.now += 10
    assert answers.end_work(0.0) == {}
    rail.with_name("away").rename(rail)
    assert answer(answers, clock, 1, 1) == {}, "the energy until the sensor came back is not known"
    assert answer(answers, clock, 1, 1) == pytest.approx({"joules.send": 6.0, "joules.train": 6.0})
    assert caplog.text.count("the energy since the last successful reading is unknown") == 1


def test_the_metrics_of_a_device_state_joules_by_phase_only_if_measured(tmp_path):
    view = next(iter(simulation(tmp_path, "fedavg").agents.values())).view
    measured, dark = DeviceMetrics(view), DeviceMetrics(view)
    for metrics, said in (
        (measured, {"seconds.work": 2.0, "joules.train": 12.0, "joules.send": 0.5}),
        (dark, {"seconds.work": 2.0}),
    ):
        for number in (1, 2):
            answer = Answer("", number, "train", "", "", 1, said)
            metrics.happened("answered", round=number, **figures_of(answer))
    name = "protofleet_device_energy_joules_total"
    assert measured.registry.get_sample_value(name, {"phase": "train"}) == 24.0
    assert measured.registry.get_sample_value(name, {"phase": "send"}) == 1.0
    assert dark.registry.get_sample_value(name, {"phase": "train"}) is None
    assert dark.registry.get_sample_value("protofleet_device_work_seconds_total") == 4.0
