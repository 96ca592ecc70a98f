# SPDX-License-Identifier: BSD-3-Clause
"""The FusionDefinition of the alias packages."""

from __future__ import annotations

from typing import Any

from ..definition import FusionDefinition as _FusionDefinition
from ..fusion_cache import FusionCache
from .script_values import print_as_script


class ClassStyleDefinition(_FusionDefinition):
    """A definition as the package ``nvfuser`` has it: of limited length, counted by FusionCache."""

    _api_name = "nvfuser"

    def __init__(self, id: int | None = None, max_length: int = 1024, **settings: Any) -> None:
        """Begin an empty definition of at most ``max_length`` records."""
        super().__init__(id, max_length, **settings)
        FusionCache.get()

    def _open(self) -> None:
        super()._open()
        if self._fusion is not None:
            print_as_script(self._fusion)


class DirectStyleDefinition(_FusionDefinition):
    """A definition as the package ``nvfuser_direct`` has it."""

    _api_name = "nvfuser_direct"


for _cls in (ClassStyleDefinition, DirectStyleDefinition):
    _cls.__name__ = _cls.__qualname__ = "FusionDefinition"
