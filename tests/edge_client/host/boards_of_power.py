"""Write the kernel files of a board's power and temperature sensors, with the values that a test chooses."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, **files: object) -> Path:
    """Write one file for each keyword, where `a__b=1` is the file a/b, and return the root."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def ina(root: Path, number: int, rails: dict[str, float]) -> Path:
    """Write the files of a chip that measures the given watts on each rail, at 5 V, and return the root."""
    chip = root / f"sys/class/hwmon/hwmon{number}"
    write(chip, name="ina3221")
    for i, (rail, watts) in enumerate(rails.items(), 1):
        write(chip, **{f"in{i}_label": rail, f"in{i}_input": 5000, f"curr{i}_input": round(watts * 200)})
    return root


def rapl(root: Path, zone: str, name: str, microjoules: int, most: int = 1_000_000_000) -> Path:
    folder = root / "sys/class/powercap" / zone
    write(folder, name=name, energy_uj=microjoules, max_energy_range_uj=most)
    return folder


def zone(root: Path, number: int, celsius: float) -> Path:
    """Write the files of a thermal zone, and return the root."""
    write(root / f"sys/class/thermal/thermal_zone{number}", type=f"zone-{number}", temp=round(celsius * 1000))
    return root
