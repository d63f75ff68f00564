"""What images are made of and built upon, without an engine."""

import subprocess
import sys

import pytest

from deploy.images.build import Build, base_of, build_context, moving
from deploy.locks import read_lock
from deploy.stack.__main__ import parser, stack_of
from tests.test_locks import SOURCE, wheel_of

DIGEST = "python@sha256:" + "0" * 64


def test_packages_of_an_image_come_by_their_hashes_but_for_those_that_are_pinned_elsewhere(tmp_path):
    wheel_of(tmp_path, "rich", "99.0")
    with build_context([tmp_path], [("torch", "2.7.1"), ("msgpack", "1.0.8")]) as context:
        locked = {package.name: package for package in read_lock((context / "locks/device.txt").read_text())}
        assert "msgpack" not in locked and locked["rich"].version == "99.0" and "numpy" in locked
        assert (context / "locks/pins.txt").read_text() == "msgpack==1.0.8\n"
        text = (context / "Dockerfile").read_text().replace("\\\n", "")
    installs = [line for line in text.splitlines() if " install " in line and "/locks/" in line]
    hashed = [line for line in installs if "/locks/device.txt" in line or "/locks/data.txt" in line]
    assert len(hashed) == 2 and all("--require-hashes" in line and "--only-binary" in line for line in hashed)


def test_an_image_that_a_tag_alone_names_is_said():
    assert base_of(Build("edge")) == "python:3.11-slim-bookworm" and base_of(Build("edge", DIGEST)) == DIGEST
    assert moving([DIGEST, "protofleet/edge"]) == ""
    assert moving(["b:1", DIGEST, "a:2"]).startswith("a:2, b:1: tags, which may be moved; name@sha256:")


def test_a_build_upon_a_tag_is_refused_where_all_shall_be_pinned():
    command = [sys.executable, "-m", "deploy.images", "build", "edge", "--pinned"]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 1 and "python:3.11-slim-bookworm: a tag, which may be moved" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [[], ["--cluster"]])
def test_a_stack_knows_every_image_that_it_starts(words):
    images = stack_of(parser().parse_args(["up", *words])).images
    assert ("rabbitmq:4.1" in images) == bool(words) and ("eclipse-mosquitto:2.0.22" in images) != bool(words)
    assert "grafana/grafana:12.1.0" in moving(images) and "protofleet" not in moving(images)
