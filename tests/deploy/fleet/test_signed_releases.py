"""A device gets and runs only files that the federation's root has signed; the test has real root and real users."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.deploy.fleet.control_plane import ControlPlane
from protofleet.deploy.fleet.device.facts import Installed
from protofleet.deploy.fleet.execute import Executor, StepError
from protofleet.deploy.fleet.manifest import files_of, issue_manifest
from protofleet.deploy.fleet.plan import BuildRelease, Configure, Prepare, Ship, Switch
from protofleet.deploy.fleet.settings import Fleet, Host, Software
from protofleet.deploy.fleet.software import Releases
from protofleet.deploy.fleet.ssh import CommandResult
from protofleet.federation.enrol.authority import Authority, make_authority
from protofleet.federation.enrol.lifecycle import begin_rotation, finish_rotation
from protofleet.runtime.installation.checkout import PACKAGES, ROOT
from tests.deploy.fleet.boards import jetson
from tests.deploy.fleet.root_board import NoBoardError, RootBoard

UNIT = "/etc/systemd/system/protofleet-device.service"
TOP = "/opt/protofleet"


class Direct:
    """A replacement of `Ssh` for a board that needs no network."""

    name = "board-1"

    def __init__(self, board):
        self.board = board

    def run(self, script, *words, seconds=60.0):
        done = self.board.run("sh", "-s", "--", *words, stdin=script, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def send(self, source, target, seconds=0.0, private=False):
        self.board.sh(
            f"rm -rf {target}; mkdir -m 755 {target}; cp -L {source}/* {target}; chmod 644 {target}/*"
        )
        return CommandResult(0, "", "")


@pytest.fixture
def board():
    try:
        made = RootBoard()
    except NoBoardError as error:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(error))
    yield made
    made.close()


def our_wheel(folder):
    """Write a wheel of this checkout without a build, from its sources and the files that pip needs."""
    folder.mkdir()
    info = "protofleet-0.1.0.dist-info"
    with zipfile.ZipFile(folder / "protofleet-0.1.0-py3-none-any.whl", "w") as made:
        for path in (p for name in PACKAGES for p in (ROOT / name).rglob("*") if p.is_file()):
            if "__pycache__" not in path.parts:
                inside = path.relative_to(ROOT)
                made.write(path, inside if inside.parts[0] == "protofleet" else Path("protofleet") / inside)
        made.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: protofleet\nVersion: 0.1.0\n")
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(
            f"{info}/entry_points.txt", "[console_scripts]\nprotofleet = protofleet.cli.main:main\n"
        )
        made.writestr(f"{info}/RECORD", "")
    return str(folder)


def control_of(folder, wheels, name="root", dependencies="system"):
    make_authority(folder / name, "lab", 10)
    software = Software(dependencies=dependencies, wheels=wheels, python="/usr/bin/python3")
    device = {"broker": {"host": "broker.example"}, "data": {"source": "digits"}}
    fleet = Fleet(str(folder / name), {"board-1": Host("board.example")}, software=software, device=device)
    return ControlPlane(fleet, Releases(fleet, folder / f"releases-{name}"), lambda name, fingerprint: True)


def executor_of(control, board):
    return Executor(Direct(board), control, control.desired.target("board-1", jetson()), print)


@pytest.fixture
def control(tmp_path):
    return control_of(tmp_path, our_wheel(tmp_path / "wheels"))


@pytest.fixture
def executor(control, board):
    made = executor_of(control, board)
    made.execute(Prepare(), jetson())
    made.execute(Ship(control.desired.release("board-1").name, ""), jetson())
    return made


def with_torch(board):
    """Give the board this interpreter's packages as if a vendor had installed them.

    They must fit the Python of the system, or the test is skipped.
    """
    version = subprocess.run(
        ["/usr/bin/python3", "--version"], capture_output=True, text=True
    ).stdout.split()[-1]
    if version.split(".")[:2] != [str(part) for part in sys.version_info[:2]]:
        pytest.skip(
            f"the system's Python is {version}, whose packages are not those of {sys.version.split()[0]}"
        )
    site = sysconfig.get_paths()["purelib"]
    note = "import os, pwd, sys; sys.path.insert(0, '/mnt/vendor'); "
    note += "open('/run/who', 'a').write(pwd.getpwuid(os.getuid()).pw_name + chr(10))"
    board.sh(f"mkdir /mnt/vendor; mount --bind {site} /mnt/vendor; install -m 666 /dev/null /run/who")
    board.run("sh", "-c", "cat >/usr/lib/python3/dist-packages/vendor.pth", stdin=f"{note}\n")


@pytest.mark.slow
def test_a_release_is_built_by_a_user_without_rights_and_belongs_to_root(executor, board):
    with_torch(board)
    release = executor.control.desired.release("board-1").name
    where = f"{TOP}/releases/{release}"
    executor.execute(BuildRelease(release), jetson())
    assert set(board.sh("cat /run/who").split()) == {"protofleet", "protofleet-build"}, (
        "no program of a release runs as root"
    )
    assert board.sh(f"find {where} ! -type l '(' ! -user root -o ! -group root -o -perm /7022 ')'") == ""
    assert board.sh(f"stat -c %a {where} {TOP} {TOP}/releases /etc/protofleet").split() == ["755"] * 4
    executor.run_step("switch", release, "board-1")
    assert board.sh(f"readlink {TOP}/current") == f"releases/{release}"

    code = f"$(find {where} -name machine.py | head -n 1)"
    link = f"ln -sf /bin/sh {where}/bin/python"
    for harm in (f"echo '# mine' >>{code}", f"echo >{where}/lib/new.py", f"rm {code}", link):
        board.sh(f"rm -rf /opt/kept; cp -a {where} /opt/kept; {harm}")
        with pytest.raises(
            StepError, match=f"in release {release} was changed since it was built; deploy again"
        ):
            executor.run_step("switch", release, "board-1")
        assert board.sh(f"test -e {where}/.complete; echo $?") == "1", (
            "the next deployment builds the release again"
        )
        board.sh(f"rm -rf {where}; mv /opt/kept {where}")
    executor.run_step("switch", release, "board-1")


HARMS = {
    "a byte": (
        "printf x >>{}/protofleet-0.1.0-py3-none-any.whl",
        "differs from the file that the signed manifest",
    ),
    "a file less": ("rm {}/how", "is missing, but the signed manifest lists it"),
    "a link": (
        "mv {0}/how /opt/how; ln -s /opt/how {0}/how",
        "differs from the file that the signed manifest",
    ),
    "no manifest": ("rm {}/manifest", "manifest cannot be read"),
    "a manifest with another letter": ("sed -i '3s/./_/' {}/manifest", "no root of this host has signed"),
    "a manifest with another line": ("echo '# more' >>{}/manifest", "no root of this host has signed"),
    "another signature": ("sed -i '3s/./_/' {}/manifest.sig", "no root of this host has signed"),
    "no signature": ("rm {}/manifest.sig", "manifest.sig cannot be read"),
    "an empty manifest": (": >{}/manifest", "no root of this host has signed"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_release_that_differs_from_its_signed_manifest_is_not_built(executor, board, harm):
    release = executor.control.desired.release("board-1")
    deed, words = HARMS[harm]
    board.sh(deed.format(f"{TOP}/wheels/{release.name}"))
    with pytest.raises(StepError, match=words):
        executor.execute(BuildRelease(release.name), jetson())
    assert board.sh(f"ls -A {TOP}/releases") == ""


def test_extra_files_in_the_folder_of_a_release_are_removed_before_the_build(executor, board):
    release = executor.control.desired.release("board-1")
    where = f"{TOP}/wheels/{release.name}"
    board.sh(f"echo >{where}/torch-9.whl; mkdir {where}/.more; ln -s /etc/passwd {where}/.more/link")
    before = board.sh("cat /etc/passwd")
    with pytest.raises(StepError, match="has other arguments"):  # The folder itself was therefore correct.
        executor.run_step("build", release.name, release.python, "index")
    assert sorted(board.sh(f"ls -A {where}").split()) == [
        "how",
        "manifest",
        "manifest.sig",
        *sorted(files_of(release.folder))[1:],
    ]
    assert board.sh("cat /etc/passwd") == before, "no link is followed"


def test_a_release_is_installed_only_with_its_signed_arguments(executor):
    release = executor.control.desired.release("board-1")
    with pytest.raises(StepError, match="has other arguments for the installation"):
        executor.run_step("build", release.name, release.python, "index")


def test_a_manifest_of_another_release_or_another_root_is_refused(executor, board, tmp_path):
    release = executor.control.desired.release("board-1")
    where = f"{TOP}/wheels/{release.name}"
    board.sh(f"cp -r {where} {TOP}/wheels/{'b' * 16}")
    with pytest.raises(StepError, match="is for release .* not for release bbbb"):
        executor.run_step("build", "b" * 16, *release.install_arguments)
    stranger = [Ed25519PrivateKey.generate()]
    stranger = issue_manifest("lab", f"release {release.name}", files_of(release.folder), stranger)
    for name, text in stranger.items():
        board.run("sh", "-c", f"cat >{where}/{name}", stdin=text)
    with pytest.raises(StepError, match="no root of this host has signed"):
        executor.execute(BuildRelease(release.name), jetson())


def test_settings_and_unit_are_installed_only_if_they_match_the_signed_manifest(executor, board):
    release, incoming = executor.control.desired.release("board-1").name, f"{TOP}/incoming"
    board.sh(f"mkdir -p {TOP}/releases/{release}/bin; cp /bin/true {TOP}/releases/{release}/bin/python")
    board.sh(f"touch {TOP}/releases/{release}/.complete")
    executor.execute(Configure(""), jetson())
    board.sh(f"cp -r {incoming} /opt/incoming")
    for harm in (
        "sed -i s/User=protofleet/User=root/ {}/unit",
        "rm {}/unit",
        "rm {}/manifest",
        "echo >{}/approval",
    ):
        board.sh(f"rm -rf {incoming}; cp -r /opt/incoming {incoming}; {harm.format(incoming)}")
        for step in ("check", "switch"):
            with pytest.raises(StepError, match=r"manifest"):
                executor.run_step(step, release, "board-1")
    board.sh(f"rm -rf {incoming}; cp -r /opt/incoming {incoming}")
    with pytest.raises(StepError, match="is for device board-1 in lab, and not for device board-2"):
        executor.run_step("switch", release, "board-2")
    assert board.sh(f"test -e {UNIT} || test -e /etc/protofleet/device.settings; echo $?") == "1"
    executor.execute(Switch(release), jetson())
    assert "User=protofleet" in board.sh(f"cat {UNIT}") and board.sh(f"ls -A {incoming}") == ""
    assert board.sh(f"stat -c %a {UNIT} /etc/protofleet/device.settings").split() == ["644", "644"]


def test_a_device_follows_rotations_of_its_root_and_refuses_other_roots(executor, board, control, tmp_path):
    authority = Authority(Path(control.fleet.root))
    begin_rotation(authority, 10.0)
    later = same_but(control)
    made = executor_of(later, board)
    made.execute(Prepare(), jetson())
    both = later.desired.roots_files(Installed())
    assert roots_on(board) == in_order(both)
    finish_rotation(Authority(Path(control.fleet.root)), force=True)
    last = executor_of(same_but(control), board)
    last.execute(Prepare(), jetson())
    assert roots_on(board) == in_order(last.control.desired.roots_files(Installed()))
    stranger = control_of(tmp_path, control.fleet.software.wheels, "other")
    for other in (stranger, control_like(both, last.control)):
        with pytest.raises(StepError, match="remove /etc/protofleet/roots on this host"):
            executor_of(other, board).execute(Prepare(), jetson())
    assert roots_on(board) == in_order(last.control.desired.roots_files(Installed()))


def same_but(control, confirm=lambda name, fingerprint: True):
    """Return a new control plane of the same fleet, as the root may have changed."""
    return ControlPlane(
        control.fleet, Releases(control.fleet, Path(control.fleet.root).parent / "again"), confirm
    )


def control_like(roots, control):
    """Return a new control plane of the same fleet that offers these roots."""
    made = same_but(control)
    made.desired.roots_files = lambda installed: roots
    return made


def roots_on(board):
    return board.sh("cat /etc/protofleet/roots /etc/protofleet/allowed_signers")


def in_order(files):
    return (files["roots"] + files["allowed_signers"]).strip()


@pytest.mark.slow
def test_the_error_for_an_unreachable_index_gives_the_reason(tmp_path, board, monkeypatch):
    """The operator must not read only that there is no such version, which is the last line of pip."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)  # with this machine's settings pip would find an index
    control = control_of(tmp_path, our_wheel(tmp_path / "wheels"), dependencies="index")
    mirror = "[global]\nindex-url = http://127.0.0.1:9/simple\nretries = 1\n"
    board.run("sh", "-c", "rm -rf /etc/xdg/pip; cat >/etc/pip.conf", stdin=mirror)
    executor = executor_of(control, board)
    for step in (Prepare(), Ship(control.desired.release("board-1").name, "")):
        executor.execute(step, jetson())
    with pytest.raises(StepError) as told:
        executor.execute(BuildRelease(control.desired.release("board-1").name), jetson())
    assert "pip cannot install the locked packages: ERROR: " in str(told.value)
    assert "an index cannot be reached: Failed to establish a new connection: [Errno 111]" in str(told.value)
