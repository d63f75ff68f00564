"""What files this process has open."""

import contextlib
from pathlib import Path


def open_files(folder: Path = Path()) -> list[str]:
    """What each is called, where that is still known. Without a folder, also those that other tests have left, and a
    thread or a collection of garbage closes in between.
    """
    handles = list(Path("/proc/self/fd").iterdir())  # that of the folder itself is closed again by now
    named = []
    for each in handles:
        with contextlib.suppress(FileNotFoundError):  # only to read its name tells that it is still open
            named.append(str(each.readlink()))
    return [name for name in named if folder == Path() or name.startswith(f"{folder}/")]
