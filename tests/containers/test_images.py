"""The product's images, built on the bases of the tests: their sizes, their content and their function."""

import os
import re
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from protofleet.deploy.images.build import Build, build, layer_sizes
from protofleet.deploy.images.image_ids import ids_of, read_ids, save_id
from protofleet.runtime.command.errors import RunError
from tests.containers.bases import python_base
from tests.containers.images import built_in, product, wheel_folders
from tests.support.installed import installed_in, own_environment, wheel_in

pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]
ABOVE_THE_BASE = 150e6  # Bytes that an edge image may add to its base and torch.

JETPACK = """\
FROM {base}
RUN --mount=type=bind,source=wheels,target=/wheels python3 -m pip install -q --find-links /wheels \\
    {index} "torch==2.13.0" "numpy<2.4" && echo "# NVIDIA's own" >>$(python3 -c 'import torch; print(torch.__file__)')
"""


@pytest.fixture(scope="module")
def edge(engine):
    return product(engine, "edge")[0]


@pytest.fixture(scope="module")
def jetpack(engine, tmp_path_factory):
    """Return an image like NVIDIA's: a torch in the system's Python that comes from no index."""
    folder = tmp_path_factory.mktemp("jetpack")
    (folder / "wheels").mkdir()
    for wheels in wheel_folders():
        for path in wheels.glob("*.whl"):
            os.link(
                path, folder / "wheels" / path.name
            ) if path.stat().st_dev == folder.stat().st_dev else None
    index = (
        ""
        if wheel_folders()
        else "--index-url https://download.pytorch.org/whl/cpu --extra-index-url https://pypi.org/simple"
    )
    (folder / "Dockerfile").write_text(JETPACK.format(base=engine.base, index=index))
    engine.docker("build", "-q", "-t", "protofleet-local/jetpack", str(folder))
    return "protofleet-local/jetpack"


def run(engine, image, *words, **more):
    return engine.docker(
        "run", "--rm", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", image, *words, **more
    )


def python(engine, image, code):
    words = ("run", "--rm", "--read-only", "--tmpfs", "/tmp", "--entrypoint", "python", image, "-c", code)
    return engine.docker(*words)


def test_an_edge_image_adds_at_most_150_MB_to_its_base_and_torch(engine, edge, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    found = layer_sizes(edge)
    assert 0 < found["packages"] + found["protofleet"] + found["data"] <= ABOVE_THE_BASE, found


def test_an_edge_image_runs_as_a_user_without_rights_on_a_read_only_root(engine, edge):
    assert run(engine, edge, "--version") == "protofleet 0.1.0"
    assert python(engine, edge, "import os; print(os.getuid())") == "10001"
    assert "fedlsa" in run(engine, edge, "methods")


def test_an_edge_image_has_compiled_bytecode_of_its_imports(engine, edge):
    code = """import sys, pathlib, protofleet.edge_client.main
kept = [m.__cached__ for m in list(sys.modules.values()) if isinstance(getattr(m, "__cached__", None), str)]
ours = [pathlib.Path(path) for path in kept if "/opt/protofleet" in path]
print(sum(not path.exists() for path in ours), len(ours))"""
    without, all_of_them = map(int, python(engine, edge, code).split())
    assert all_of_them > 500 and without < all_of_them // 50, (
        f"{without} of {all_of_them} are compiled each time"
    )


