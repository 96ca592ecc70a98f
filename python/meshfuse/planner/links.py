# SPDX-License-Identifier: BSD-3-Clause
"""What the cost model knows of a machine: links between devices, and the devices themselves."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .._C import Error
from ..json_facts import flag, map_of, number, object_of, one_of, or_null, text, whole
from ..limits import MAX_DEVICES
from .collectives import KINDS, algorithms

__all__ = ["PRESETS", "Device", "Link", "Links", "Rate", "current_links", "saved_path"]

_LONGEST_START_US = 1000
#: No link, memory or device is as quick: beyond it is what the fit makes of times that do not grow.
_MOST_GB_PER_S, _MOST_GFLOPS = 1e5, 1e7


@dataclass(frozen=True)
class Rate:
    """Cost of messages: ``alpha_us`` for each, and their bytes at ``gb_per_s`` (1e9 bytes)."""

    alpha_us: float
    gb_per_s: float

    def time_us(self, messages: int, volume: float) -> float:
        """Return the microseconds of messages one behind another with these bytes in all."""
        return messages * self.alpha_us + volume / (self.gb_per_s * 1e3)


@dataclass(frozen=True)
class Link:
    """A kind of connection between two devices.

    Attributes:
        name: Such as ``"nvlink"``.
        rate: Of a message.
        kinds: Rates of single kinds of communication where they were measured; they hold for the
            formulas of ``collectives``, so that they are those of other team sizes, too.
        source: Where the figures are from.
    """

    name: str
    rate: Rate
    kinds: Mapping[str, Rate] = field(default_factory=dict)
    source: str = ""

    def _rates(self) -> dict[str, Rate]:
        """Return all rates by kind of communication, that of a message first."""
        return {"message": self.rate, **self.kinds}

    def time_us(self, kind: str, team: int, buffer: float) -> float:
        """Return the modelled microseconds of a communication; 0 in a team of one device."""
        rate = self.kinds.get(kind, self.rate)
        ways = algorithms(kind, team, buffer)
        return min((rate.time_us(way.messages, way.volume) for way in ways), default=0.0)


@dataclass(frozen=True)
class Device:
    """What one device computes.

    Attributes:
        name: Such as ``"cpu core"``.
        gflops: 1e9 multiplications and additions in a second, by type of the operands
            (``"f32"``); ``"other"`` for the rest.
        memory_gb_per_s: Bytes read or written in a second, 1e9.
        step_us: Microseconds that the start of an operation takes.
        function_ns: Nanoseconds of one element of exp, tanh and their kind.
        cache_bytes: So many bytes of what an operation reads and writes are in a cache.
        cache_gb_per_s: Bytes of them in a second, 1e9.
        half_size: Smallest of the three sizes of a product for which it reaches half of ``gflops``
            (the half-performance length of R. Hockney and C. Jesshope, "Parallel Computers").
        source: Where the figures are from.
    """

    name: str
    gflops: Mapping[str, float]
    memory_gb_per_s: float
    step_us: float
    function_ns: float
    cache_bytes: float = 0.0
    cache_gb_per_s: float = 1.0
    half_size: float = 0.0
    source: str = ""

    def traffic_us(self, traffic: float) -> float:
        """Return the microseconds of reading and writing this many bytes."""
        cached = min(traffic, self.cache_bytes)
        beyond = (traffic - cached) / (self.memory_gb_per_s * 1e3)
        return beyond + cached / (self.cache_gb_per_s * 1e3)

    def flops_us(self, flops: float, dtype: str, smallest: int = 0) -> float:
        """Return the microseconds of this many multiplications and additions.

        Args:
            flops: Their number.
            dtype: Type of the operands.
            smallest: Of the sizes of a product; 0 where it does not matter.
        """
        rate = self.gflops.get(dtype, self.gflops.get("other", 1.0))
        full = flops / (rate * 1e3)
        return full * (1 + self.half_size / smallest) if smallest else full


@dataclass(frozen=True)
class Links:
    """Costs of a machine, for ``plan_costs``, ``fd.explain`` and ``autoshard``.

    Attributes:
        inner: Link between devices of one host.
        device: The devices.
        outer: Link between devices of different hosts.
        devices_per_host: How many consecutive numbers of devices one host has; None: all.
        measured: Whether ``measure_links`` found the figures: those are not saved where they cannot
            be right.

    Example:
        >>> from meshfuse.planner import Links
        >>> links = Links.preset("nvlink")
        >>> links.inner.time_us("all-reduce", 8, 1e9) > links.inner.time_us("all-reduce", 8, 1e6)
        True
    """

    inner: Link
    device: Device
    outer: Link | None = None
    devices_per_host: int | None = None
    measured: bool = False

    def _all_links(self) -> list[Link]:
        """Return the inner link, and the outer one if there is one."""
        return [self.inner] if self.outer is None else [self.inner, self.outer]

    def doubt(self) -> str:
        """Return why measured figures cannot be the links' own, or "" where they can be.

        Ranks that share a busy machine wait for their turn, which takes milliseconds and does not
        grow with the bytes.
        """
        for link in self._all_links():
            for kind, rate in link._rates().items():
                if rate.alpha_us > _LONGEST_START_US:
                    return (
                        f"to begin the {kind} of {link.name} takes {rate.alpha_us:.0f} us, more "
                        f"than {_LONGEST_START_US} us"
                    )
                if rate.gb_per_s > _MOST_GB_PER_S:
                    return (
                        f"the {kind} of {link.name} sends {rate.gb_per_s:.0f} GB/s, more than "
                        f"{_MOST_GB_PER_S:.0f}"
                    )
        device = self.device
        for kind in ("memory_gb_per_s", "cache_gb_per_s"):
            if getattr(device, kind) > _MOST_GB_PER_S:
                return (
                    f"{kind} of {device.name} is {getattr(device, kind):.0f}, more than "
                    f"{_MOST_GB_PER_S:.0f}"
                )
        for dtype, gflops in device.gflops.items():
            if gflops > _MOST_GFLOPS:
                return (
                    f"{device.name} computes {gflops:.0f} GFLOP/s of {dtype}, more than "
                    f"{_MOST_GFLOPS:.0f}"
                )
        return ""

    def link_of(self, team: list[int]) -> Link:
        """Return the link that a team uses: the outer one if its devices are on several hosts."""
        if self.outer is None or self.devices_per_host is None:
            return self.inner
        hosts = {device // self.devices_per_host for device in team}
        return self.inner if len(hosts) == 1 else self.outer

    @staticmethod
    def preset(name: str) -> Links:
        """Return published figures: ``"shared-memory"``, ``"sockets"``, ``"nvlink"``, ...

        Raises:
            meshfuse.Error: there are none of that name.
        """
        if not isinstance(name, str) or name not in PRESETS:
            raise Error(f"Links: no figures are known for {name!r}. Use one of {list(PRESETS)}.")
        return PRESETS[name]

    def to_dict(self) -> dict[str, Any]:
        """Return the figures ready for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(facts: Mapping[str, Any]) -> Links:
        """Return the figures that ``to_dict`` gave.

        Raises:
            meshfuse.Error: something is missing, or is no number that it can be.
        """
        _check(facts)
        outer = facts.get("outer")
        return Links(
            _link(facts["inner"]),
            Device(**{name: value for name, value in facts["device"].items() if name in _DEVICE}),
            None if outer is None else _link(outer),
            facts.get("devices_per_host"),
            facts.get("measured") is True,
        )

    def save(self, path: str | Path | None = None) -> Path:
        """Write the figures to a file, which later estimates use; return its path.

        Args:
            path: The file; None for that of ``MESHFUSE_LINKS``, or ``links.json`` in the user's
                cache folder for meshfuse.

        Raises:
            meshfuse.Error: figures are no numbers that they can be; or they were measured, and
                ``doubt`` says why they cannot be right.
        """
        _check(self.to_dict())
        doubt = self.doubt() if self.measured else ""
        if doubt:
            raise Error(
                f"Links: not saved, as {doubt}. Other programs keep the ranks waiting: measure "
                "again when the machine is idle."
            )
        file = saved_path() if path is None else Path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(json.dumps(self.to_dict(), indent=1) + "\n")
        new.replace(file)  # whoever reads it at this moment has the old one or the new one
        return file

    @staticmethod
    def load(path: str | Path) -> Links:
        """Return the figures of a file.

        Raises:
            meshfuse.Error: it cannot be read, or is not one that ``save`` wrote.
        """
        try:
            facts = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise Error(
                f"Links: cannot read {path}: {error}. Write it by measure_links().save(), or unset "
                "MESHFUSE_LINKS."
            ) from error
        try:
            return Links.from_dict(facts)
        except Error as error:
            raise Error(f"{error} The file is {path}.") from error

    def __str__(self) -> str:
        """Return a table."""
        lines = [f"{'link':14}  {'communication':14}  {'alpha, us':>9}  {'GB/s':>8}"]
        for link in self._all_links():
            lines += [
                f"{link.name:14}  {kind:14}  {rate.alpha_us:9.2f}  {rate.gb_per_s:8.2f}"
                for kind, rate in link._rates().items()
            ]
            lines.append(f"  {link.source}")
        device = self.device
        flops = ", ".join(f"{kind} {rate:.4g}" for kind, rate in device.gflops.items())
        lines.append(f"device {device.name}: GFLOP/s {flops}; memory {device.memory_gb_per_s:.4g}")
        lines.append(
            f"  GB/s, {device.cache_bytes / 1e6:.3g} MB in a cache {device.cache_gb_per_s:.4g} "
            f"GB/s; {device.step_us:.3g} us per operation; {device.function_ns:.3g} ns per exp"
        )
        return "\n".join([*lines, f"  {device.source}"])


