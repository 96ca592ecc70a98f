# SPDX-License-Identifier: BSD-3-Clause
"""All ways to place the tensors of one op on a mesh, and what becomes of each.

Usage: PYTHONPATH=python:tests/python python -m placements [LIMIT]

writes docs/placements.json: for every op and mesh how many placements run, and how many are refused
with which message. tools/gen_docs.py makes a table of it.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
import math
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from op_examples import REGISTERED, Example, examples_of
from programs import X, Y, dtype_of

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, TensorView

MESHES: dict[str, tuple[int, ...]] = {"2": (2,), "3": (3,), "1x2": (1, 2), "2x2": (2, 2)}
LIMIT = 5000  # placements of one example on one mesh, at most
JSON = Path(__file__).resolve().parents[2] / "docs" / "placements.json"
MESH_AXES = (Y, X)

# For each tensor axis the mesh axes that divide it, the outermost first; None: no mesh is given.
Placement = tuple[tuple[int, ...], ...] | None


class Fault(AssertionError):
    """A placement that gives a wrong result, or an exception that is not for users."""


def placements(shape: Sequence[int], mesh: tuple[int, ...]) -> list[Placement]:
    """Return every placement of a tensor: each mesh axis nowhere or on one of its axes."""
    found: dict[Placement, None] = {None: None}
    mesh_axes = range(len(mesh))
    for order in itertools.permutations(mesh_axes):
        for choice in itertools.product([None, *range(len(shape))], repeat=len(mesh)):
            axes = [tuple(m for m in order if choice[m] == axis) for axis in range(len(shape))]
            fits = all(
                n % math.prod(mesh[m] for m in on) == 0 or n == 1
                for n, on in zip(shape, axes, strict=True)
            )
            if fits:
                found[tuple(axes)] = None
    return list(found)


def place_tensor(tv: TensorView, placement: Placement, mesh: DeviceMesh) -> None:
    """Give a tensor the mesh and the outer splits of a placement."""
    if placement is None:
        return
    tv.set_device_mesh(mesh)
    kept = [i for i, axis in enumerate(tv.get_loop_domain()) if not axis.is_reduction()]
    names = MESH_AXES[-len(mesh.shape) :]
    for position, mesh_axes in reversed(list(zip(kept, placement, strict=True))):
        for at, mesh_axis in enumerate(mesh_axes, start=position):
            tv.outer_split(at, mesh.shape[mesh_axis])
            tv.axis(at).parallelize(names[mesh_axis])


def program(
    example: Example, mesh: DeviceMesh, chosen: Sequence[Placement]
) -> tuple[FusionDefinition, list[TensorView]]:
    """Return the program of one op; ``chosen`` is one placement per operand and result."""
    with FusionDefinition() as fd:
        operands = [fd.define_tensor(list(x.shape), dtype=dtype_of(x)) for x in example.tensors]
        results = example.call(fd.ops, operands)
        for tv in results:
            fd.add_output(tv)
        for tv, placement in zip([*operands, *results], chosen, strict=True):
            place_tensor(tv, placement, mesh)
    return fd, results


def outcome(example: Example, mesh: DeviceMesh, chosen: Sequence[Placement]) -> str | None:
    """Run one placement; return None, or the message with which it is refused.

    Raises:
        Fault: anything else happens.
    """
    text = ""
    try:
        fd, results = program(example, mesh, chosen)
        text = fd.ir()
        with meshfuse.simulate(mesh.size) as sim:
            found = sim.run(fd, example.tensors)
            for k, (got, want) in enumerate(zip(found, example.expected(), strict=True)):
                close(got, want)
                placed = results[k]
                if placed.has_device_mesh():
                    for device, part in enumerate(sim.shard_tensor(want, placed)):
                        close(sim.local(k, device), part)
    except (meshfuse.Error, meshfuse.UnsupportedError) as error:
        message = str(error)
        if not is_useful(message):
            raise Fault(
                f"a message without a tensor or without advice: {message}\n{text}"
            ) from error
        return message
    except Exception as error:
        raise Fault(f"{type(error).__name__}: {error}\n{text}") from error
    return None


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, equal_nan=True)


def is_useful(message: str) -> bool:
    """Whether a message names a tensor and, behind the fact, says what to do."""
    first = message.splitlines()[0]
    return (
        re.search(r"\bT\d+\b", first) is not None and re.search(r"\. [A-Z].*\.$", first) is not None
    )


def general(message: str) -> str:
    """Return the fact of a message with its names and numbers taken out."""
    text = re.sub(r"\([^()]*\.py:\d+\)", "", message.splitlines()[0].partition(". ")[0])
    text = re.sub(r"\bT\d+\b", "T", text)
    return re.sub(r"\d+", "n", text)


def sample(
    example: Example, shape: tuple[int, ...], limit: int
) -> tuple[int, list[tuple[Placement, ...]]]:
    """Return how many placements there are, and all of them or a seeded sample."""
    tensors = [*example.tensors, *example.expected()]
    options = [placements(list(t.shape), shape) for t in tensors]
    total = math.prod(map(len, options))
    if total <= limit:
        return total, list(itertools.product(*options))
    rng = random.Random(f"{example.label} {shape}")
    return total, [tuple(rng.choice(o) for o in options) for _ in range(limit)]


def survey(
    example: Example, mesh_name: str, limit: int
) -> tuple[collections.Counter[str], list[str]]:
    """Run the placements of an example on a mesh; return counts by message, and faults."""
    shape = MESHES[mesh_name]
    mesh = DeviceMesh(torch.arange(math.prod(shape)).reshape(shape))
    counts: collections.Counter[str] = collections.Counter()
    faults = []
    for chosen in sample(example, shape, limit)[1]:
        try:
            message = outcome(example, mesh, chosen)
        except Fault as fault:
            faults.append(f"{example.label} on {mesh_name}: {fault}")
        else:
            counts["" if message is None else general(message)] += 1
    return counts, faults


def main() -> int:
    """Survey everything and write the JSON file."""
    logging.getLogger("meshfuse").disabled = True
    torch.set_num_threads(1)  # the tensors are small
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else LIMIT
    table: dict[str, dict[str, dict[str, object]]] = {}
    broken = 0
    for op in sorted(REGISTERED):
        for mesh_name in MESHES:
            counts: collections.Counter[str] = collections.Counter()
            for example in examples_of(op):
                found, faults = survey(example, mesh_name, limit)
                counts += found
                broken += len(faults)
                for fault in faults[:2]:
                    print(fault)
            table.setdefault(op, {})[mesh_name] = {
                "run": counts.pop("", 0),
                "refused": dict(sorted(counts.items())),
            }
        print(op, {m: e["run"] for m, e in table[op].items()}, flush=True)
    JSON.write_text(json.dumps(table, indent=1) + "\n")
    print(f"{broken} faults")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
