"""Where the domains of a federation come from, if not all from one source: the [domains] table."""

from __future__ import annotations

from dataclasses import dataclass, replace

from protofleet.edge_client.data.catalog import domains
from protofleet.edge_client.data.settings import DataSettings, Fraction, Samples

ONE_SOURCE = DataSettings()


@dataclass(frozen=True)
class Origin:
    """A domain under its own name in a source. What is left out is as [data] has it."""

    source: str
    root: str = ""  # "": the source's own folder
    fraction: Fraction | None = None
    samples: Samples | None = None

    def data(self, domain: str, common: DataSettings) -> DataSettings:
        """The settings of a device that has this domain to itself."""
        known = domains(self.source)
        if known and domain not in (self.source, *known):
            raise ValueError(f"{self.source} has no domain {domain!r}; it has {', '.join(known)}")
        return replace(
            common, source=self.source, root=self.root, domain=domain,
            fraction=common.fraction if self.fraction is None else self.fraction,
            samples=common.samples if self.samples is None else self.samples,
        )  # fmt: skip


def placed(origins: dict[str, Origin], common: DataSettings) -> dict[str, DataSettings]:
    """Domain -> its data. ValueError names the line that is wrong."""
    for key in ("source", "root", "domain"):
        if getattr(common, key) != getattr(ONE_SOURCE, key):
            raise ValueError(
                f"data.{key} is {getattr(common, key)!r}, but [domains] says where each domain comes from; "
                "leave one of them out"
            )
    found = {}
    for domain, origin in origins.items():
        try:
            found[domain] = origin.data(domain, common)
        except ValueError as error:
            raise ValueError(f"domains.{domain}: {error}") from None
    return found
