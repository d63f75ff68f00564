"""A coordinator with a queue conducts the submitted runs one after the other, with the same devices."""

import contextlib
import json
import secrets
import shutil
import signal
import urllib.error
import urllib.request

import pytest

from protofleet.cli.main import main
from protofleet.cli.queue_socket import ask_queue
from protofleet.coordinator.observe.view import ENDS
from protofleet.coordinator.round.policy import Policy
from tests.hostile.federation import CLASSES, SIZE, Federation
from tests.hostile.pages import now, port_of

EXPERIMENT = f"""
name = "demo"
rounds = 2
classes = {CLASSES}
size = {SIZE}
seed = 1

[network]
name = "mlp"

[method]
name = "fedavg"
lr = 0.02

[policy]
quorum = 2
gather = 2
settle_seconds = 0.2
"""

UNBUILDABLE = """
import protofleet.coordinator.queue_conductor as conductor
class Unbuildable(conductor.ActiveRun):
    def __init__(self, settings, *more):
        if settings.name == "blue":
            raise RuntimeError("the network is gone")
        super().__init__(settings, *more)
conductor.ActiveRun = Unbuildable
"""


# The server half of the run with seed 3 fails, and no other run gets beyond round 2.
FAILING = """
import time
from protofleet.coordinator.server.runner import ServerRunner
begin, step = ServerRunner.__init__, ServerRunner.step
def began(self, plan, *more):
    self.seed = plan.seed
    begin(self, plan, *more)
def stepped(self, advance, *more):
    if self.seed == 3:
        raise RuntimeError("the server half is gone")
    while advance.round == 2:
        time.sleep(0.05)
    return step(self, advance, *more)
ServerRunner.__init__, ServerRunner.step = began, stepped
"""


class Operator:
    """An operator at a shell of the coordinator's machine."""

    def __init__(self, f, capsys):
        self.f, self.capsys, self.runs = f, capsys, f.folder / "runs"

    def submit(self, name, *options, text=EXPERIMENT):
        file = self.f.folder / f"{name}.toml"
        file.write_text(text)
        return main(["submit", str(file), "--name", name, "--service", str(self.runs), *options])

    def say(self, verb, name, *options):
        return main([verb, str(self.runs / name), *options])

    def states(self):
        """Return the state of each run; {} while no coordinator answers."""
        self.capsys.readouterr()
        done = main(["runs", "--service", str(self.runs), "--json"]) == 0
        text = self.capsys.readouterr().out
        return {run["run"]: (run["state"], run["over"]) for run in json.loads(text)["runs"]} if done else {}

    def wait_for(self, seconds=40.0, **states):
        wanted = {name: (state, state in ("finished", "failed", "stopped")) for name, state in states.items()}
        self.f.wait_until(lambda: wanted.items() <= self.states().items(), f"the states {states}", seconds)

    def bits(self, name):
        """Return the names of the last snapshots, which are hashes of their content."""
        return {path.name for path in (self.runs / name / "coordinator" / "snapshots").glob("*.body")}

    def page(self, name):
        self.capsys.readouterr()
        assert self.say("page", name) == 0
        return Page(self.capsys.readouterr().out.strip())

    def becomes_healthy(self):
        self.f.wait_until(self.healthy, "the service to be healthy")
        return True

    def healthy(self):
        with contextlib.suppress(urllib.error.HTTPError):
            address = f"http://127.0.0.1:{self.f.metrics_port}/health"
            with urllib.request.urlopen(address, timeout=10) as answer:
                return answer.status == 200
        return False


