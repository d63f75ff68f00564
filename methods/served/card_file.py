"""The name of a model's card, for all who look whether there is one: to read it takes torch."""

from __future__ import annotations

from typing import Final

CARD: Final = "card.json"
