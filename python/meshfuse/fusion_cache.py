# SPDX-License-Identifier: BSD-3-Clause
"""FusionCache: how often definitions of this process were equal to earlier ones."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import ClassVar

from ._C import Error, Fusion

__all__ = [
    "FusionCache",
    "disable_automatic_serialization",
    "enable_automatic_serialization",
    "fusion_key",
    "serialize",
]

_FORMAT = "meshfuse definitions 1"


def fusion_key(fusion: Fusion) -> str:
    """Return a text that is the same for equal programs, names of tensors aside."""
    settings = f"{fusion.strict} {fusion.uneven} {fusion.reduce_dtype.name}"
    return f"{settings}\n{fusion.ir()}"


class FusionCache:
    """Counts equal definitions, from the first call of ``get()`` on.

    Two definitions are equal when they have the same inputs, operations, outputs and, as far as it
    was made before the definition was closed, schedule. Each kind has a number, from 0.

    Example:
        >>> from meshfuse import FusionCache, FusionDefinition
        >>> cache = FusionCache.get()
        >>> before = cache.num_fusions()
        >>> for _ in range(2):
        ...     with FusionDefinition() as fd:
        ...         fd.add_output(fd.ops.exp(fd.define_tensor([3, 1, 4, 1, 5])))
        >>> cache.num_fusions() - before
        1
        >>> FusionCache.reset()
    """

    _instance: ClassVar[FusionCache | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, max_fusions: int) -> None:
        """Begin empty; programs call ``get()`` instead."""
        self._max_fusions = max_fusions
        self._numbers: dict[str, int] = {}
        self._hits: list[int] = []
        self._lookups = 0

    @staticmethod
    def get(
        max_fusions: int = 16384,
        selected_device: int | None = None,
        load_from_default_workspace: bool = True,
    ) -> FusionCache:
        """Return the cache of this process; the first call makes it.

        Args:
            max_fusions: Greatest number of different definitions; of effect in the first call.
            selected_device: Accepted; makes no difference.
            load_from_default_workspace: Accepted; makes no difference.
        """
        with FusionCache._lock:
            if FusionCache._instance is None:
                FusionCache._instance = FusionCache(max_fusions)
            return FusionCache._instance

    @staticmethod
    def reset() -> None:
        """Forget all definitions and counts."""
        with FusionCache._lock:
            cache = FusionCache._instance
            if cache is not None:
                cache._numbers, cache._hits, cache._lookups = {}, [], 0

    @staticmethod
    def note(fusion: Fusion) -> int | None:
        """Count a definition; return its number, or None where no program asked for the cache.

        Raises:
            meshfuse.Error: there are more different definitions than the cache may hold.
        """
        if FusionCache._instance is None:
            return None
        key = fusion_key(fusion)
        with FusionCache._lock:
            return FusionCache._instance._count(key)

    def num_fusions(self) -> int:
        """Return the number of different definitions."""
        return len(self._numbers)

    def stats(self) -> str:
        """Return the counts as text."""
        lines = [f"Total Fusions: {self.num_fusions()}"]
        if self._lookups:
            lines.append("Cache Hits by Fusion Id:")
            lines += [f"\t{number} -> {hits} hits" for number, hits in enumerate(self._hits)]
            hits = sum(self._hits)
            rate = 100 * hits / self._lookups
            lines.append(f"Cache Lookups: {self._lookups} Cache Hits: {hits} Hit Rate: {rate:.4g}%")
        return "\n".join(lines) + "\n"

    def __repr__(self) -> str:
        """Return the same as ``stats()``."""
        return self.stats()

    def serialize(self, filename: str | Path) -> None:
        """Write the definitions and counts to a file."""
        kinds = [{"definition": key, "hits": self._hits[n]} for key, n in self._numbers.items()]
        content = {"format": _FORMAT, "lookups": self._lookups, "fusions": kinds}
        Path(filename).write_text(json.dumps(content))

    def deserialize(self, filename: str | Path) -> None:
        """Replace definitions and counts by those of a file that ``serialize`` wrote.

        Raises:
            meshfuse.Error: the file holds something else.
        """
        try:
            content = json.loads(Path(filename).read_text())
            if content["format"] != _FORMAT:
                raise ValueError(content["format"])
            kinds = [(str(f["definition"]), int(f["hits"])) for f in content["fusions"]]
            lookups = int(content["lookups"])
        except (ValueError, KeyError, TypeError) as error:
            raise Error(
                f"deserialize: {filename} was not written by FusionCache.serialize of this "
                "version. Write it anew."
            ) from error
        self._numbers = {key: number for number, (key, _) in enumerate(kinds)}
        self._hits = [hits for _, hits in kinds]
        self._lookups = lookups

    def _count(self, key: str) -> int:
        number = self._numbers.get(key)
        if number is None:
            if len(self._numbers) >= self._max_fusions:
                raise Error(
                    f"FusionCache: there are more than {self._max_fusions} different definitions, "
                    "the limit given as max_fusions. Call FusionCache.reset(), or make programs "
                    "with symbolic sizes so that one serves many inputs."
                )
            number = self._numbers[key] = len(self._numbers)
            self._hits.append(0)
        else:
            self._hits[number] += 1
        self._lookups += 1
        return number


def enable_automatic_serialization() -> None:
    """Do nothing: definitions are made in less time than reading them would take."""


def disable_automatic_serialization() -> None:
    """Do nothing; see ``enable_automatic_serialization``."""


def serialize() -> None:
    """Write nothing; see ``FusionCache.serialize`` for a file of definitions."""
