"""Tell the operator what was not checked, and the commands before and after the installation of the chart."""

from __future__ import annotations

import shlex
from typing import Final

from protofleet.deploy.kubernetes.federation import ChartFederation
from protofleet.deploy.kubernetes.values import ImageValues

SCRIPT: Final = "secrets.sh"
KEYS: Final = "keys"  # the folder of `protofleet enrol fleet` in the printed commands
MOST_SHOWN: Final = 8  # groups whose Secrets are printed; the script has all of them
NEVER_RUN: Final = "this chart has never run on a cluster"
# Part of Kubernetes that only a cluster has -> the check that was not made.
NOT_CHECKED: Final = {
    "admission": "whether the API server, its quotas and its policies accept the objects",
    "scheduling": "whether a node has the reserved cores and memory, and can pull the images",
    "network policies": "whether the cluster's network enforces them, and where its DNS service is",
    "volumes": "whether the storage classes exist, allow ReadWriteMany and follow fsGroup",
}


def warning() -> list[str]:
    """Return the first lines of the command's output."""
    return [f"{NEVER_RUN}. Not checked:", *(f"  {what}: {words}" for what, words in NOT_CHECKED.items())]


def enrol_command(federation: ChartFederation, folder: str = KEYS) -> str:
    names = " ".join(shlex.quote(name) for group in federation.groups for name in group)
    return (
        f"protofleet enrol fleet {folder} {names} --federation {shlex.quote(federation.experiment.name)} "
        f"--host {federation.broker_host}"
    )


def secret_commands(federation: ChartFederation, folder: str = KEYS) -> list[str]:
    """Return the commands that put the keys of an enrolled fleet into Secrets, except the root's keys."""
    name = federation.name
    commands = [
        f"kubectl create secret generic {name}-broker --from-file={folder}/broker/current",
        f"kubectl create secret generic {name}-coordinator --from-file={folder}/coordinator/current",
        f"kubectl create configmap {name}-records --from-file={folder}/root/records",
    ]
    for i, group in enumerate(federation.groups):
        # --dereference, because `current` is a link to the newest keys.
        packed = (
            f"tar -C {folder}/devices --dereference -cz {' '.join(f'{device}/current' for device in group)}"
        )
        commands.append(
            f"{packed} | kubectl create secret generic {name}-devices-{i} --from-file=keys.tar.gz=/dev/stdin"
        )
    return commands


def secrets_script(federation: ChartFederation) -> str:
    commands = "\n".join(secret_commands(federation, '"$keys"'))
    names = " ".join(name for group in federation.groups for name in group)
    return f"""\
#!/bin/sh
# Put the keys of a fleet into Secrets of the namespace that kubectl uses: sh {SCRIPT} FOLDER
# FOLDER is what this command has made:
# {enrol_command(federation)}
set -eu
keys=${{1:?name the folder of "protofleet enrol fleet"}}
for name in {names}; do
    [ -d "$keys/devices/$name/current" ] && continue
    echo "$keys has no keys of $name; name the folder of the command above" >&2
    exit 2
done
{commands}
"""


def next_steps(federation: ChartFederation, out: str, images: ImageValues) -> list[str]:
    """Return the commands in the order in which the operator runs them."""
    commands = secret_commands(federation)
    hidden = len(commands) - 3 - MOST_SHOWN
    shown = commands if hidden <= 0 else commands[: 3 + MOST_SHOWN]
    return [
        f"push the images {images.coordinator} and {images.device}, or set image.coordinator and image.device in "
        f"{out}/values.yaml to names that the nodes can pull",
        "name the namespace for kubectl and Helm:",
        "  kubectl config set-context --current --namespace NAMESPACE",
        "make the keys, and keep the folder offline:",
        f"  {enrol_command(federation)}",
        f"put the keys into Secrets (sh {out}/{SCRIPT} {KEYS} runs these commands):",
        *(f"  {command}" for command in shown),
        *([f"  and {hidden} more in {out}/{SCRIPT}"] if hidden > 0 else []),
        "install the chart:",
        f"  helm install {federation.name} {out}",
        *_submit_steps(federation, out),
        "take the results:",
        *(f"  {command}" for command in result_commands(federation, out)),
        *_end_steps(federation),
    ]


def _submit_steps(federation: ChartFederation, out: str) -> list[str]:
    if not federation.queue:
        return []
    pod = f"{federation.name}-coordinator-0"
    return [
        "submit a run:",
        f"  kubectl cp {out}/run.toml {pod}:/tmp/run.toml",
        f"  kubectl exec {pod} -- protofleet submit /tmp/run.toml --service /runs",
    ]


def result_commands(federation: ChartFederation, out: str) -> list[str]:
    name, run = federation.name, federation.experiment.name
    return [
        f"helm upgrade {name} {out} --reuse-values --set results=true",
        f"kubectl cp {name}-results:/runs/{run} {run}",
        f"helm upgrade {name} {out} --reuse-values --set results=false",
    ]


def _end_steps(federation: ChartFederation) -> list[str]:
    if not federation.claims:
        return []
    return [
        "end the devices, which wait for the next run:",
        f"  kubectl scale statefulset {federation.name}-devices --replicas 0",
    ]


def notes(federation: ChartFederation) -> str:
    """Return the text that Helm prints after an installation."""
    lines = [*warning(), "", f"watch it:   kubectl get pods -l app.kubernetes.io/instance={federation.name}"]
    if not federation.queue:
        lines.append(f"the rounds: kubectl logs -f job/{federation.name}-coordinator")
    return "\n".join([*lines, *_end_steps(federation)]) + "\n"
