"""A finished run on the disk, with data for every section of a report."""

import json

from protofleet.coordinator.observe.rounds_file import sealed_line

DOMAINS = ("mnist", "street")
DEVICES = ("a", "b", "c")


def whole_line(number, rounds):
    value = 0.1 + 0.8 * (number - 1) / rounds
    measured = {"global": {"mnist": value, "street": value / 2}}
    return {
        "round": number, "attempt": 0, "kind": "training" if number <= rounds else "evaluation", "seconds": 2.0,
        "phases": [{"phase": "train", "seconds": 1.9, "server_seconds": 0.1, "asked": list(DEVICES),
                    "answered": ["a"]}],
        "participants": ["a"], "late": ["b"] if number % 2 else [], "dropped": {"c": "means is <not> finite"},
        "payload": {"up": {"weights": 1000}, "down": {"weights": 500, "anchors": 20}},
        "wire": {"up": {"weights": 1000, "control": 90}, "down": {"weights": 500, "anchors": 20, "control": 60}},
        "fedavg": {"up": 1000, "down": 1000},
        "accuracy": measured, "validation": measured, "loss": {"global": {"mnist": 2.3 - value, "street": 2.3}},
        "confusion": {"mnist": [[9, 1], [0, 10]], "street": [[3, 1], [4, 0]]} if number > rounds else {},
        "figures": {
            "margin.0": 1.2, "margin.1": 1.3, "margin.mean": 1.25, "macro_f1.global.mnist": value,
            "macro_f1.global.street": value / 2, "macro_f1.global.mean": 0.75 * value,
            "macro_f1.personal.mnist": 0.9, "macro_f1.personal.mean": 0.9,
        },
    }  # fmt: skip


def whole_run(folder, rounds=4):
    lines = [whole_line(r, rounds) for r in range(1, rounds + 2)]
    (folder / "rounds.jsonl").write_text("".join(map(sealed_line, lines)))
    by_domain = dict.fromkeys(DOMAINS, 0.9)
    accuracy = {
        "start": {**by_domain, "mean": 0.1}, "final": {**by_domain, "mean": 0.9},
        "best_by_validation": {"point": 4, **by_domain, "mean": 0.9},
    }  # fmt: skip
    software = {"a": "protofleet 0.1.0", "b": "protofleet 0.1.0", "c": "protofleet 0.0.9"}
    summary = {
        "name": "demo", "method": "fedlsa", "paper": "A <paper>", "network": "cnn23", "reports": "global",
        "rounds": rounds, "seed": 1, "seconds": 10.0,
        "devices": {d: {"software": software[d], "machine": "Jetson Nano" if d == "c" else ""} for d in DEVICES},
        "payload": {"up": {"weights": 4000}, "down": {"weights": 2000, "anchors": 80}},
        "wire": {"up": {"weights": 4000, "control": 360}, "down": {"weights": 2000, "anchors": 80, "control": 240}},
        "fedavg": {"up": 4000, "down": 4000}, "accuracy": accuracy,
        "views": {"global": accuracy, "personal": accuracy}, "broker": "mosquitto", "security": "sealed",
        "versions": {"protofleet": "0.1.0", "python": "3.11.2", "torch": "2.13.0",
                     "machine": "Linux x86_64, 2 cores"},
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "experiment.toml").write_text('name = "demo"\n')
    return folder
