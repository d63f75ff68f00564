"""The file name of a model's card, for code that only checks whether there is a card.

Reading a card needs torch, but this module does not import torch.
"""

from __future__ import annotations

from typing import Final

CARD: Final = "card.json"
