"""Write the files of the chart: values, settings of the parties, templates, and the script of the Secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.service_settings import without_run
from protofleet.deploy.kubernetes.federation import ChartFederation
from protofleet.deploy.kubernetes.parties import BROKER_PORT, broker_conf, coordinator_in_pod, device_in_pod
from protofleet.deploy.kubernetes.schema import schema_of
from protofleet.deploy.kubernetes.steps import SCRIPT, notes, secrets_script
from protofleet.deploy.kubernetes.values import ChartValues
from protofleet.deploy.stack.layout import METRICS_PORT
from protofleet.protocol.security.keyfiles import write_file
from protofleet.protocol.settings.reader import SettingsError, encode, write_toml
from protofleet.protocol.settings.sentences import sentences
from protofleet.runtime.installation.version import installed_version

TEMPLATES: Final = Path(__file__).parent / "templates"
RUN_FILE: Final = "run.toml"  # the experiment that can be submitted to a coordinator with a queue
# Helm puts all other files of the folder into the chart, and so into a Secret of the cluster.
IGNORED: Final = (f"/{SCRIPT}", f"/{RUN_FILE}", "/keys", "*.key", "/root")
MOST_CONFIG: Final = 1_000_000  # Kubernetes takes 1 MiB in a ConfigMap, keys included.
SEMANTIC: Final = re.compile(r"\d+\.\d+\.\d+")
CHART_VERSION: Final = "0.1.0"


@dataclass(frozen=True)
class Chart:
    federation: ChartFederation
    values: ChartValues

    def files(self) -> dict[str, str]:
        """Return the text of each file by its path in the chart's folder."""
        found = {f"templates/{path.name}": path.read_text() for path in sorted(TEMPLATES.iterdir())}
        found |= self._settings()
        found |= {
            "Chart.yaml": self._description(),
            "values.yaml": self._values(),
            "values.schema.json": json.dumps(schema_of(ChartValues, self.fixed()), indent=1) + "\n",
            "templates/NOTES.txt": notes(self.federation),
            ".helmignore": "".join(f"{name}\n" for name in IGNORED),
            SCRIPT: secrets_script(self.federation),
        }
        return found

    def fixed(self) -> dict[str, Any]:
        """Return the values that the settings of the parties depend on."""
        it = self.federation
        return {
            "name": it.name, "queue": it.queue, "claims": it.claims,
            "groups": len(it.groups), "largest": it.largest,
            "broker_port": BROKER_PORT, "metrics_port": METRICS_PORT,
        }  # fmt: skip

    def _settings(self) -> dict[str, str]:
        it = self.federation
        coordinator = encode(coordinator_in_pod(it))
        found = dict[str, str]()
        if it.queue:
            coordinator, run = without_run(coordinator)
            found[RUN_FILE] = write_toml(run)
        found |= {
            "settings/coordinator.toml": write_toml(coordinator),
            "settings/mosquitto.conf": broker_conf(it),
            "settings/groups.json": json.dumps(it.groups, indent=1) + "\n",
        }
        demand_small("coordinator.toml", [found["settings/coordinator.toml"]])
        for i, group in enumerate(it.groups):
            files = {name: write_toml(encode(device_in_pod(it, group, name))) for name in group}
            demand_small(f"the settings of group {i}", files.values())
            found |= {f"settings/devices/{i}/{name}.toml": text for name, text in files.items()}
        return found

    def _description(self) -> str:
        version = installed_version()
        lines = {
            "apiVersion": "v2", "name": "protofleet", "type": "application",
            "description": "A federation of protofleet, devices included. This chart has never run on a cluster.",
            "version": version if SEMANTIC.fullmatch(version) else CHART_VERSION,
            "appVersion": version, "kubeVersion": ">=1.28.0-0",
        }  # fmt: skip
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())

    def _values(self) -> str:
        """Return values.yaml. A value of JSON is a value of YAML, too."""
        lines = [
            "# To change a value of this table, write the chart again with `protofleet kubernetes`.",
            "fleet:",
        ]
        lines += [f"  {key}: {json.dumps(value)}" for key, value in self.fixed().items()]
        return "\n".join([*lines, *_commented(self.values)]) + "\n"


def _commented(values: object, indent: str = "") -> list[str]:
    """Return the lines of a table, each value below the sentence that describes it."""
    words, lines = sentences(type(values)), list[str]()
    for key, value in vars(values).items():
        lines += [""] * (not indent) + [f"{indent}# {words.get(key, '')}"]
        if isinstance(value, str | int):
            lines.append(f"{indent}{key}: {json.dumps(value)}")
        else:
            lines += [f"{indent}{key}:", *_commented(value, f"{indent}  ")]
    return lines


def demand_small(what: str, texts: Any) -> None:
    if (size := sum(len(text.encode()) for text in texts)) > MOST_CONFIG:
        raise SettingsError(
            f"{what} has {size:,} bytes, and a ConfigMap takes {MOST_CONFIG:,}; use more --groups or shorter settings"
        )


def write_chart(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files into a new or empty folder; raise SettingsError if it has files, which may have been edited."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"--out is {folder}, which is not empty; name a new folder, or remove this one")
    for name, text in files.items():
        write_file(folder / name, text.encode(), durable=False)
