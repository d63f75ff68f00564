"""Tests that `protofleet check FILE` prints one line for an invalid file, and not one line for each check."""

import json
import warnings

import pytest
import torch

from protofleet.cli.main import main
from protofleet.lab.contract.networks import learns_from_a_batch
from protofleet.methods.contract.plan import Network
from tests.support.forked_program import forked_program

LACKS = """from protofleet.methods import fedavg
from protofleet.methods.contract.base import ClientHalf, Method
class Client(ClientHalf):
    def run(self, ask): return {}
METHOD = Method("x", fedavg.METHOD.Hyper, fedavg.Server, Client)
"""
WRONG = {
    "METHOD = 5\n": "mine.py: METHOD is int (5); write METHOD = Method(...)",
    "class A: pass\nMETHOD = A\n": "mine.py: METHOD is the class A; write METHOD = Method(...)",
    "METHD = 5\n": "mine.py has no METHOD, no NETWORK, no DATA and no METRICS; docs/plug-ins.md shows each",
    "NETWORK = 5\n": "mine.py: NETWORK is int (5); write NETWORK = network(...)",
    "DATA = []\n": "mine.py: DATA is list ([]); write DATA = a function that gives Data(...)",
    "METRICS = {}\n": "mine.py: METRICS is dict; it must be a table of 1 to 16 names and functions",
    "from protofleet.methods.contract.base import Method\nMETHOD = Method('x', int, int, int)\n": (
        "mine.py:2: TypeError: Method(Hyper=...) is <class 'int'>, but it must be a dataclass, such as LocalHyper"
    ),
    "from protofleet.methods import fedavg as f\nfrom protofleet.methods.contract.base import Method\n"
    "METHOD = Method('x', f.METHOD.Hyper, f.Server, f.Server)\n": (
        "mine.py:3: TypeError: Method(Client=...) is <class 'protofleet.methods.fedavg.Server'>, but it must be "
        "a subclass of ClientHalf"
    ),
    LACKS: "mine.py:5: TypeError: Client lacks receive(), restore(), state(), which each ClientHalf must define",
    "import sys\nsys.exit(0)\n": "mine.py:2: SystemExit: 0",
}  # fmt: skip

ENDS = {
    "import os\nos._exit(0)\n": "mine.py ended the process that loaded the file, with exit code 0 and without an "
    "error, as os._exit does; raise an exception in the file instead",
    "import os\nos.kill(os.getpid(), 9)\n": "mine.py ended the process that loaded the file, by signal SIGKILL; "
    "raise an exception in the file instead",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_is_no_valid_plug_in_is_refused_in_one_line(tmp_path, capfd, text):
    (tmp_path / "mine.py").write_text(text)
    assert main(["check", str(tmp_path / "mine.py")]) == 2
    out, said = capfd.readouterr()
    assert out == "" and said.removeprefix("protofleet: ").removeprefix(f"{tmp_path}/") == f"{WRONG[text]}\n"


@pytest.mark.parametrize("text", ENDS)
def test_a_plug_in_that_ends_its_process_is_reported_by_the_command(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    log = tmp_path / "check.log"
    assert forked_program(["check", str(tmp_path / "mine.py")], log).wait(60.0) == 2
    assert log.read_text().removeprefix("protofleet: ").removeprefix(f"{tmp_path}/") == f"{ENDS[text]}\n"


def test_the_error_for_a_missing_file_names_the_current_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["check", "none.py"], ["methods", "none.py"]):
        assert main(words) == 2
        assert capsys.readouterr().err == (
            f"protofleet: none.py: there is no such file; it was looked for in {tmp_path}\n"
        )


METRICS = """def right(scores, labels):
    return float((scores.argmax(1) == labels).float().mean())
def centred(scores, labels):
    scores -= scores.mean()
    return 1 / len(set(labels.tolist()) - {0})
METRICS = {"right": right, "centred": centred}
"""


def test_custom_metrics_are_checked_with_data_that_a_device_may_have(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(METRICS)
    assert main(["check", str(tmp_path / "mine.py"), "--json"]) == 1
    found = {row["check"]: row["problem"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert {name for name, problem in found.items() if problem} == {
        "centred: one sample is enough", "centred: one class is enough", "centred: changes nothing"
    }  # fmt: skip
    line = "return 1 / len(set(labels.tolist()) - {0})"
    assert found["centred: one class is enough"] == (
        f"{tmp_path}/mine.py:5: ZeroDivisionError: division by zero, in centred: {line}"
    )
    assert found["centred: changes nothing"].startswith("it changes the scores or the labels")


def test_the_check_of_a_network_causes_no_warning_of_torch():
    """The warning would appear in the middle of the lines about the author's file."""
    torch.set_warn_always(True)  # otherwise torch warns only once per process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            learns_from_a_batch(Network("mlp"))
    finally:
        torch.set_warn_always(False)
