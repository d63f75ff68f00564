"""Tests that the contract names state that is not saved, even if the first round does not need this state."""

import re

import pytest

from protofleet.lab.contract import methods as checks
from protofleet.lab.contract.halves import state_goes_round
from protofleet.lab.contract.worlds import ContractError, Subject
from protofleet.lab.local.own_plugins import own_plugins
from tests.support.plug_ins import block

KEEPS = block("tutorial-researcher.md", "fedmomentum.py")
LOSES = re.sub(r"    def (state|restore)\(", r"    def other_\1(", KEEPS)
DEVICE = """
class Client(fedavg.Client):
    def receive(self, payload: Payload) -> None:
        super().receive(payload)
        self.pulled = getattr(self, "pulled", 0) + (self.number > 1)
        with torch.no_grad():
            for p in self.model.parameters():
                p.mul_(1 - 0.01 * self.pulled)


METHOD = Method("""
FORGETS = KEEPS.replace("\nMETHOD = Method(", DEVICE).replace("fedavg.Client, arrays", "Client, arrays")


def subject(folder, text):
    path = folder / "fedmomentum.py"
    path.write_text(text)
    found = own_plugins([str(path)], {})
    made = Subject("fedmomentum", found.hashes[0], allowed=found.allowed())
    return made, made.simulation(folder / "unbroken").run()


def test_a_saved_state_survives_a_crash_of_the_coordinator(tmp_path):
    keeps, unbroken = subject(tmp_path, KEEPS)
    state_goes_round(keeps)
    checks.crashed_coordinator_changes_nothing(keeps, unbroken, tmp_path / "broken")


def test_both_checks_name_a_velocity_of_the_server_that_is_not_saved(tmp_path):
    loses, unbroken = subject(tmp_path, LOSES)
    with pytest.raises(ContractError, match=r"state\(\) leaves out self\.velocity of the server half"):
        state_goes_round(loses)
    with pytest.raises(ContractError, match=r"other bits .* leaves out self\.velocity of the server half"):
        checks.crashed_coordinator_changes_nothing(loses, unbroken, tmp_path / "broken")


def test_the_reboot_check_names_unsaved_state_that_changes_after_the_first_round(tmp_path):
    forgets, unbroken = subject(tmp_path, FORGETS)
    with pytest.raises(ContractError, match=r"leaves out self\.pulled of device-"):
        checks.rebooted_device_changes_nothing(forgets, unbroken, tmp_path / "broken")