def test_a_tag_that_now_names_another_image_is_refused(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    name, built = f"protofleet-local/moved-{uuid.uuid4().hex[:8]}", tmp_path / "images.json"
    engine.docker("tag", engine.base, name)
    try:
        save_id(name, built)
        noted = engine.docker("image", "inspect", "-f", "{{.Id}}", engine.base)
        assert ids_of([name], read_ids(built)) == {name: noted}
        engine.docker("tag", engine.debian, name)
        with pytest.raises(
            RunError, match=rf"not the image that was built here: its id is sha256:\w+, not {noted};"
        ):
            ids_of([name], read_ids(built))
    finally:
        engine.docker("rmi", name)
    with pytest.raises(RunError, match=f"built here as {noted}, but this Docker engine does not have"):
        ids_of([name], read_ids(built))


def smoke(engine, image):
    """Return the last line of an image's smoke test, which imports all modules and trains a model."""
    script = f"{Path(__file__).parent / 'smoke.py'}:/smoke.py:ro"
    words = (
        "run",
        "--rm",
        "--read-only",
        "--tmpfs",
        "/tmp",
        "-v",
        script,
        "--entrypoint",
        "python",
        image,
        "/smoke.py",
    )
    return engine.docker(*words, seconds=1200).splitlines()[-1]


def test_an_edge_image_imports_all_modules_answers_hellos_and_trains(engine, edge):
    assert re.fullmatch(r"\S+ torch \S+: \d{3} modules, accuracy 1\.00", smoke(engine, edge))


@pytest.mark.skipif(
    not os.environ.get("PROTOFLEET_ARM64"),
    reason="half an hour under emulation; PROTOFLEET_ARM64=1 asks for it",
)
@pytest.mark.timeout(5400)
def test_the_same_dockerfile_builds_an_image_for_arm64(engine):
    """The image runs under emulation: binfmt_misc must know qemu-aarch64.

    PyPI's newer torches for arm64 want CUDA; 2.7.1 does not.
    """
    base = python_base(engine, engine.folder, "arm64")
    name, pins = "protofleet-local/edge-arm64", (("torch", "2.7.1"), ("torchvision", "0.22.1"))
    build(Build("edge", base, "", pins=pins, name=name), {"DOCKER_HOST": engine.host}, built_in(engine))
    assert re.fullmatch(r"aarch64 torch 2\.7\.1\S*: \d{3} modules, accuracy 1\.00", smoke(engine, name))


def test_an_edge_image_can_load_every_method_and_its_libraries(engine, edge):
    """No method misses the parts that were left out to make the image small."""
    code = """import warnings; warnings.simplefilter("ignore")
import finch, sklearn.manifold, scipy.io, rich.live
import protofleet.lab.report.run_page, protofleet.coordinator.main, protofleet.edge_client.main
from protofleet.methods.contract import catalog as methods
from protofleet.methods.nets.torchvision_import import import_torchvision
import_torchvision()
[methods.load(name) for name in methods.names()]
import io
import numpy as np
points, file = np.random.default_rng(0).normal(size=(40, 8)), io.BytesIO()
clusters = finch.FINCH(points, verbose=False)[0]
assert sklearn.manifold.TSNE(perplexity=5).fit_transform(points).shape == (40, 2)
scipy.io.savemat(file, {"points": points})
assert (scipy.io.loadmat(file)["points"] == points).all()
print(len(methods.names()), clusters.shape[0])"""
    told = python(engine, edge, code)
    assert told.split()[-1] == "40"


def test_the_health_check_of_an_image_without_settings_fails_with_the_reason(engine, edge):
    """The health check in the image queries the running process; it does not test for an open port."""
    name = engine.docker("run", "-d", "--rm", "--entrypoint", "sleep", edge, "60")
    try:
        done = engine.run("exec", name, "protofleet", "health", "/protofleet/settings.toml")
        assert done.returncode == 2 and "there is no file /protofleet/settings.toml" in done.stderr
    finally:
        engine.run("kill", name)


def test_an_installed_protofleet_builds_an_image_of_the_same_program(engine, edge, tmp_path):
    programs = installed_in(tmp_path / "venv", wheel_in(tmp_path / "wheel"))
    (empty := tmp_path / "empty").mkdir()
    words = [
        str(programs / "python"),
        "-m",
        "protofleet.deploy.images",
        "build",
        "edge",
        "--base",
        engine.base,
    ]
    for folder in (wheels := wheel_folders()):
        words += ["--wheels", str(folder)]
    docker = {
        "DOCKER_HOST": engine.host,
        "DOCKER_CONFIG": str(Path.home() / ".docker"),
    }  # This folder may have docker's plugins.
    environment = own_environment() | docker | {"HOME": str(tmp_path / "home")}
    before = python(engine, edge, PROGRAM)
    words += ["--torch-index", ""] if wheels else []
    subprocess.run(words, cwd=empty, env=environment, check=True, timeout=1800)
    assert python(engine, edge, PROGRAM) == before and "fedlsa" in run(engine, edge, "methods")
    assert not list(empty.iterdir())


PROGRAM = """import hashlib, pathlib, protofleet
(place,) = protofleet.__path__
files = sorted(pathlib.Path(place).rglob("*.py"))
print(len(files), hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest())"""


def test_a_jetson_image_keeps_nvidias_torch(engine, jetpack, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    before = engine.docker("run", "--rm", jetpack, "python3", "-c", WHERE)
    product(engine, "edge-jetson", base=jetpack)
    after = engine.docker("run", "--rm", "--entrypoint", "python3", "protofleet/edge-jetson", "-c", WHERE)
    assert after == before and after.endswith("NVIDIA's own"), (before, after)
    assert run(engine, "protofleet/edge-jetson", "--version") == "protofleet 0.1.0"
    assert "fedplcc" in run(engine, "protofleet/edge-jetson", "methods")


WHERE = (
    "import torch, numpy; "
    "print(torch.__version__, torch.__file__, numpy.__version__, open(torch.__file__).read().strip()[-13:])"
)


def test_a_jetson_image_from_a_base_without_torch_fails_with_the_reason(engine, capfd, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", engine.host)
    with pytest.raises(RunError, match="failed to build"):
        build(Build("edge-jetson", engine.base, None, wheel_folders()))
    assert "the base image has no torch that can be imported" in capfd.readouterr().err


def test_the_engine_restarts_a_stuck_process(engine, edge, tmp_path):
    """A thread cannot get SIGSTOP alone. So the test blocks the loop, and the process ends with exit code 70."""
    script = tmp_path / "hang.py"
    script.write_text(
        "import time\nfrom protofleet.runtime.health import Heartbeats, watchdog\n"
        "heartbeats = Heartbeats(); heartbeats.beat('loop')\n"
        "with watchdog(heartbeats, 1.0):\n    time.sleep(600)\n"
    )
    name = engine.docker(
        "run",
        "-d",
        "--restart",
        "on-failure",
        "-v",
        f"{script}:/hang.py:ro",
        "--entrypoint",
        "python",
        edge,
        "/hang.py",
    )
    try:
        deadline = time.monotonic() + 60
        while int(engine.docker("inspect", "-f", "{{.RestartCount}}", name)) < 2:
            assert time.monotonic() < deadline, "it was not started again"
            time.sleep(0.2)
        done = engine.run("logs", name)
        assert "loop has shown no sign of life" in done.stdout + done.stderr
    finally:
        engine.docker("rm", "-f", name)
