"""Name the forms of messages that version 1.0 did not have.

Each side uses these names to say which forms it understands: a hello in `can`, a welcome in `about.can`. A
form is used only towards a party that has named it.
"""

from __future__ import annotations

from typing import Final

ANSWERS: Final = "answers"  # a refusal names the hello that it answers
BYE: Final = "bye"  # a device that has been told that its run is over sends a bye
CONFUSION: Final = "confusion"  # the answer to the last evaluation may hold how often classes were confused
COUNTS: Final = "counts"  # a client without methods is told whether this one needs examples per class
CREDIT: Final = "credit"  # an answer of one block may be sent with its block, if the task allows it
INLINE: Final = "inline"  # a broadcast of one block is sent without a request
MANIFEST: Final = "manifest"  # a manifest may be an object itself
MANY: Final = "many"  # a request for blocks may name several objects
NAMES: Final = "names"  # class names are sent and compared
WANTS: Final = "wants"  # a client without methods is told which arrays an answer must have

COORDINATOR_FORMS: Final = (ANSWERS, BYE, CONFUSION, COUNTS, CREDIT, INLINE, MANIFEST, MANY, NAMES, WANTS)
DEVICE_FORMS: Final = (ANSWERS, BYE, CREDIT, INLINE, MANY, MANIFEST, NAMES)