class Page:
    """A browser that has logged in to the live page of a run."""

    def __init__(self, address):
        self.root, _, rest = address.partition("#c=")
        code, _, self.run = rest.partition("&run=")
        self.headers = {}
        answer, headers = self.post("login", {"code": code})
        self.headers = {"Cookie": headers["Set-Cookie"].split(";")[0], "X-Protofleet": answer["key"]}

    def post(self, path, said):
        made = {**self.headers, "Content-Type": "application/json", "Origin": self.root.rstrip("/")}
        request = urllib.request.Request(self.root + path, json.dumps(said).encode(), made)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer), answer.headers

    def command(self, verb, reason):
        return self.post(
            "command", {"id": secrets.token_hex(16), "verb": verb, "run": self.run, "reason": reason}
        )[0]

    def now(self):
        with urllib.request.urlopen(self.root + "now", timeout=10) as answer:
            return json.load(answer)


@pytest.fixture
def operator(tmp_path, capsys):
    with Federation(tmp_path, "one", "two") as f:
        yield Operator(f, capsys)


def test_two_runs_of_a_queue_have_the_bits_of_the_same_runs_alone_also_after_kills(operator, capsys):
    f, other = operator.f, EXPERIMENT.replace("seed = 1", "seed = 2")
    service = f.service(slots=1)
    f.wait_until(f.answers, "the service")
    assert operator.becomes_healthy()
    assert operator.submit("red") == 0
    assert operator.submit("blue", "--after", "red", text=other.replace("rounds = 2", "rounds = 1")) == 0
    assert operator.say("extend", "blue", "--rounds", "2") == 0  # It has the bits of a run with this plan.
    f.device("one", stays=True), f.device("two", stays=True)
    f.wait_until(lambda: (operator.runs / "red" / "rounds.jsonl").exists(), "a round of red")
    service.kill()
    service = f.service(slots=1)
    capsys.readouterr()
    assert operator.say("follow", "blue") == 0
    words = capsys.readouterr().out
    assert (
        "blue: round 1: 2 of 2 answered, accuracy" in words
        and "blue: finished: all 2 rounds are done" in words
    )
    operator.wait_for(red="finished", blue="finished")
    service.kill()  # Between two runs.
    f.service(slots=1)
    f.wait_until(f.answers, "the service")
    assert operator.submit("blue-again", text=other) == 0
    operator.wait_for(**{"blue-again": "finished"})
    f.processes[-1].kill()
    policy = Policy(quorum=2, gather=2, settle_seconds=0.2)
    assert f.wait_for_end(f.coordinator(name="alone", rounds=2, policy=policy)) == 0
    assert operator.bits("red") == operator.bits("alone") != operator.bits("blue")
    assert operator.bits("blue") == operator.bits("blue-again") and len(operator.bits("blue")) > 1
    assert (operator.runs / "blue" / "summary.json").exists()
    assert "Traceback" not in "".join(map(f.log_of, f.processes))


def test_two_runs_at_once_have_the_bits_of_single_runs_also_after_a_failed_run_and_a_kill(
    operator,
):
    f = operator.f
    service = f.service(planted=FAILING, slots=3)
    f.wait_until(f.answers, "the service")
    for seed, name in enumerate(("red", "blue", "bad"), 1):
        # A command gets no answer in time if the run before it takes long to start, but it has its effect.
        operator.submit(name, text=EXPERIMENT.replace("seed = 1", f"seed = {seed}"))
    operator.wait_for(120.0, red="running", blue="running", bad="running")
    for device in ("one", "two"):
        f.device(device, stays=True, runs=3)
    operator.wait_for(120.0, red="running", blue="running", bad="failed")
    f.wait_until(lambda: any(operator.runs.glob("*/rounds.jsonl")), "a round")
    operator.wait_for(red="running", blue="running")
    shown = f.metrics()
    assert all(shown[f'protofleet_round{{run="{name}"}}'] >= 1 for name in ("red", "blue"))
    assert shown['protofleet_run_over{how="failed",run="bad"}'] == 1
    assert shown["protofleet_coordinator_connected"] == 1
    assert (
        shown['protofleet_queue_runs{state="running"}'],
        shown['protofleet_queue_runs{state="failed"}'],
    ) == (2, 1)
    service.kill()
    service = f.service()
    operator.wait_for(red="finished", blue="finished")
    for seed, name in enumerate(("red", "blue"), 1):
        text = EXPERIMENT.replace("seed = 1", f"seed = {seed}")
        assert operator.submit(f"{name}-alone", text=text) == 0
        operator.wait_for(**{f"{name}-alone": "finished"})
        assert operator.bits(name) == operator.bits(f"{name}-alone") and len(operator.bits(name)) > 1
    devices = f.log_of(f.processes[1]) + f.log_of(f.processes[2])
    assert all(f"INFO {name}: round 1 train: sending the update" in devices for name in ("red", "blue"))
    assert all(f"INFO {name}: round 2 of 2: 2 of 2 devices" in f.log_of(service) for name in ("red", "blue"))
    assert "Traceback" not in devices + f.log_of(service)


