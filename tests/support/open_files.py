"""What files this process has open."""

from pathlib import Path


def open_files(folder: Path = Path()) -> list[str]:
    """What each is called, where that is still known. Without a folder, also those that other tests have left, and a
    thread or a collection of garbage closes in between.
    """
    handles = list(Path("/proc/self/fd").iterdir())  # that of the folder itself is closed again by now
    named = [str(each.readlink()) for each in handles if each.is_symlink()]
    return [name for name in named if folder == Path() or name.startswith(f"{folder}/")]
