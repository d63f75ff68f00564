"""Three nodes of RabbitMQ as the broker: the federation and the certificates stay the same, and nodes are killed."""

import uuid

import pytest

from tests.containers.engine import Engine
from tests.containers.images import stand_in
from tests.containers.stacks import RunningStack
from tests.containers.test_stack import stack_words

ROUNDS = 150  # More rounds than pass while a node is down three times; a round takes under half a second.
pytestmark = [pytest.mark.containers, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def cluster(engine: Engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    words = [*stack_words(engine, name="clustered", rounds=ROUNDS), "--devices", "3", "--cluster"]
    words += ["--with", f"RABBITMQ_IMAGE={stand_in(engine, 'rabbitmq')}"]
    stack = RunningStack(engine, folder / "stack", f"pft{uuid.uuid4().hex[:8]}", *words)
    try:
        stack.make("up")
        yield stack
    finally:
        (folder / "containers.log").write_text(stack.told())
        stack.make("down", "--forget")


def test_a_run_over_a_cluster_ends_although_each_node_is_killed_once(cluster):
    cluster.wait("first round", lambda: len(cluster.rounds()) > 0)
    for node in (1, 2, 3):
        name = f"{cluster.name}-rabbit-{node}-1"
        before, started = len(cluster.rounds()), cluster.state(name)["State"]["StartedAt"]
        assert before < ROUNDS, f"the run was over before {name} was killed"
        cluster.kill(name)
        cluster.wait("a round", lambda before=before: len(cluster.rounds()) > before)
        with cluster.held():
            cluster.wait(f"return of {name}", lambda: cluster.state(name)["State"]["StartedAt"] != started)
            cluster.wait(
                f"health of {name}", lambda: cluster.state(name)["State"]["Health"]["Status"] == "healthy"
            )
    cluster.wait("end of the run", lambda: len(cluster.rounds()) == ROUNDS + 1)
    assert all(len(record["participants"]) >= 2 for record in cluster.rounds()[:-1])


def test_the_cluster_has_three_nodes_and_accepts_only_tls_with_certificates(cluster, engine):
    node = f"{cluster.name}-rabbit-1-1"
    told = engine.docker("exec", node, "rabbitmqctl", "-q", "cluster_status")
    assert all(f"rabbit@rabbit-{i}" in told for i in (1, 2, 3))
    users = engine.docker("exec", node, "rabbitmqctl", "-q", "list_users", "--silent").split()
    assert "guest" not in users and {"coordinator", "mnist"} <= set(users)
    listening = engine.docker("exec", node, "rabbitmq-diagnostics", "-q", "listeners")
    assert "8883" in listening and "1883" not in listening and "5672, protocol: amqp" not in listening