def test_runs_of_a_queue_are_paused_resumed_and_stopped_and_a_failed_run_does_not_end_it(operator, capsys):
    f = operator.f
    service = f.service(slots=1)
    f.wait_until(f.answers, "the service")
    assert operator.submit("red") == 0  # No device is present yet, so the run waits.
    operator.wait_for(red="running")
    assert operator.say("extend", "red", "--rounds", "3") == 0
    page = operator.page("red")
    paused = page.command("pause", "no power")
    operator.wait_for(red="paused")
    assert paused["verdict"] == "done" and page.now()["runs"][0]["run"] == "red"
    assert operator.submit("blue") == 0 and operator.submit("green", "--priority", "1") == 0
    capsys.readouterr()
    assert operator.say("show", "blue") == 0
    words = capsys.readouterr().out
    assert "blue in" in words and "waits for red, which is paused and holds the devices" in words
    assert operator.say("stop", "green") == 0 and operator.states()["green"] == ("stopped", True)
    service.say(signal.SIGTERM)
    assert f.wait_for_end(service) == 143
    whole = {path: path.read_bytes() for path in (operator.runs / "red" / "coordinator").glob("spool*")}
    for path in whole:
        path.write_bytes(b"nothing" * 500)
    service = f.service(planted=UNBUILDABLE, slots=1)
    f.wait_until(lambda: "red: the run is paused" in f.log_of(service), "word of the damage")
    assert operator.say("show", "red") == 0 and "is damaged" in capsys.readouterr().out
    for path, content in whole.items():
        path.write_bytes(content)
    assert operator.say("resume", "red") == 0
    operator.wait_for(red="running")
    f.device("one", stays=True), f.device("two", stays=True)
    operator.wait_for(red="finished", blue="failed", green="stopped")
    capsys.readouterr()
    assert operator.say("show", "blue") == 0 and "the network is gone" in capsys.readouterr().out
    assert operator.say("follow", "blue") == 1 and "the network is gone" in capsys.readouterr().out
    assert operator.say("resume", "blue") == 1 and "the run is failed" in capsys.readouterr().out
    assert operator.submit("red") == 1 and "there is a run red already" in capsys.readouterr().out
    assert operator.submit("yellow", text="folder = '/'\n" + EXPERIMENT) == 2
    assert "folder is not a setting of a submitted experiment" in capsys.readouterr().err
    assert operator.say("extend", "red", "--rounds", "4") == 1
    assert "`protofleet submit FILE --from red` begins a new run" in capsys.readouterr().out
    assert (
        operator.submit("yellow", "--from", "red", text=EXPERIMENT.replace("classes = ", "classes = 1")) == 1
    )
    assert "head.weight of its network has the shape" in capsys.readouterr().out
    assert (
        operator.submit("yellow", "--from", "red", text=EXPERIMENT.replace("rounds = 2", "rounds = 1")) == 0
    )
    assert operator.say("show", "yellow") == 0
    assert "it starts with the state of red after round 3" in capsys.readouterr().out
    operator.wait_for(yellow="finished")
    summary = json.loads((operator.runs / "yellow" / "summary.json").read_text())
    assert (summary["origin"], summary["rounds"]) == ({"run": "red", "round": 3}, 1)
    assert operator.becomes_healthy()


