"""Run the pods of a rendered chart with Docker, as a kubelet would: their commands, mounts, users and modes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.containers.engine import Engine

VARIABLE: Final = re.compile(r"\$\((\w+)\)")
UNITS: Final = {"Mi": "m", "Gi": "g"}
OPEN: Final = 0o2775  # Mode of a volume that belongs to the group of the pod.

Object = Mapping[str, Any]


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replace $(NAME) by the variable; Kubernetes leaves names that it does not know as they are."""
    return VARIABLE.sub(lambda found: environment.get(found[1], found[0]), text)


@dataclass
class Pods:
    """The pods of a chart in one network, whose volumes are folders of this machine."""

    engine: Engine
    folder: Path
    network: str
    objects: Sequence[Object]
    secrets: Path  # A folder for each Secret and ConfigMap that the operator makes, with its files.
    containers: list[str] = field(default_factory=list)

    def one(self, kind: str, name: str) -> Object:
        (found,) = [one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
        return found

    def start(self, kind: str, name: str, index: int = 0, attempt: int = 0) -> str:
        """Run the containers of a pod's initContainers to their end, start its container, and return its name."""
        template = self.one(kind, name)["spec"]["template"]["spec"]
        pod = f"{self.network}-{name}-{index}-{attempt}"
        claims = self.one(kind, name)["spec"].get("volumeClaimTemplates", [])
        volumes = {one["name"]: self._volume(one, pod, template) for one in template["volumes"]}
        volumes |= {
            one["metadata"]["name"]: self._claim(f"{pod}-{one['metadata']['name']}") for one in claims
        }
        for container in template.get("initContainers", []):
            self.engine.docker("run", "--rm", *self._words(container, template, volumes, index))
        (container,) = template["containers"]
        alias = ("--network-alias", name) if any(self._services(name)) else ()
        self.engine.docker(
            "run", "-d", "--name", pod, *alias, *self._words(container, template, volumes, index)
        )
        self.containers.append(pod)
        return pod

    def exec_probe(self, pod: str, kind: str, name: str) -> subprocess.CompletedProcess[str]:
        (container,) = self.one(kind, name)["spec"]["template"]["spec"]["containers"]
        return self.engine.run("exec", pod, *container["readinessProbe"]["exec"]["command"])

    def address(self, pod: str) -> str:
        return self.engine.docker(
            "inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", pod
        )

    def exit_code(self, pod: str) -> int | None:
        """Return the exit code of a pod's container, or None while it runs."""
        status, code = self.engine.docker(
            "inspect", "-f", "{{.State.Status}} {{.State.ExitCode}}", pod
        ).split()
        return int(code) if status == "exited" else None

    def told(self) -> str:
        logs = [(name, self.engine.run("logs", "--tail", "25", name)) for name in self.containers]
        return "\n".join(f"--- {name}\n{done.stdout}{done.stderr}" for name, done in logs)

    def remove(self) -> None:
        for name in self.containers:
            self.engine.run("rm", "-f", name)

    def _services(self, name: str) -> Iterator[Object]:
        return (one for one in self.objects if (one["kind"], one["metadata"]["name"]) == ("Service", name))

    def _words(self, container: Object, pod: Object, volumes: Mapping[str, Path], index: int) -> list[str]:
        """Return the arguments of `docker run` for a container."""
        own, whole = container["securityContext"], pod["securityContext"]
        assert own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
        words = ["--network", self.network, "--read-only", "--security-opt", "no-new-privileges"]
        words += [word for name in own["capabilities"]["drop"] for word in ("--cap-drop", name)]
        words += [
            "--user",
            f"{whole['runAsUser']}:{whole['runAsGroup']}",
            "--group-add",
            str(whole["fsGroup"]),
        ]
        words += ["--memory", _docker_size(container["resources"]["limits"]["memory"])]
        environment = {
            one["name"]: one["value"] if "value" in one else str(index) for one in container.get("env", [])
        }
        words += [word for name, value in environment.items() for word in ("-e", f"{name}={value}")]
        for mount in container["volumeMounts"]:
            source = volumes[mount["name"]] / expanded(mount.get("subPathExpr", ""), environment)
            mode = ":ro" if mount.get("readOnly") else ""
            words += ["-v", f"{source}:{mount['mountPath']}{mode}"]
        command = [expanded(word, environment) for word in container.get("command", [])]
        arguments = [expanded(word, environment) for word in container.get("args", [])]
        entry = ["--entrypoint", command[0]] if command else []
        return [*words, *entry, container["image"], *command[1:], *arguments]

    def _volume(self, volume: Object, pod: str, template: Object) -> Path:
        group = template["securityContext"]["fsGroup"]
        match volume:
            case {"persistentVolumeClaim": claim}:
                return self._claim(claim["claimName"], group)
            case {"emptyDir": _}:
                return _made(self.folder / "pods" / pod / volume["name"], group)
        projected = volume.get("projected", {"sources": [volume]})
        files: dict[str, bytes] = {}
        for source in projected["sources"]:
            files |= self._files(source)
        options = volume.get("secret") or volume.get("configMap") or projected
        mode = options.get("defaultMode", 0o644)
        return _kubelet_files(self.folder / "pods" / pod / volume["name"], files, mode, group)

    def _claim(self, name: str, group: int = 10001) -> Path:
        return _made(self.folder / "claims" / name, group)

    def _files(self, source: Object) -> dict[str, bytes]:
        """Return the files of a Secret or a ConfigMap by their paths in the volume."""
        of = source.get("secret") or source["configMap"]
        name = of.get("secretName") or of["name"]
        rendered = [
            one for one in self.objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == name
        ]
        if "configMap" in source and rendered:
            found = {key: text.encode() for key, text in rendered[0]["data"].items()}
        else:
            found = {path.name: path.read_bytes() for path in (self.secrets / name).iterdir()}
        items = of.get("items")
        return {one["path"]: found[one["key"]] for one in items} if items else found


def _docker_size(size: str) -> str:
    return size[:-2] + UNITS[size[-2:]]


def _made(folder: Path, group: int) -> Path:
    if not folder.exists():
        folder.mkdir(parents=True)
        os.chown(folder, 0, group)
        folder.chmod(OPEN)
    return folder


def _kubelet_files(folder: Path, files: Mapping[str, bytes], mode: int, group: int) -> Path:
    """Write files as a kubelet does: links to links, which all change at once when an object changes."""
    shutil.rmtree(folder, ignore_errors=True)
    real = folder / "..2026_11_30"
    for path, data in files.items():
        (real / path).parent.mkdir(parents=True, exist_ok=True)
        (real / path).write_bytes(data)
        os.chown(real / path, 0, group)
        (real / path).chmod(mode)
    (folder / "..data").symlink_to(real.name)
    for top in {Path(path).parts[0] for path in files}:
        (folder / top).symlink_to(f"..data/{top}")
    return folder