def _link(facts: Mapping[str, Any]) -> Link:
    kinds = {kind: _rate(rate) for kind, rate in facts.get("kinds", {}).items()}
    return Link(facts["name"], _rate(facts["rate"]), kinds, facts.get("source", ""))


def _rate(facts: Mapping[str, Any]) -> Rate:
    return Rate(facts["alpha_us"], facts["gb_per_s"])


_TIME, _SPEED = number(zero=True), number(zero=False)
_RATE = object_of(alpha_us=_TIME, gb_per_s=_SPEED)
_LINK = object_of(
    {"kinds": map_of(_RATE, names=one_of(*KINDS)), "source": text}, name=text, rate=_RATE
)
_DEVICE = {
    "name": text,
    "gflops": map_of(_SPEED),
    "memory_gb_per_s": _SPEED,
    "step_us": _TIME,
    "function_ns": _TIME,
    "cache_bytes": _TIME,
    "cache_gb_per_s": _SPEED,
    "half_size": _TIME,
    "source": text,
}
_GIVEN = ("cache_bytes", "cache_gb_per_s", "half_size", "source")  # those that have a default
_FIGURES = object_of(
    {"outer": or_null(_LINK), "devices_per_host": or_null(whole(1, MAX_DEVICES)), "measured": flag},
    inner=_LINK,
    device=object_of(
        {name: check for name, check in _DEVICE.items() if name in _GIVEN},
        **{name: check for name, check in _DEVICE.items() if name not in _GIVEN},
    ),
)


