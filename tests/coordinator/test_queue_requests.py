"""A submitted experiment is checked before the thread of the event loop gets it."""

import sys

from protofleet.coordinator.queue_requests import queue_commands
from protofleet.coordinator.service_settings import ServiceSettings

RESNET = 'rounds = 1\nclasses = 3\nmethod.name = "fedavg"\nnetwork.name = "resnet18"\n'


def test_the_library_of_a_network_is_imported_before_the_event_loop_gets_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)  # Then its import fails.
    settings = ServiceSettings.of({"folder": str(tmp_path)})
    said = []

    def execute(command, submission, refusal):
        said.append(submission)
        return {"verdict": "refused", "words": refusal}

    handle = queue_commands(settings, execute, lambda call: call())
    more = {"experiment": RESNET, "after": "", "priority": 0}
    answer = handle("ann", {"id": "0" * 32, "verb": "submit", "run": "red", "reason": "", **more})
    assert answer["verdict"] == "refused" and "torchvision is not installed" in answer["words"]
    assert said == [None], "the event loop gets the reason and no run"
