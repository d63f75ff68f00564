"""The bytes by device add up to the bytes of the round and equal what each device counts itself."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from protofleet.coordinator.observe.journal import by_kind
from protofleet.coordinator.observe.metrics import Metrics
from protofleet.coordinator.observe.observers import keep_journal
from protofleet.coordinator.observe.record import ALL, MOST_DEVICES, OTHER, RoundRecord, divided
from protofleet.coordinator.observe.rounds_file import RoundsFile
from protofleet.coordinator.observe.series import SERIES_BY_DEVICE
from protofleet.protocol.link.meter import DOWN, UP
from protofleet.protocol.wire.kinds import MOST_KINDS, declared_kinds
from protofleet.protocol.wire.reasons import Rejected
from tests.support.small_federation import POLICY, replace_coordinator, simulation
from tests.tools.pages.test_metrics_document import MEANINGS, series
from tools.pages.metrics import PAGE

LAST, WHOLE = "protofleet_round_device_wire_bytes", "protofleet_run_device_wire_bytes_total"


def summed(by_device):
    """Return (direction, kind) -> bytes, summed over all rows."""
    found = Counter()
    for ways in by_device.values():
        for way, kinds in ways.items():
            for kind, size in kinds.items():
                found[way, kind] += size
    return found


def flat(wire):
    return Counter({(way, kind): size for way, kinds in wire.items() for kind, size in kinds.items()})


def crossed_by_chance(draw):
    names = ["", *(f"device-{i}" for i in range(draw.choice((0, 3, 64, 65, 300))))]
    return {
        (name, way, kind): draw.choice((0, draw.randrange(10_000)))
        for name in names
        for way in (UP, DOWN)
        for kind in ("control", "weights")
    }


@pytest.mark.parametrize("seed", range(30))
def test_rows_add_up_to_the_round_and_name_the_devices_with_the_most_bytes(seed):
    draw = random.Random(seed)
    crossed = crossed_by_chance(draw)
    earlier = {
        (way, "control"): draw.randrange(100) for way in (UP, DOWN)
    }  # bytes of an earlier process belong to no device
    total = Counter(earlier)
    for (_, way, kind), size in crossed.items():
        total[way, kind] += size
    found = divided(crossed, by_kind(total))
    assert summed(found) == +total
    sizes = Counter()
    for (name, *_), size in crossed.items():
        sizes[name] += size
    del sizes[""]
    named = [name for name in found if name not in (ALL, OTHER)]
    assert len(named) == min(MOST_DEVICES, sum(size > 0 for size in sizes.values()))
    left_out = [size for name, size in sizes.items() if name not in named]
    assert all(sizes[name] >= max(left_out, default=0) for name in named)
    for name in named:
        own = {place[1:]: size for place, size in crossed.items() if place[0] == name and size}
        assert flat(found[name]) == Counter(own)


def test_a_broadcast_counts_for_all_devices_and_an_unknown_sender_for_no_device():
    crossed = {("", DOWN, "weights"): 900, ("", UP, "control"): 70, ("d", UP, "weights"): 900}
    wire = {UP: {"weights": 900, "control": 70}, DOWN: {"weights": 900}}
    assert divided(crossed, wire) == {
        "d": {UP: {"weights": 900}, DOWN: {}},
        ALL: {UP: {}, DOWN: {"weights": 900}},
        OTHER: {UP: {"control": 70}, DOWN: {}},
    }


def observed(run, folder):
    file, metrics = RoundsFile(folder / "rounds.jsonl"), Metrics(run.service.run.view)
    keep_journal(run.service.run, [file, metrics])
    return file, metrics


def test_the_rows_of_each_device_equal_the_bytes_that_the_device_counts(tmp_path):
    """No message is lost here, so each end has received what the other has sent."""
    run = simulation(tmp_path / "run", "fedavg")
    file, _ = observed(run, tmp_path)
    run.run()
    after_the_end = run.service.run.link.meter.snapshot()
    rows = Counter()
    for line in file.records:
        assert summed(line["by_device"]) == flat(line["wire"])
        for device, ways in line["by_device"].items():
            for (way, kind), size in flat(ways).items():
                rows[device, way, kind] += size
    assert {device for device, *_ in rows} == {*run.agents, ALL}
    for name, agent in run.agents.items():
        for kind in ("weights", "prototypes"):
            assert rows[name, UP, kind] == agent.link.meter.wire[UP, kind]
            heard = rows[name, DOWN, kind] + rows[ALL, DOWN, kind]
            assert heard == agent.link.meter.wire[DOWN, kind]
    assert sum(rows.values()) <= sum(after_the_end.wire.values())
    assert rows["device-0", UP, "weights"] > 0 and rows[ALL, DOWN, "weights"] > 0


def of_device(metrics, name):
    found = Counter()
    for (device, way, kind, method), value in series(metrics, name).items():
        assert method == "fedavg"
        found[device, way, kind] += value
    return found


def test_metrics_equal_the_round_lines_also_after_a_kill_of_the_coordinator(tmp_path):
    run = simulation(tmp_path / "run", "fedavg", policy=replace(POLICY, rounds=2))
    file = RoundsFile(tmp_path / "rounds.jsonl")
    keep_journal(run.service.run, [file])
    run.run(until=lambda: len(file.records) == 1)
    replace_coordinator(run, file)
    metrics = Metrics(run.service.run.view)
    metrics.restore((RoundRecord(**{**line, "phases": []}) for line in file.records), 0.0)
    keep_journal(run.service.run, [metrics])
    run.run()
    lines = file.records
    assert len(lines) == 3
    whole = Counter()
    for line in lines:
        assert summed(line["by_device"]) == flat(line["wire"])
        for device, ways in line["by_device"].items():
            whole.update({(device, *place): size for place, size in flat(ways).items()})
    assert of_device(metrics, WHOLE) == whole
    last = {(d, *place): n for d, ways in lines[-1]["by_device"].items() for place, n in flat(ways).items()}
    assert of_device(metrics, LAST) == Counter(last)


def test_round_lines_of_an_earlier_version_count_for_no_single_device(tmp_path):
    run = simulation(tmp_path / "run", "fedavg")
    metrics = Metrics(run.service.run.view)
    metrics.restore([RoundRecord(1, 0, "training", wire={UP: {"weights": 7}, DOWN: {"control": 3}})], 0.0)
    expected = Counter({(OTHER, UP, "weights"): 7, (OTHER, DOWN, "control"): 3})
    assert of_device(metrics, LAST) == of_device(metrics, WHOLE) == expected


def test_a_replayed_round_whose_line_is_written_is_shown_as_in_its_line(tmp_path):
    metrics = Metrics(simulation(tmp_path / "run", "fedavg").service.run.view)
    written = RoundRecord(1, 0, "training", wire={UP: {"weights": 7}, DOWN: {"control": 3}})
    metrics.restore([written], 0.0)
    metrics.round_ended(replace(written, wire={UP: {"weights": 7}, DOWN: {"control": 300}}))
    expected = Counter({(OTHER, UP, "weights"): 7, (OTHER, DOWN, "control"): 3})
    assert of_device(metrics, LAST) == of_device(metrics, WHOLE) == expected


def test_a_run_names_its_first_64_devices_and_adds_the_bytes_of_the_others_to_one_row(tmp_path):
    run = simulation(tmp_path / "run", "fedavg")
    metrics = Metrics(run.service.run.view)
    records = [
        RoundRecord(
            number, 0, "training", wire={UP: {"weights": 64}, DOWN: {}},
            by_device={f"device-{64 * (number - 1) + i}": {UP: {"weights": 1}, DOWN: {}} for i in range(64)},
        )
        for number in (1, 2)
    ]  # fmt: skip
    metrics.restore(records, 0.0)
    found = of_device(metrics, WHOLE)
    assert len(found) == MOST_DEVICES + 1 and found[OTHER, UP, "weights"] == 64
    assert sum(found.values()) == 128


def test_a_large_fleet_with_all_kinds_has_the_number_of_series_on_the_page(tmp_path):
    """Two rounds have other devices, and each device has bytes of each kind in both directions."""
    kinds = [*declared_kinds(f"array{i}" for i in range(MOST_KINDS)).declared, "control"]
    places = [(way, kind) for way in (UP, DOWN) for kind in kinds]
    metrics = Metrics(simulation(tmp_path / "run", "fedavg").service.run.view)
    records = []
    for number in (1, 2):
        names = ["", *(f"device-{number}-{i}" for i in range(2 * MOST_DEVICES))]
        crossed = {(name, *place): 1 for name in names for place in places}
        wire = by_kind(Counter({place: len(names) for place in places}))
        records.append(RoundRecord(number, 0, "training", wire=wire, by_device=divided(crossed, wire)))
    metrics.restore(records, 0.0)
    # Nothing that devices send is a broadcast, so the row of all devices has one direction.
    sent_up_by_all = len(kinds)
    for name in (LAST, WHOLE):
        assert len(of_device(metrics, name)) == SERIES_BY_DEVICE - sent_up_by_all
        assert MEANINGS[name].endswith(f"At most {SERIES_BY_DEVICE:,} series")
    rows, of_all = MOST_DEVICES + 2, MOST_KINDS + 1
    said = " ".join(PAGE.read_text().split())
    assert f"at most {rows * of_all * 2:,} series: {rows} rows ({MOST_DEVICES} names" in said
    assert f"x {of_all} kinds x 2 directions. The kinds are `control` and at most {MOST_KINDS} kinds" in said


def test_a_sender_that_was_never_verified_has_no_row(tmp_path):
    run = simulation(tmp_path / "run", "fedavg")
    file, _ = observed(run, tmp_path)
    link = run.service.link
    for number in range(100):
        with pytest.raises(Rejected):
            link.arrived(link.topics.up(f"stranger-{number}"), b"nonsense", 0.0)
    run.run()
    lines = file.records
    assert {name for line in lines for name in line["by_device"]} == {*run.agents, ALL, OTHER}
    assert lines[0]["by_device"][OTHER][UP]["control"] > 0
