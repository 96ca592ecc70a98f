# SPDX-License-Identifier: BSD-3-Clause
"""The cost and the suggestions of ``fd.explain()``."""

from __future__ import annotations

from collections.abc import Mapping

from .._C import Error, Fusion
from ..program_text import parse
from ..progress import busy
from .links import current_links
from .local_program import ProgramReader
from .open_sizes import KnownSize, known_sizes, not_strict
from .plan_cost import PlanCost, compiled_text, cost_of
from .suggest import Suggestion, suggestions

__all__ = ["cost_and_suggestions"]


def cost_and_suggestions(
    fusion: Fusion, known: list[KnownSize], lines: Mapping[str, str], suggest: bool
) -> tuple[PlanCost | None, list[Suggestion] | None, str | None]:
    """Return the cost of a program, what would lower it if that is asked for, and a note.

    The cost is None where it cannot be known; suggestions that are asked for raise instead. The
    note says why the figures of links cannot be used.

    Raises:
        meshfuse.Error: a tensor cannot be divided with these sizes.
    """
    sizes = known_sizes(fusion, parse(fusion.ir()), known)
    try:
        links = current_links()
    except Error as error:
        if suggest:
            raise
        return None, None, str(error)
    try:
        with busy("explaining: cost"):
            cost = cost_of(ProgramReader(sizes).read(compiled_text(not_strict(fusion))), links)
    except Error:
        if suggest:
            raise
        return None, None, None
    if not suggest:
        return cost, None, None
    return cost, suggestions(not_strict(fusion), sizes, links, lines), None
