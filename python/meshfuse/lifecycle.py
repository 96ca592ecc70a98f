# SPDX-License-Identifier: BSD-3-Clause
"""Where a definition stands: not begun, open, or closed; and its Fusion."""

from __future__ import annotations

from enum import Enum

from ._C import DataType, Fusion, FusionGuard
from .exceptions import Error


class Phase(Enum):
    """Stage of a definition."""

    UNDEFINED = "not begun"
    OPEN = "open"
    CLOSED = "closed"


class Lifecycle:
    """State shared by a definition, its ``ops`` and its ``sched``, which so need no cycle."""

    __slots__ = (
        "_guard",
        "_records",
        "fusion",
        "in_hook",
        "limit",
        "phase",
        "reduce_dtype",
        "strict",
        "uneven",
    )

    def __init__(
        self,
        limit: int | None,
        *,
        strict: bool = False,
        uneven: bool = False,
        reduce_dtype: DataType | None = None,
    ) -> None:
        """Begin undefined; ``limit`` is the greatest number of records, None for any."""
        self.fusion: Fusion | None = None
        self.phase = Phase.UNDEFINED
        self.in_hook = False  # inside definition() of a class
        self.limit = limit
        self.strict = strict  # implicit communication is an error
        self.uneven = uneven
        self.reduce_dtype = reduce_dtype
        self._guard: FusionGuard | None = None
        self._records = 0

    def open(self) -> None:
        """Make a Fusion and make it the active one of this thread."""
        if self.phase is not Phase.UNDEFINED:
            raise Error(
                "Fusion Schedule is already found! This definition was entered before. "
                "Make a new FusionDefinition."
            )
        self.fusion = Fusion()
        self.fusion.strict = self.strict
        self.fusion.uneven = self.uneven
        if self.reduce_dtype is not None:
            self.fusion.reduce_dtype = self.reduce_dtype
        self._guard = FusionGuard(self.fusion)
        self.phase = Phase.OPEN

    def close(self) -> None:
        """End the definition; the Fusion stays."""
        self._release()
        self.phase = Phase.CLOSED

    def discard(self) -> None:
        """Forget a definition that failed."""
        self._release()
        self.fusion = None
        self.phase = Phase.UNDEFINED
        self._records = 0

    def adopt(self, fusion: Fusion) -> None:
        """Take a finished Fusion."""
        self.fusion = fusion
        self.phase = Phase.CLOSED

    def for_op(self, name: str) -> Fusion:
        """Return the Fusion that an op is added to."""
        if self.phase is Phase.CLOSED:
            raise Error(
                f"{name}: Attempting to add to a completed definition. Call ops inside the `with` "
                "block or the definition() method."
            )
        return self.for_definition(f"The op {name}")

    def for_definition(self, name: str) -> Fusion:
        """Return the Fusion that an input or output is added to."""
        if self.phase is not Phase.OPEN or self.fusion is None:
            raise Error(
                f"{name} must be called from an initialized definition. Call it inside "
                "`with FusionDefinition() as fd:` or inside definition()."
            )
        self._records += 1
        if self.limit is not None and self._records > self.limit:
            raise Error(
                f"{name}: the definition has more than {self.limit} records, the limit given as "
                "max_length. Raise max_length, or split the definition."
            )
        return self.fusion

    def _release(self) -> None:
        if self._guard is not None:
            self._guard.release()
            self._guard = None


def check_flag(caller: str, name: str, value: object) -> None:
    """Raise TypeError unless an option that is on or off is a bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{caller}: {name} is {value!r}. Give True or False.")
