"""Read the lines that were added to a rounds.jsonl since the last call, without reading older lines again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from protofleet.coordinator.observe.rounds_file import whole_record

MOST_BYTES: Final = 1 << 22  # Largest number of bytes of one read. The file of a long run can be large.


class RoundsTail:
    """The reader of a rounds.jsonl, which remembers its position in the file.

    When a coordinator restarts, it may replace the file by a new file that has the same rounds and further rounds.
    """

    def __init__(self, path: Path, next_round: int) -> None:
        self._path, self._next, self._place = path, next_round, (0, 0)

    def more(self) -> list[dict[str, Any]]:
        """Return the new lines in order, each line only once.

        If there are no new lines, the list is empty.
        """
        while True:
            lines = self._lines()
            found = []
            for line in lines:
                record = whole_record(line)
                if record is not None and record["round"] >= self._next:
                    self._next = record["round"] + 1
                    found.append(record)
            if found or not lines:
                return found

    def _lines(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                status = self._path.stat()
                inode, offset = self._place
                if status.st_ino != inode or status.st_size < offset:
                    offset = 0
                file.seek(offset)
                text = file.read(MOST_BYTES)
                while len(text) >= MOST_BYTES and b"\n" not in text and (rest := file.read(MOST_BYTES)):
                    text += rest
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._place = (status.st_ino, offset + len(whole))
        return whole.splitlines()
