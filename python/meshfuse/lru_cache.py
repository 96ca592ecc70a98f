# SPDX-License-Identifier: BSD-3-Clause
"""Compiled programs that equal definitions share, the least recently used one dropped first."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ._C import Error, Fusion, FusionExecutorCache
from .definition import FusionDefinition
from .fusion_cache import fusion_key

__all__ = ["LRUCache", "LruFusionCache"]


class LRUCache:
    """Programs by what they compute; equal ones share one FusionExecutorCache.

    Programs are equal when inputs, in the same order, operations, outputs and schedule are.

    Example:
        >>> from meshfuse import FusionDefinition, LRUCache
        >>> cache = LRUCache(max_fusions=10)
        >>> def program():
        ...     with FusionDefinition() as fd:
        ...         fd.add_output(fd.ops.neg(fd.define_tensor([-1])))
        ...     return fd
        >>> cache.cache_compile(program().fusion) is cache.cache_compile(program().fusion)
        True
        >>> cache.stats().splitlines()[-1]
        'Hit Rate: 50%'
    """

    def __init__(self, max_fusions: int) -> None:
        """Begin empty.

        Raises:
            meshfuse.Error: ``max_fusions`` is less than 1.
        """
        if max_fusions < 1:
            raise Error(f"LRUCache: max_fusions is {max_fusions}. Allow at least one fusion.")
        self._max_fusions = max_fusions
        self._compiled: OrderedDict[str, FusionExecutorCache] = OrderedDict()  # oldest first
        self._hits: dict[str, int] = {}
        self._unique = 0
        self._lookups = 0

    def cache_compile(self, fusion: Fusion) -> FusionExecutorCache:
        """Return the executor of a program equal to ``fusion``, perhaps a new one."""
        key = fusion_key(fusion)
        self._lookups += 1
        if key in self._compiled:
            self._hits[key] += 1
            self._compiled.move_to_end(key)
            return self._compiled[key]
        if len(self._compiled) == self._max_fusions:
            oldest, _ = self._compiled.popitem(last=False)
            del self._hits[oldest]
        self._compiled[key] = FusionExecutorCache(fusion, self._unique)
        self._hits[key] = 0
        self._unique += 1
        return self._compiled[key]

    def num_fusions(self) -> int:
        """Return the number of programs that are held."""
        return len(self._compiled)

    def stats(self) -> str:
        """Return the counts as text; hits are those of programs held, the latest used first."""
        lines = [f"Max Fusions Allowed: {self._max_fusions}"]
        if not self._compiled:
            return "\n".join([*lines, "The fusion cache is empty.", ""])
        hits = [self._hits[key] for key in reversed(self._compiled)]
        rate = 100 * sum(hits) / self._lookups
        lines += [
            f"Total Fusions in Cache: {self.num_fusions()}",
            f"Total Unique Fusions Compiled: {self._unique}",
            "Cache Hits by LRU ordering:",
            *(f"\t{i} -> {count} hits" for i, count in enumerate(hits)),
            f"Cache Lookups: {self._lookups}",
            f"Cache Hits: {sum(hits)}",
            f"Hit Rate: {rate:.6g}%",
            "",
        ]
        return "\n".join(lines)


class LruFusionCache:
    """Decorator of a function that returns a definition: equal ones share what was compiled.

    The function that it makes has ``stats()`` and ``num_fusions()``.
    """

    def __init__(self, max_fusions: int = 16384) -> None:
        """Hold at most ``max_fusions`` programs per decorated function."""
        self._max_fusions = max_fusions

    def __call__(self, function: Callable[..., FusionDefinition]) -> Callable[..., Any]:
        """Return ``function`` with its definitions' ``fec`` taken from a cache."""
        cache = LRUCache(self._max_fusions)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> FusionDefinition:
            fd = function(*args, **kwargs)
            if not isinstance(fd, FusionDefinition) or fd.fusion is None:
                raise Error(
                    f"LruFusionCache: {function.__name__} returned {type(fd).__name__}, not a "
                    "FusionDefinition that is defined. Return the definition after its block."
                )
            fd.fec = cache.cache_compile(fd.fusion)
            return fd

        wrapper.stats = cache.stats  # type: ignore[attr-defined]
        wrapper.num_fusions = cache.num_fusions  # type: ignore[attr-defined]
        return wrapper
