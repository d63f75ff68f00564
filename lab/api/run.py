"""Implement `protofleet.run`: run an experiment from a script or a notebook.

The function does the same as the command `protofleet run`, but it prints no messages, except for the
address of a live page, and sets no signal handlers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from protofleet.federation.brokers.ports import free_port
from protofleet.lab.api.display import ProgressChoice, display_for
from protofleet.lab.api.errors import public_errors
from protofleet.lab.api.experiments import experiment_from
from protofleet.lab.api.results import Result
from protofleet.lab.local.class_check import agreed_names
from protofleet.lab.local.data_check import require_data, require_public_images
from protofleet.lab.local.run import ready, run_experiment
from protofleet.lab.local.tasks_left import keep_tasks_away
from protofleet.lab.trackers.destinations import destinations
from protofleet.lab.trackers.following import tracking

log = logging.getLogger("protofleet")


def run(
    experiment: str | Path | Mapping[str, Any],
    *,
    runs: str | Path = "runs",
    seed: int | None = None,
    fresh: bool = False,
    progress: ProgressChoice = "auto",
    track: Sequence[str] = (),
    page: bool = False,
) -> Result:
    """Run a whole federation on this machine until the run is finished.

    `experiment` is a TOML file, or a mapping with the content of such a file. The key `base` in a mapping
    names a TOML file; the mapping's other keys replace settings of that file. If `seed` is given, the name of
    the run is <name>-s<seed>.

    An unfinished run with the same settings is continued, unless `fresh` is set. If a finished run has this
    name, its folder is renamed first.

    `progress` is "auto" (a line in a notebook, a display at a terminal), "off", or a function that is called
    with the record of each round. `track` lists trackers: "tensorboard", "mlflow", "mlflow=URI" ...

    With `page`, a live page of the run is served on a free port of this machine. A notebook shows a link to it;
    elsewhere its address is printed on standard error.

    The message of a SettingsError, RunError or DivergedError is one line that describes what is wrong and
    what to do.
    """
    folder = Path(runs).absolute()
    with public_errors():
        trackers = destinations([track] if isinstance(track, str) else track)
        settings = experiment_from(experiment, seed)
        if page and not settings.page_port:
            settings = replace(settings, page_port=free_port())
        agreed_names(settings)
        require_data([settings])
        require_public_images(settings)
        display = display_for(progress, settings.rounds, settings.reports)
        say = partial(log.info, "%s")
        keep_tasks_away(folder / settings.name, say)
        begun = ready(settings, folder, fresh, say=say)
        with begun, tracking(trackers, folder / settings.name, say=lambda words: log.warning("%s", words)):
            run_experiment(settings, folder, display=display)
    return Result(folder / settings.name)
