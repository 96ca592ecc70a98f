# SPDX-License-Identifier: BSD-3-Clause
"""Messages of the library as the command line says them: options in place of arguments."""

from __future__ import annotations

import re

from .sizes import example_of_sizes

_SIZES = "Give each, as in SIZES."

# What the library writes, in the order in which it is looked for, and what stands for it here.
REPLACED = {
    "Pass inputs=[...], global tensors as sim.run takes them, or sizes={'T0': (4, 8)} or "
    "sizes={'T0.0': 4}.": _SIZES,
    "Pass sizes={'T0': (4, 8)}, global sizes of an input, or sizes={'T0.0': 4}.": _SIZES,
    "Give global sizes, as sim.run takes tensors, not those of one device.": "Give global sizes, "
    "not those of one device.",
    ": sizes names '": ": --size names '",
    ", as explain was given it,": ", as --size says,",
    "Leave mesh out,": "Leave --mesh out,",
    "Give one: from_partition_spec(spec, mesh=...).": "Give one, as in --mesh 2x4.",
    "give mesh= a mesh with names to use those.": "give a mesh with names to use those, as in "
    "--mesh dp=2,tp=4.",
    ", or define the fusion with uneven=True.": ", or define the fusion with uneven=True "
    "(--uneven, for a program in text form).",
}
_OPEN = re.compile(r"depend on the size (.+?), which|leaves open: (.+?)\. Give each")
_NAME = re.compile(r"\b[A-Za-z_]\w*\.\d+|\bs\d+\b")
_SIZE = re.compile(r"\bsizes\['([^']+)'\]")


def for_flags(command: str | None, message: str) -> str:
    """Return a message of the library as a command says it.

    Example:
        >>> for_flags("plan", "plan_costs: the program has 2 meshes. Leave mesh out, to keep them.")
        'plan: the program has 2 meshes. Leave --mesh out, to keep them.'
    """
    for written, said in REPLACED.items():
        message = message.replace(written, said)
    if _SIZES in message:
        message = message.replace("SIZES", example_of_sizes(_open_sizes(message)))
    message = _SIZE.sub(r"--size \1", message)
    return re.sub(r"\A(plan_costs|explain)(?=: )", command or "plan", message)


def _open_sizes(message: str) -> list[str]:
    """Return the sizes that a message says are open: names, or an expression of them."""
    told = _OPEN.search(message)
    return list(dict.fromkeys(_NAME.findall(told[1] or told[2]))) if told else ["T0.0"]