def _check(facts: Any) -> None:
    try:
        _FIGURES(facts, "")
    except ValueError as error:
        raise Error(
            f"Links: in the figures, {error}. Give what to_dict() of Links returned, or measure "
            "again: measure_links().save()."
        ) from None


def saved_path() -> Path:
    """Return the file of the figures: ``MESHFUSE_LINKS``, or one in the user's cache folder."""
    given = os.environ.get("MESHFUSE_LINKS")
    if given:
        return Path(os.path.expanduser(given))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "meshfuse" / "links.json"


def current_links(links: Links | str | None = None) -> Links:
    """Return the figures to use: those given (or their name), the saved ones, or published ones."""
    if isinstance(links, Links):
        _check(links.to_dict())
        return links
    if links is not None:
        return Links.preset(links)
    path = saved_path()
    if os.environ.get("MESHFUSE_LINKS") or path.exists():
        return Links.load(path)
    return PRESETS["shared-memory"]


_CPU = Device(
    "cpu core",
    {"f32": 67.0, "f64": 33.0, "bf16": 67.0, "f16": 33.0, "other": 10.0},
    12.0,
    2.0,
    1.0,
    1 << 20,
    50.0,
    source="published: 2 AVX2 multiply-adds of 8 f32 per cycle (AMD, Intel optimization manuals), "
    "at 3 GHz 96 GFLOP/s, 70 % of that; DDR4-3200 25.6 GB/s per channel (JEDEC), shared by two "
    "cores; 1 MB of second-level cache at 32 bytes per cycle, half of that",
)
_GPU = Device(
    "H100 SXM",
    {"f32": 67e3, "f64": 67e3, "bf16": 989e3, "f16": 989e3, "f8e4m3fn": 1979e3, "other": 34e3},
    3350.0,
    4.0,
    0.001,
    source="published: NVIDIA H100 data sheet (dense), HBM3 3.35 TB/s; start of a kernel by "
    "order of magnitude",
)
_ORDER = "latency by order of magnitude"
_SHARED = Link(
    "shared memory",
    Rate(2.0, 6.0),
    source=f"published: a copy in and one out of a shared segment at 12 GB/s; {_ORDER}",
)
_SOCKETS = Link(
    "sockets", Rate(30.0, 1.25), source=f"published: 10 Gb/s Ethernet, IEEE 802.3ae; {_ORDER}"
)
_PCIE = Link("pcie", Rate(10.0, 31.5), source=f"published: PCI Express 4.0 x16, PCI-SIG; {_ORDER}")
_NVLINK = Link(
    "nvlink",
    Rate(5.0, 450.0),
    source=f"published: NVLink 4, 900 GB/s both ways, NVIDIA H100 data sheet; {_ORDER}",
)
_INFINIBAND = Link(
    "infiniband", Rate(5.0, 50.0), source=f"published: InfiniBand NDR, 400 Gb/s, IBTA; {_ORDER}"
)
#: Published figures by name of the link.
PRESETS = {
    "shared-memory": Links(_SHARED, _CPU),
    "sockets": Links(_SOCKETS, _CPU),
    "pcie": Links(_PCIE, _GPU),
    "nvlink": Links(_NVLINK, _GPU),
    "infiniband": Links(_INFINIBAND, _GPU),
    "nvlink+infiniband": Links(_NVLINK, _GPU, _INFINIBAND, 8),
}