def test_a_run_takes_the_devices_of_its_group_and_labels_survive_a_kill(operator, capsys):
    f, service = operator.f, operator.f.service()
    f.wait_until(f.answers, "the service")

    def label(*words):
        return main(["label", *words, "--service", str(operator.runs)])

    assert label("one", "gpu=orin", "--group", "hall") == 0
    assert label("tow", "--group", "hall") == 1 and "did you mean two?" in capsys.readouterr().out
    service.kill()
    service = f.service()
    f.wait_until(f.answers, "the service")
    assert label() == 0 and capsys.readouterr().out.split("\n") == [
        "one  group hall, gpu=orin",
        "two  no labels",
        "",
    ]
    text = (
        EXPERIMENT.replace("rounds = 2", "rounds = 1")
        + '[select]\ngroups = ["hall"]\nlabels = { gpu = "orin" }\n'
    )
    assert operator.submit("blue", text=text) == 1
    said = "[select] leaves 1 of 2 enrolled devices (one), but policy.quorum is 2; select more devices"
    assert said in capsys.readouterr().out
    assert operator.submit("red", text=text.replace("quorum = 2\ngather = 2", "quorum = 1")) == 0
    f.device("one", stays=True), f.device("two", stays=True)
    operator.wait_for(red="finished")
    assert label("two", "gpu=orin", "--group", "hall") == 0 and operator.submit("blue", text=text) == 0
    operator.wait_for(blue="finished")
    lines = {name: (operator.runs / name / "rounds.jsonl").read_text() for name in ("red", "blue")}
    assert '"two"' not in lines["red"] and '"one"' in lines["red"] and '"two"' in lines["blue"]
    assert "two cannot take part" not in f.log_of(service) and "Traceback" not in f.log_of(service)


def test_a_run_that_no_device_can_follow_ends_no_device_and_the_other_runs_continue(operator, capsys):
    f = operator.f
    f.service(slots=3)
    f.wait_until(f.answers, "the service")
    devices = [f.device(name, stays=True) for name in ("one", "two")]
    larger = EXPERIMENT.replace(f"size = {SIZE}", f"size = {SIZE + 8}")
    assert operator.submit("larger", text=larger) == 0
    classes = EXPERIMENT.replace(f"classes = {CLASSES}", f"classes = {CLASSES + 1}")
    assert operator.submit("classes", text=classes) == 0
    operator.wait_for(larger="running", classes="running")

    def reason(name):
        capsys.readouterr()
        assert operator.say("show", name) == 0
        return capsys.readouterr().out

    f.wait_until(lambda: "one, two cannot take part: cannot_follow" in reason("larger"), "the reason")
    assert f"set data.size = {SIZE + 8} on this device" in reason("larger") and "mat1" not in reason("larger")
    f.wait_until(lambda: "one, two cannot take part: " in reason("classes"), "the other reason")

    def on_page():
        port = port_of(ask_queue(operator.runs, {"verb": "page", "run": ""})["url"])
        return {row["run"]: row["misfits"] for row in now(port)["runs"]}

    f.wait_until(
        lambda: on_page()["larger"].startswith("one, two cannot take part: cannot_follow"), "the page"
    )
    f.wait_until(lambda: on_page()["classes"].startswith("one, two cannot take part: "), "the page")
    assert operator.submit("red") == 0
    operator.wait_for(red="finished", larger="running", classes="running")
    assert all(device.child.poll() is None for device in devices)
    assert on_page()["red"] == ""
    assert operator.say("stop", "larger") == operator.say("stop", "classes") == 0
    operator.wait_for(larger="stopped", classes="stopped")
    shown = f.metrics()
    for run, end in (("larger", "stopped"), ("red", "finished")):
        over = {how: shown[f'protofleet_run_over{{how="{how}",run="{run}"}}'] for how in ENDS}
        assert over == {how: float(how == end) for how in ENDS}
    for name in ("blue", "green"):  # Together they need both places of each device.
        assert operator.submit(name, text=EXPERIMENT.replace("rounds = 2", "rounds = 5")) == 0
    operator.wait_for(blue="finished", green="finished")


