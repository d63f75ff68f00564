"""The engine of the tests runs commands on images that were made or pulled once."""

import pytest

from tests.containers.engine import NoEngine, running_engine

pytestmark = pytest.mark.containers


def test_a_container_on_the_python_base_runs_python_and_imports_pip(engine):
    told = engine.docker(
        "run", "--rm", engine.base, "python", "-c", "import pip, sys; print(sys.version_info[:2])"
    )
    assert told == "(3, 11)"


def test_two_users_share_one_engine(engine):
    with running_engine() as another:
        assert another.base == engine.base
    engine.docker("version")  # The other user left, and the engine still runs.


def test_the_error_for_a_missing_docker_client_names_the_command_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoEngine, match="make container-tools"), running_engine():
        pass
