"""Plug-ins on real devices.

A device that does not allow the plug-in, or has another file, leaves and reports why. A device whose half ends
the process does the same.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from protofleet.coordinator.round.policy import Policy
from protofleet.methods.plugins.allowed import PlugIns
from tests.hostile.federation import Federation
from tests.support.plug_ins import block, sha256

FAREWELLS = 'protofleet_device_farewells_total{reason="cannot_follow"}'
POLICY = Policy(quorum=2, gather=3, settle_seconds=0.5, grace_seconds=1.0, patience_seconds=60.0)
CODE = block("adding-a-method.md", "fedexp").replace(
    "        moves = ",
    "        if self.device.startswith('leaves'):\n            import sys; sys.exit(0)\n        moves = ",
)
WITHOUT_A_YIELD = CODE.replace(
    "class Client(", "    def round(self):\n        return None\n\n\nclass Client("
)


def written(path: Path, text: str = CODE) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_devices_that_may_not_or_cannot_run_a_plug_in_report_why_and_the_others_continue(tmp_path):
    """The changed file is on the disk of a device that allows the earlier file."""
    number, text = sha256(CODE), CODE + "# tampered with\n"
    theirs = written(tmp_path / "coordinator" / "fedexp.py")
    here = written(tmp_path / "device" / "fedexp.py")
    changed = written(tmp_path / "changed" / "fedexp.py", text)
    plugins = PlugIns((theirs,), (number,))
    names = ("a", "b", "forbids", "changed", "leaves", "leaves-child")
    with Federation(tmp_path, *names, policy=POLICY, method={"file": theirs}, plugins=plugins, rounds=2) as f:
        coordinator = f.coordinator()
        forbids = f.device("forbids", plugins=PlugIns((here,), ()))
        other = f.device("changed", plugins=PlugIns((changed,), (number,)))
        assert [f.wait_for_end(forbids), f.wait_for_end(other)] == [1, 1]
        allowed = PlugIns((here,), (number,))
        leaves = f.device("leaves", plugins=allowed)
        child = f.device("leaves-child", plugins=allowed, trainer="child")
        good = [f.device("a", plugins=allowed)]
        assert [f.wait_for_end(leaves), f.wait_for_end(child)] == [1, 1]
        assert f.metrics()[FAREWELLS] == 4
        good.append(f.device("b", plugins=allowed))
        assert [f.wait_for_end(process) for process in (*good, coordinator)] == [0, 0, 0]
        heard, plan = f.log_of(coordinator), "this device cannot follow the run's plan: "
        what = f"the run's method fedexp is a plug-in with SHA-256 {number}"
        line = 1 + CODE[: CODE.index("import sys; ")].count("\n")
        left = (
            f"{here}:{line}: SystemExit: 0 (a plug-in ends no process; let it raise an error that says why), in run: "
            "import sys; sys.exit(0)"
        )
        for process, words in (
            (forbids, f"{what}, which this device does not allow; its owner can add the hash to plugins.allow"),
            (other, f"{what}, but the file fedexp.py on this device has SHA-256 {sha256(text)}"),
            (leaves, left),
            (child, left),
        ):  # fmt: skip
            assert f.log_of(process).splitlines()[-1] == f"protofleet: {plan}{words}"
            assert f"{process.name} leaves: cannot_follow: {words}"[:200] in heard
        for words in ("an internal error occurred", "an error occurred while a message"):
            assert words not in heard + f.log_of(leaves)
        assert {name for line in f.rounds() for name in line["participants"]} <= {
            "a",
            "b",
            "leaves",
            "leaves-child",
        }
        assert f.rounds()[-1]["participants"] == ["a", "b"]


def test_a_coordinator_whose_method_does_not_yield_ends_with_a_line_that_names_the_code(tmp_path):
    theirs = written(tmp_path / "plug" / "fedexp.py", WITHOUT_A_YIELD)
    plugins = PlugIns((theirs,), (sha256(WITHOUT_A_YIELD),))
    policy = Policy(quorum=1, gather=1, settle_seconds=0.5)
    with Federation(tmp_path, "a", policy=policy, method={"file": theirs}, plugins=plugins) as f:
        coordinator = f.coordinator()
        f.device("a", plugins=plugins)
        assert f.wait_for_end(coordinator) == 1
        line = 1 + WITHOUT_A_YIELD[: WITHOUT_A_YIELD.index("def round(self):\n")].count("\n")
        words = f"{theirs}:{line}: round() must yield Ask(...), at least once; it gives NoneType"
        assert f.log_of(coordinator).splitlines()[-1] == f"protofleet: {words}"
