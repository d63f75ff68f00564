"""The files and base images of the project's images are right; the tests need no container engine."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from protofleet.deploy.images.build import IMAGES_FOLDER, Build, base_image, build_context, unpinned_warning
from protofleet.deploy.images.image_ids import save_id
from protofleet.deploy.stack.__main__ import parser, stack_from
from protofleet.federation.brokers.ports import free_port
from protofleet.runtime.locks.lockfile import read_lock
from tests.tools.locks.test_locks import SOURCE, wheel_of

ID = "sha256:" + "0" * 64
DIGEST = f"python@{ID}"
# A false docker that prints the id of each image from files in its own folder.
DOCKER = """\
#!/bin/sh
cd "$(dirname "$0")"
case "$1" in compose | version) exit 0 ;; esac
for name; do :; done
cat "ids/$(basename "${name%:latest}")" 2>/dev/null || { echo "Error: No such image: $name" >&2; exit 1; }
"""


def test_an_image_installs_locked_packages_by_hash_except_pinned_packages(tmp_path):
    wheel_of(tmp_path, "rich", "99.0")
    with build_context([tmp_path], [("torch", "2.7.1"), ("msgpack", "1.0.8")]) as context:
        locked = {package.name: package for package in read_lock((context / "locks/device.txt").read_text())}
        assert "msgpack" not in locked and locked["rich"].version == "99.0" and "numpy" in locked
        assert (context / "locks/pins.txt").read_text() == "msgpack==1.0.8\n"
        text = (context / "Dockerfile").read_text().replace("\\\n", "")
    installs = [line for line in text.splitlines() if " install " in line and "/locks/" in line]
    hashed = [line for line in installs if "/locks/device.txt" in line or "/locks/data.txt" in line]
    assert len(hashed) == 2 and all("--require-hashes" in line and "--only-binary" in line for line in hashed)


@pytest.fixture
def before_pip(tmp_path):
    """Return `sourced(index)`, which runs a build's choice of the index, with a pip that has no other settings."""
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    (tmp_path / "wheels").mkdir()

    def sourced(index):
        own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WHEELS": str(tmp_path / "wheels")}
        own |= {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index}
        command = ["sh", "-euc", f". {IMAGES_FOLDER}/index.sh && echo looks in ${{PIP_NO_INDEX:-index}}"]
        return subprocess.run(command, env=own, capture_output=True, text=True, timeout=60)

    return sourced


def test_a_build_without_a_network_names_the_index_and_the_fix_at_once(before_pip, tmp_path):
    index = f"https://127.0.0.1:{free_port()}/simple"
    done = before_pip(index)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    assert (
        done.stderr.startswith(f"protofleet: {index}/ cannot be reached") and "WHEELS=folder" in done.stderr
    )
    wheel_of(tmp_path / "wheels", "rich", "99.0")
    done = before_pip(index)
    assert (done.returncode, done.stdout) == (0, "looks in 1\n"), done.stderr


def test_a_build_uses_an_index_that_answers_even_without_pip(before_pip):
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), BaseHTTPRequestHandler
    ) as empty:  # This server always responds with 501.
        threading.Thread(target=empty.serve_forever, daemon=True).start()
        done = before_pip(f"http://127.0.0.1:{empty.server_port}/simple")
        empty.shutdown()
    assert (done.returncode, done.stdout, done.stderr) == (0, "looks in index\n", "")


@pytest.mark.parametrize("name", ["Dockerfile", "jetson.Dockerfile"])
def test_each_build_step_that_fetches_packages_checks_the_index_first(name):
    text = (IMAGES_FOLDER / name).read_text().replace("\\\n", "")
    fetching = [line for line in text.splitlines() if line.startswith("RUN") and "-r /locks" in line]
    fetching += [line for line in text.splitlines() if "install_on_vendor" in line or "$TORCH_INDEX" in line]
    assert fetching and all(". /locks/index.sh && " in line for line in fetching)


def test_an_image_without_a_digest_gives_a_warning():
    assert (
        base_image(Build("edge")) == "python:3.11-slim-bookworm"
        and base_image(Build("edge", DIGEST)) == DIGEST
    )
    assert unpinned_warning([DIGEST, ID]) == ""
    assert unpinned_warning(["protofleet/edge"]).startswith("protofleet/edge: a tag"), (
        "also an image of the project that was not built here"
    )
    assert unpinned_warning(["edge@sha256:0"]) != ""
    assert unpinned_warning(["b:1", DIGEST, "a:2"]).startswith(
        "a:2, b:1: tags, which may name other images later; name@sha256:"
    )


