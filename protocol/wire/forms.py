"""Forms of messages that version 1.0 had not, by the names under which each side says that it understands them.

A hello says them in `can`, a welcome in `about.can`; a form is used towards whoever has said it, and nobody else.
"""

from __future__ import annotations

from typing import Final

ANSWERS: Final = "answers"  # a refusal tells which hello it answers
BYE: Final = "bye"  # whoever has heard that its run is over says so
COUNTS: Final = "counts"  # whoever knows no method is told whether this one needs its examples per class
INLINE: Final = "inline"  # a broadcast of one block comes without being asked for
MANIFEST: Final = "manifest"  # a manifest may be an object itself
MANY: Final = "many"  # a request for blocks may name several objects
NAMES: Final = "names"  # class names are said and compared
WANTS: Final = "wants"  # whoever knows no method is told what an answer must hold

COORDINATOR_FORMS: Final = (ANSWERS, BYE, COUNTS, INLINE, MANIFEST, MANY, NAMES, WANTS)
DEVICE_FORMS: Final = (ANSWERS, BYE, INLINE, MANY, MANIFEST, NAMES)
