"""Name the message forms that version 1.0 did not have.

Each side lists the forms that it understands. A device lists them in the field `can` of its hello, and the
coordinator lists them in the field `about.can` of its welcome. A form is used only in messages to a party that
has listed the form.
"""

from __future__ import annotations

from typing import Final

ANSWERS: Final = "answers"  # a refusal contains the boot and the sequence number of the refused hello
BYE: Final = "bye"  # a device sends a bye when it learns that its run is over
CODEC: Final = "codec"  # updates may be coded, and a task names the last used update of the device
CONFUSION: Final = "confusion"  # the update of the last evaluation may contain the confusion matrix
# A welcome says whether the method needs the number of examples per class. Only a client that does not contain
# the code of the methods needs this information.
COUNTS: Final = "counts"
# If an update has only one block and the task allows it, the device may send the block without a request.
CREDIT: Final = "credit"
INLINE: Final = "inline"  # a broadcast of one block is sent without a request
MANIFEST: Final = "manifest"  # a manifest may itself be sent as an object
MANY: Final = "many"  # one request may ask for blocks of several objects
NAMES: Final = "names"  # class names are sent and compared
# A task may be one of the short phases of a sum of masked vectors, and may have bytes for one device only.
SECAGG: Final = "secagg"
RUNS: Final = "runs"  # a device takes part in several runs at the same time
# A task says which arrays an update must have. Only a client that does not contain the code of the methods needs
# this information.
WANTS: Final = "wants"

COORDINATOR_FORMS: Final = (
    ANSWERS,
    BYE,
    CODEC,
    CONFUSION,
    COUNTS,
    CREDIT,
    INLINE,
    MANIFEST,
    MANY,
    NAMES,
    SECAGG,
    WANTS,
)
DEVICE_FORMS: Final = (ANSWERS, BYE, CODEC, CREDIT, INLINE, MANY, MANIFEST, NAMES, SECAGG)
