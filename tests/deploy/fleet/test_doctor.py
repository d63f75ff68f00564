"""Each check of the doctor fails and passes with facts that no test machine has."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from protofleet.cli.main import main
from protofleet.deploy.fleet.checks import Workload, failures, run_checks, torch_words
from protofleet.deploy.fleet.commands import print_checks
from protofleet.deploy.fleet.device.facts import Docker, ProgramFacts, ServedVersion, read_facts
from protofleet.deploy.fleet.device.scripts import HostRole
from protofleet.edge_client.serving.publisher import version_of
from protofleet.edge_client.serving.versions import ModelVersions
from protofleet.protocol.settings.reader import SettingsError
from protofleet.protocol.storage.disk import Disk
from protofleet.runtime.command.listing import Listing
from tests.deploy.fleet.boards import NOW, deployed, jetson
from tests.methods.served.trained import card_of, model_of, plan_of

CONTAINERS = Workload("container")
PROBE = jetson().probe


def verdict(name, use=None, now=NOW, **changes):
    found = {c.name: c for c in run_checks(jetson(**changes), use or Workload(), now)}
    return found[name].verdict if name in found else None


def test_a_healthy_jetson_passes_every_check():
    checks = run_checks(jetson(), Workload("container", needs_gpu=True), NOW)
    assert {c.verdict for c in checks} == {"PASS"}
    assert {c.name for c in checks} >= {
        "architecture", "L4T", "root", "rsync", "systemd", "disk", "storage", "memory", "swap", "clock",
        "temperature", "nvpmodel", "torch", "broker", "certificate", "docker", "nvidia runtime",
    }  # fmt: skip


BROKEN = [
    ("architecture", "FAIL", {"arch": "armv7l"}),
    ("L4T", "WARN", {"l4t": "32.7.4"}),
    ("root", "FAIL", {"uid": 1000}),
    ("rsync", "FAIL", {"tools": frozenset({"python3"})}),
    ("ssh-keygen", "FAIL", {"tools": frozenset({"python3", "rsync"}), "verifies": False}),
    ("ssh-keygen", "FAIL", {"verifies": False}),
    ("systemd", "FAIL", {"systemd": 0, "systemd_state": ""}),
    ("systemd", "FAIL", {"systemd_state": "offline"}),
    ("python", "FAIL", {"python": "3.6.9"}),
    ("python", "FAIL", {"python": "3.14.0"}),
    ("python", "FAIL", {"python": ""}),
    ("venv", "FAIL", {"venv": False}),
    ("disk", "FAIL", {"disk_free": 300_000_000}),
    ("disk", "FAIL", {"state_free": 0}),
    ("disk", "WARN", {"disk_free": 4_000_000_000}),
    ("storage", "WARN", {"storage": "/dev/mmcblk0p1"}),
    ("memory", "FAIL", {"ram": 500_000_000}),
    ("memory", "WARN", {"ram": 2_000_000_000}),
    ("swap", "WARN", {"swap": 0}),
    ("clock", "FAIL", {"now": 12}),
    ("clock", "FAIL", {"now": NOW - 4000}),
    ("clock", "FAIL", {"now": NOW + 4000}),
    ("clock", "WARN", {"clock_synced": False}),
    ("temperature", "WARN", {"temperatures": (("gpu", 88.0),)}),
    ("temperature", "FAIL", {"temperatures": (("cpu", 50.0), ("gpu", 101.0))}),
    ("nvpmodel", "WARN", {"nvpmodel": ""}),
    ("torch", "FAIL", {"probe": replace(PROBE, torch="")}),
    ("torch", "WARN", {"probe": replace(PROBE, cuda=False)}),
    ("broker", "FAIL", {"probe": replace(PROBE, broker="it wants a client certificate")}),
    ("broker", "FAIL", {"probe": replace(PROBE, broker="", broker_tcp=False)}),
    ("certificate", "WARN", {"probe": replace(PROBE, cert_until=NOW + 20 * 86_400)}),
    ("certificate", "FAIL", {"probe": replace(PROBE, cert_until=NOW + 86_400)}),
    ("certificate", "FAIL", {"probe": replace(PROBE, cert_until=NOW - 5)}),
]


@pytest.mark.parametrize(("name", "expected", "changes"), BROKEN)
def test_doctor_gives_a_reason_and_a_fix_for_each_fault(name, expected, changes):
    assert verdict(name) == "PASS"
    assert verdict(name, **changes) == expected
    check = next(c for c in run_checks(jetson(**changes), Workload(), NOW) if c.name == name)
    assert check.reason and check.fix


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("docker", {"docker": None}),
        ("docker", {"docker": Docker("")}),
        ("docker", {"docker": Docker("28.0.1", ("nvidia",))}),
        ("docker", {"docker": Docker("19.03.6", ("nvidia",))}),
        ("nvidia runtime", {"docker": Docker("27.5.1", ("runc",))}),
        ("iptables", {"iptables_works": False}),
    ],
)
def test_containers_need_a_working_engine_and_its_runtime(name, changes):
    assert verdict(name, CONTAINERS, **changes) == "FAIL"
    assert verdict(name, **changes) is None, "without containers this check does not run"


def test_the_newest_docker_passes_and_containers_need_python3():
    assert verdict("python3", CONTAINERS, tools=frozenset({"rsync"})) == "FAIL", (
        "python3 checks the signatures"
    )
    assert verdict("docker", CONTAINERS, docker=Docker("28.5.2", ("nvidia",))) == "PASS"


def test_a_workload_that_needs_a_gpu_fails_without_cuda():
    blind = {"probe": replace(PROBE, cuda=False)}
    assert verdict("torch", Workload(needs_gpu=True), **blind) == "FAIL"
    assert verdict("torch", Workload(needs_gpu=True)) == "PASS"
    assert verdict("torch", probe=ProgramFacts(torch="2.13.0+cpu", cuda=False), l4t="") == "PASS", (
        "a CPU is enough"
    )


def test_torch_words_name_the_version_the_build_and_the_bytes_of_torch():
    probe = ProgramFacts(torch="2.13.0+cpu", cuda=False, torch_build="cpu", torch_bytes=640_400_000)
    assert (
        torch_words(probe) == "torch 2.13.0+cpu, built for the CPU alone, 640 MB on disk, without CUDA here"
    )
    probe = ProgramFacts(torch="2.14.1", cuda=True, torch_build="cuda 13.0", torch_bytes=5_200_000_000)
    assert torch_words(probe) == "torch 2.14.1, built for cuda 13.0, 5,200 MB on disk, with CUDA here"
    assert torch_words(ProgramFacts(torch="2.5.0", cuda=True)) == "torch 2.5.0, with CUDA", (
        "an older release's probe"
    )


def test_a_disk_needs_room_for_torch_if_torch_is_to_be_fetched():
    some = {"disk_free": 6_000_000_000, "state_free": 6_000_000_000}
    assert verdict("disk", **some) == "PASS"
    assert verdict("disk", Workload(fetches_torch=True), **some) == "FAIL"
    assert verdict("disk", Workload(fetches_torch=True), installed=deployed(), **some) == "PASS", (
        "the host has torch already"
    )


def test_a_desktop_has_no_checks_of_a_jetson():
    checks = run_checks(
        jetson(arch="x86_64", l4t="", nvpmodel="", ram=64_000_000_000, swap=0), Workload(), NOW
    )
    assert not failures(checks) and not {"L4T", "nvpmodel", "swap"} & {c.name for c in checks}


def test_the_exit_code_distinguishes_failures_and_warnings(capsys):
    warned = run_checks(jetson(swap=0), Workload(), NOW)
    assert print_checks(warned, strict=False) == 0 and print_checks(warned, strict=True) == 1
    assert print_checks(run_checks(jetson(uid=5), Workload(), NOW), strict=False) == 1
    assert "FAIL  root" in capsys.readouterr().out
    assert print_checks(warned, strict=False, listing=Listing(quiet=True)) == 0
    assert capsys.readouterr() == ("", "")
    assert print_checks(warned, strict=True, listing=Listing(quiet=True)) == 1
    assert capsys.readouterr().err.startswith("protofleet: WARN  swap")


def test_doctor_checks_this_machine(capsys):
    assert main(["doctor", "--json"]) in (0, 1)
    said = {check["name"]: check["verdict"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert {"architecture", "python", "clock"} <= said.keys() and {*said.values()} <= {"PASS", "WARN", "FAIL"}


def test_an_invalid_broker_address_is_refused_with_the_exit_code_of_misuse(capsys):
    assert main(["doctor", "--broker", "nowhere"]) == 2
    assert "HOST:PORT" in capsys.readouterr().err


@pytest.fixture
def facts_of(tmp_path):
    """Return a function that runs facts.sh with some tools replaced and returns the facts."""

    def run(python="python3", models="", **tools):
        for name, text in tools.items():
            path = tmp_path / name
            path.write_text(f"#!/bin/sh\n{text}\n")
            path.chmod(0o755)
        environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-s", "--", "quick"], input=HostRole(python=python, models=str(models)).facts, env=environment,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return read_facts(done.stdout)

    return run


def test_the_facts_of_this_machine_equal_what_python_reports(facts_of):
    facts = facts_of()
    assert (facts.arch, facts.uid) == (os.uname().machine, os.getuid())
    assert facts.ram == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert abs(facts.now - time.time()) < 60 and "python3" in facts.tools


def test_facts_are_read_even_if_tools_fail_or_print_nonsense(facts_of):
    facts = facts_of(
        docker="exit 1", timedatectl="echo what", nvpmodel="echo NV Power Mode: MAXN", uname="echo riscv64"
    )
    assert facts.docker == Docker("") and facts.clock_synced is None
    assert (facts.nvpmodel, facts.arch) == ("MAXN", "riscv64")


def test_an_ssh_keygen_that_cannot_verify_files_fails_the_check(facts_of):
    assert facts_of().verifies
    old = facts_of(**{"ssh-keygen": "echo 'unknown option -- Y' >&2; exit 1"})
    assert "ssh-keygen" in old.tools and not old.verifies
    (check,) = (c for c in run_checks(old, Workload(), time.time()) if c.name == "ssh-keygen")
    assert (check.verdict, check.reason) == ("FAIL", "ssh-keygen is older than OpenSSH 8.2")
    assert check.fix.startswith("apt-get install openssh-client (8.2 or later)")


def test_doctor_checks_the_python_that_the_fleet_file_names(facts_of, tmp_path):
    old = 'case "$1" in -c) echo 3.9.2;; esac'
    facts = facts_of(python=str(tmp_path / "python3.9"), **{"python3.9": old})
    assert facts.python == "3.9.2" and facts_of().python != "3.9.2"
    check = next(
        c for c in run_checks(facts, Workload(python="python3.9"), time.time()) if c.name == "python"
    )
    assert check.verdict == "FAIL" and "python3.9 (software.python) is 3.9.2" in check.reason
    gone = facts_of(python="python3.42")
    check = next(
        c for c in run_checks(gone, Workload(python="python3.42"), time.time()) if c.name == "python"
    )
    assert (check.verdict, check.reason) == ("FAIL", "there is no python3.42 (software.python)")
    assert "apt-get install python3.42-venv" in check.fix


def test_the_facts_have_the_model_versions_that_a_device_serves(facts_of, tmp_path):
    """The cards are written as a device writes them, with names of classes that look like keys."""
    models, none = ModelVersions(tmp_path / "models", disk=Disk(durable=False)), facts_of()
    for number, validation in ((1, 0.5), (2, 0.9), (3, 0.7)):
        card = replace(card_of(plan_of("fedavg"), model_of("fedavg", "predict")[0], "predict"), round=number)
        card = replace(card, validation=validation, classes=("round", ' "round": 9,', "c"))
        fresh = version_of(replace(card, tensors=f"{number:064x}"), models.folder)
        models.write(
            fresh, lambda folder, card=card: (folder / "card.json").write_text(card.text()), waits=False
        )
    assert none.installed.models == {}
    seen = facts_of(models=models.folder).installed.models
    assert seen == {"current": ServedVersion("v000003", 3), "champion": ServedVersion("v000002", 2)}
    models.rollback()
    (models.folder / "v000002" / "card.json").unlink()
    seen = facts_of(models=models.folder).installed.models
    assert seen == {}, "a version without its card is not counted"


def test_incomplete_facts_are_refused():
    with pytest.raises(SettingsError, match="output of facts.sh on the host is incomplete"):
        read_facts("arch=x86_64\nuid=0\nnow=5\n")


@pytest.mark.slow
def test_the_probe_of_an_installed_program_succeeds():
    done = subprocess.run(
        [sys.executable, "-m", "protofleet.deploy.fleet.device.probe", "self"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