def test_a_pinned_build_refuses_a_base_image_without_a_digest():
    command = [sys.executable, "-m", "protofleet.deploy.images", "build", "edge", "--pinned"]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True)
    assert (
        done.returncode == 1
        and "python:3.11-slim-bookworm: a tag, which may name another image later" in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["--cluster"]])
def test_a_stack_lists_every_image_that_it_starts(words):
    images = stack_from(parser().parse_args(["up", *words])).images
    assert ("rabbitmq:4.1" in images) == bool(words) and ("eclipse-mosquitto:2.0.22" in images) != bool(words)
    assert "grafana/grafana:12.1.0" in unpinned_warning(images)
    assert {"protofleet/coordinator", "protofleet/demo"} <= set(images)


@pytest.fixture
def engine(tmp_path):
    """Return `up(*words)`, which runs against a false engine with a coordinator and a demo that were built here."""
    (tmp_path / "ids").mkdir()
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    for name, digit in (("coordinator", "1"), ("demo", "2")):
        (tmp_path / "ids" / name).write_text(f"sha256:{digit * 64}\n")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("coordinator", "demo"):
        save_id(f"protofleet/{name}", tmp_path / "built.json", environment)

    def up(*words):
        place = ["--folder", str(tmp_path / "s"), "--built", str(tmp_path / "built.json")]
        command = [sys.executable, "-m", "protofleet.deploy.stack", "up", *place, "--devices", "1", *words]
        env = {**os.environ, **environment}
        return subprocess.run(command, cwd=SOURCE, env=env, capture_output=True, text=True)

    return up


def images_of(folder):
    lines = (folder / "s/compose.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "_IMAGE=" in line)


@pytest.mark.slow
def test_a_stack_starts_its_own_images_by_their_built_ids(engine, tmp_path):
    done = engine()
    assert done.returncode == 0 and "protofleet" not in done.stderr, done.stderr
    told = images_of(tmp_path)
    assert told["COORDINATOR_IMAGE"] == "sha256:" + "1" * 64
    assert told["DEVICE_IMAGE"] == "sha256:" + "2" * 64
    assert told["BROKER_IMAGE"] == "eclipse-mosquitto:2.0.22", "the name of another image is not replaced"
    given = "COORDINATOR_IMAGE=protofleet/coordinator:latest"
    assert engine("--with", given).returncode == 0
    assert images_of(tmp_path) == told, "a longer form of the same name"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("now", "words"),
    [
        (
            "sha256:" + "3" * 64,
            f"protofleet/demo is not the image that was built here: its id is sha256:{'3' * 64}, not",
        ),
        ("", f"protofleet/demo was built here as sha256:{'2' * 64}, but this Docker engine does not"),
    ],
)
def test_an_image_that_differs_from_the_built_image_is_not_started(engine, tmp_path, now, words):
    (tmp_path / "ids/demo").write_text(now) if now else (tmp_path / "ids/demo").unlink()
    done = engine()
    assert done.returncode == 1 and done.stderr.startswith(f"stack: {words}") and done.stderr.count("\n") == 1
    assert not (tmp_path / "s").exists(), "no folder was made"
    assert engine("--with", f"DEVICE_IMAGE={ID}").returncode == 0, (
        "an image that is named by its id is accepted"
    )
    assert images_of(tmp_path)["DEVICE_IMAGE"] == ID


@pytest.mark.slow
def test_an_own_image_without_a_known_id_is_treated_as_a_tag(engine, tmp_path):
    (tmp_path / "built.json").unlink()
    done = engine()
    assert done.returncode == 0 and "protofleet/coordinator, protofleet/demo: tags" in done.stderr
    fixed = [f"{name}_IMAGE={DIGEST}" for name in ("BROKER", "PROMETHEUS", "GRAFANA")]
    done = engine("--pinned", *(word for text in fixed for word in ("--with", text)))
    assert done.returncode == 1 and "protofleet/coordinator, protofleet/demo: tags" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("text", ["{", "[]", '{"protofleet/demo": "demo:1"}'])
def test_a_damaged_list_of_built_images_is_refused_in_one_line(engine, tmp_path, text):
    (tmp_path / "built.json").write_text(text)
    done = engine()
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "built.json" in done.stderr and "run `make images`, which writes it again" in done.stderr
