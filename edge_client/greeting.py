"""What a device says of itself whenever it is ready for work, and what it may be told in return."""

from __future__ import annotations

from edge_client.evaluate import Splits
from edge_client.state import Book
from methods.plan import Plan, read_plan
from protocol.messages import Hello
from protocol.settings import SettingsError


def hello_of(name: str, software: str, data: Splits, plan: Plan | None, book: Book) -> Hello:
    """Counts of classes only where the plan's method needs them."""
    counts: tuple[int, ...] = ()
    if plan and plan.load().needs_counts:
        counts = tuple(data.train.y.bincount(minlength=data.classes).tolist())
    return Hello(
        device=name,
        classes=data.classes,
        examples=len(data.train.y),
        domain=data.domain,
        software=software,
        plan=plan.digest if plan else b"",
        counts=counts,
        holds=(bytes.fromhex(book.broadcast),) if book.broadcast else (),
    )


def plan_for(data: Splits, text: bytes) -> Plan:
    """SettingsError where the plan is none, or not for these data."""
    plan = read_plan(text)
    if plan.classes != data.classes:
        raise SettingsError(f"the run has {plan.classes} classes, this device's data {data.classes}")
    return plan