def test_only_the_run_whose_folder_is_missing_at_a_start_is_paused(operator, capsys):
    f = operator.f
    service = f.service(slots=2)
    f.wait_until(f.answers, "the service")
    for name in ("red", "blue"):
        assert operator.submit(name, text=EXPERIMENT.replace("rounds = 2", "rounds = 9000")) == 0
    for device in ("one", "two"):
        f.device(device, stays=True)
    f.wait_until(lambda: (operator.runs / "blue" / "rounds.jsonl").exists(), "a round of blue")
    service.kill()
    (operator.runs / "blue").rename(f.folder / "elsewhere")
    service = f.service(slots=2)
    f.wait_until(f.answers, "the service")
    f.wait_until(lambda: "is missing, although the run has begun" in f.log_of(service), "word of it")
    operator.wait_for(red="running", blue="paused")
    shutil.rmtree(operator.runs / "blue", ignore_errors=True)
    (f.folder / "elsewhere").rename(operator.runs / "blue")
    rounds = len((operator.runs / "blue" / "rounds.jsonl").read_bytes().splitlines())
    assert operator.say("resume", "blue") == 0
    lines = operator.runs / "blue" / "rounds.jsonl"
    f.wait_until(lambda: len(lines.read_bytes().splitlines()) > rounds + 1, "further rounds of blue")


def test_only_the_run_whose_folder_is_moved_while_it_is_active_is_paused(operator):
    f = operator.f
    service = f.service(slots=2)
    f.wait_until(f.answers, "the service")
    for name in ("red", "blue"):
        assert operator.submit(name, text=EXPERIMENT.replace("rounds = 2", "rounds = 9000")) == 0
    for device in ("one", "two"):
        f.device(device, stays=True)
    blue, red = operator.runs / "blue", operator.runs / "red"
    for moves in range(1, 4):
        f.wait_until(lambda: len(lines_of(blue)) > moves, "a round of blue")
        blue.rename(f.folder / "elsewhere")
        operator.wait_for(red="running", blue="paused")
        assert not blue.exists(), "no new folder is made"
        seen = len(lines_of(red))
        f.wait_until(lambda: len(lines_of(red)) > seen + 1, "further rounds of red")
        (f.folder / "elsewhere").rename(blue)
        seen = len(lines_of(blue))
        assert operator.say("resume", "blue") == 0
        f.wait_until(lambda: len(lines_of(blue)) > seen, "further rounds of blue")
    assert service.child.poll() is None and "Traceback" not in f.log_of(service)
    assert "blue: " in f.log_of(service) and "put the folder of the run back" in f.log_of(service)


def lines_of(run):
    """Return the rounds that a run has ended."""
    return (run / "rounds.jsonl").read_bytes().splitlines() if (run / "rounds.jsonl").exists() else []


def test_a_run_that_begins_after_the_hellos_of_its_devices_knows_the_class_names(operator):
    f = operator.f
    service = f.service(slots=1)
    f.wait_until(f.answers, "the service")
    for device in ("one", "two"):
        f.device(device, stays=True)
    for name in ("red", "blue"):
        assert operator.submit(name) == 0
        operator.wait_for(**{name: "finished"})
    told = [line for line in f.log_of(service).splitlines() if "the class names of this run are" in line]
    assert len(told) == 2 and all("circle, line, square" in line for line in told), told


def test_a_second_coordinator_does_not_conduct_the_same_queue(operator):
    f = operator.f
    first = f.service(slots=1)
    f.wait_until(f.answers, "the service")
    second = f.service(slots=1)
    assert f.wait_for_end(second) == 3
    assert f"another coordinator (pid {first.child.pid}) uses " in second.last_word()
