"""What the devices do and draw: utilisation, power, energy and carbon.

Input: the sensors of rank 0's device every `--log-every` steps, by NVML or amdsmi behind torch.cuda; `--watts`, `--pue`
and `--carbon`. Output: fields of metrics.jsonl and goodput.jsonl, and a line when an hour was busy too little or too
much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from train.config import TrainConfig

BUSY = (70.0, 90.0)
"""Per cent of the time in which a device should be busy."""
HOUR = 3600.0
NOTHING: dict[str, float | None] = {"utilisation": None, "watts": None, "memory_used": None}


def tonnes(mwh: float | None, pue: float | None, carbon: float | None) -> float | None:
    """Return t CO2e of energy at the devices (OLMo, arXiv 2402.00838, section 4); None if a factor is unknown.

    mwh: MWh without cooling and losses. pue: power usage effectiveness of the site. carbon: kg CO2e per kWh.
    """
    return None if mwh is None or pue is None or carbon is None else mwh * pue * carbon


def energy(mwh: float | None, config: TrainConfig) -> dict[str, float | None]:
    """Return energy and emissions as the fields of goodput.jsonl and of a plan."""
    return {
        "mwh": mwh,
        "pue": config.pue,
        "carbon": config.carbon,
        "tco2e": tonnes(mwh, config.pue, config.carbon),
    }


def energy_text(lines: Sequence[dict[str, Any]]) -> str:
    """Return the energy of all starts as text, '' if none is known. Lines without a value count as unknown."""
    known = [line for line in lines if line.get("mwh") is not None]
    if not known:
        return ""
    text = f"energy: {sum(line['mwh'] for line in known):.4g} MWh"
    if len(known) < len(lines):
        text += f" in {len(known)} of {len(lines)} attempts"
    if any(line["tco2e"] is None for line in known):
        return f"{text}; give --pue and --carbon for the emissions"
    last, emitted = known[-1], sum(line["tco2e"] for line in known)
    return f"{text}, PUE {last['pue']:g}, {last['carbon']:g} kg CO2e/kWh: {emitted:.4g} t CO2e"


def sensors() -> dict[str, float | None]:
    """Read this process's GPU: per cent of the time it was busy of late, watts, and per cent of memory in use.

    Raises an error of a class of NVML's or amdsmi's own if there is no library, no right or no sensor. amdsmi measures
    a socket, which in an MI250X holds two devices.
    """
    power = torch.cuda.power_draw()  # milliwatts by NVML, watts by amdsmi; 0: not known
    free, size = torch.cuda.mem_get_info()
    return {
        "utilisation": float(torch.cuda.utilization()),
        "watts": power / (1000 if torch.version.hip is None else 1) if power else None,
        "memory_used": 100 * (1 - free / size),
    }


class Monitor:
    """Reads a device, sums its energy and judges each hour. read: None without a device; says once if it fails."""

    def __init__(
        self,
        config: TrainConfig,
        ranks: int,
        read: Callable[[], dict[str, float | None]] | None,
        report: Callable[[str], None],
    ) -> None:
        self._config, self._ranks, self._read, self._report = config, ranks, read, report
        self._joules = self._measured = 0.0
        self._hour = self._busy = self._waited = self._memory = 0.0

    def look(self, seconds: float, waited: float) -> dict[str, float | None]:
        """Return what the sensors say of the last `seconds`, of which `waited` passed waiting for data."""
        if self._read is None:
            return NOTHING
        try:
            seen = self._read()
        except Exception as error:  # each library has classes of its own
            self._report(f"no utilisation or power of the device: {type(error).__name__}: {error}")
            self._read = None
            return NOTHING
        if (watts := seen["watts"]) is not None:
            self._joules += watts * seconds
            self._measured += seconds
        if (busy := seen["utilisation"]) is not None:
            self._hour += seconds
            self._busy += busy * seconds
            self._waited += waited
            self._memory += (seen["memory_used"] or 0.0) * seconds
            if self._hour >= HOUR:
                self._judge()
        return seen

    def _judge(self) -> None:
        busy, memory, waited = self._busy / self._hour, self._memory / self._hour, self._waited / self._hour
        if busy > BUSY[1]:
            cause = "collectives that wait count as busy, so compare MFU; a device without reserve is near its limits"
        elif waited > 0.05:
            cause = (
                f"{waited:.0%} of the time passed waiting for data: raise --workers, or use faster storage"
            )
        elif memory < 50:
            cause = f"a small micro-batch ({memory:.0f}% of the memory is used): raise --micro-batch"
        else:
            cause = "collectives: shard over fewer ranks, or lower --tensor and --pipeline"
        if not BUSY[0] <= busy <= BUSY[1]:
            low, high = BUSY
            self._report(
                f"utilisation was {busy:.0f}% in the last hour, not {low:.0f} to {high:.0f}%; likely: {cause}"
            )
        self._hour = self._busy = self._waited = self._memory = 0.0

    def energy(self, seconds: float) -> dict[str, float | None]:
        """Return the energy of all ranks in a start that has taken `seconds`.

        Rank 0's device stands for all, and the mean of what was measured, or else --watts, for the time without a
        measurement.
        """
        watts = self._joules / self._measured if self._measured else self._config.watts
        joules = None if watts is None else self._joules + watts * max(0.0, seconds - self._measured)
        return energy(None if joules is None else self._ranks * joules / 3.6e9, self._config)
