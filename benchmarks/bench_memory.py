# SPDX-License-Identifier: BSD-3-Clause
"""Row 15: peak resident memory of 12 transformer blocks on 2 ranks, and growth over many calls.

Each contender runs in a job of its own; benchmarks/run.py starts them.

Usage: PYTHONPATH=python tools/mpirun -np 2 python benchmarks/bench_memory.py fusion|torch|growth
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

import harness

if TYPE_CHECKING:
    from mpi4py import MPI

HIDDEN, HEADS, BLOCKS = 512, 8, 12
BATCH, SEQUENCE = 4, 256
CALLS = 5
MANY_CALLS = 100_000


def shapes(devices: int, hidden: int) -> list[tuple[int, ...]]:
    """Return the shapes of the parameters of a block on one device, in order of their definition.

    Weights and biases of two norms; of queries, keys and values; of the projection; of up; of down.
    """
    own, wide = hidden // devices, 4 * hidden // devices
    norms: list[tuple[int, ...]] = [(hidden,)] * 4
    attention = [(3 * own, hidden), (3 * own,), (hidden, own), (hidden,)]
    return [*norms, *attention, (wide, hidden), (wide,), (hidden, wide), (hidden,)]


def parameters(devices: int, hidden: int, blocks: int) -> list[torch.Tensor]:
    """Return random parameters of all blocks."""
    return [0.02 * torch.randn(*shape) for _ in range(blocks) for shape in shapes(devices, hidden)]


def run_fusion(comm: MPI.Comm, x: torch.Tensor, blocks: int) -> torch.Tensor:
    """Run the blocks as one program."""
    sys.path.insert(0, str(harness.ROOT / "examples"))
    from layers import Model
    from meshfuse import DeviceMesh, FusionDefinition
    from transformer import GptBlock, Sizes

    hidden = x.shape[2]
    sizes = Sizes(hidden=hidden, heads=HEADS, inner=4 * hidden)
    with FusionDefinition() as fd:
        model = Model(fd, DeviceMesh(range(comm.size)))
        y = fd.define_tensor([-1, -1, hidden], contiguity=True)
        for _ in range(blocks):
            y = GptBlock(model, sizes).forward(y)
        fd.add_output(y)
    given = [x, *parameters(comm.size, hidden, blocks)]
    for _ in range(CALLS):
        (result,) = fd.execute(given)
    return result


def run_torch(comm: MPI.Comm, x: torch.Tensor, blocks: int) -> torch.Tensor:
    """Run the blocks as a person writes them with torch and mpi4py."""
    from mpi4py import MPI

    hidden, heads = x.shape[2], HEADS // comm.size
    weights = parameters(comm.size, hidden, blocks)
    count = len(shapes(comm.size, hidden))

    def summed(t: torch.Tensor) -> torch.Tensor:
        comm.Allreduce(MPI.IN_PLACE, t.numpy())
        return t

    def block(x: torch.Tensor, p: list[torch.Tensor]) -> torch.Tensor:
        b, s, _ = x.shape
        qkv = functional.linear(functional.layer_norm(x, [hidden], p[0], p[1]), p[4], p[5])
        q, k, v = qkv.view(b, s, heads, 3, -1).permute(3, 0, 2, 1, 4).unbind(0)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(b, s, -1)
        x = summed(functional.linear(y, p[6])).add_(p[7]).add_(x)
        y = functional.linear(functional.layer_norm(x, [hidden], p[2], p[3]), p[8], p[9])
        y = functional.gelu(y, approximate="tanh")
        return summed(functional.linear(y, p[10])).add_(p[11]).add_(x)

    for _ in range(CALLS):
        result = x
        for i in range(blocks):
            result = block(result, weights[count * i : count * (i + 1)])
    return result


def memory(name: str) -> int:
    """Return kilobytes of this process: VmHWM, the peak, or VmRSS, what is resident now."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, f"no {name} in /proc/self/status"
    return int(found.group(1))


def growth(comm: MPI.Comm, calls: int) -> float:
    """Return by how many bytes a call of a linear with an all-reduce grows the process."""
    import workloads

    x, w = torch.randn(8, 8), torch.randn(8, 8)
    fd = workloads.row_parallel_linear(comm.size, [8], 8, 8)
    for _ in range(calls // 10):
        fd.execute([x, w])
    before = memory("VmRSS")
    for _ in range(calls):
        fd.execute([x, w])
    return (memory("VmRSS") - before) * 1024 / calls


def main() -> None:
    """Print one number, the largest of the ranks, and a checksum of the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["fusion", "torch", "growth"])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, few calls")
    parser.add_argument("--out", type=Path, required=True, help="write the number to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    import meshfuse

    meshfuse.Communicator.instance()  # in both contenders: the package itself is not measured
    torch.manual_seed(0)
    checksum = 0.0
    with torch.no_grad():
        if options.what == "growth":
            number = growth(comm, 100 if options.smoke else MANY_CALLS)
        else:
            batch, sequence, hidden = (1, 8, 64) if options.smoke else (BATCH, SEQUENCE, HIDDEN)
            x = torch.randn(batch, sequence, hidden)
            run = run_fusion if options.what == "fusion" else run_torch
            checksum = run(comm, x, 2 if options.smoke else BLOCKS).double().abs().sum().item()
            number = float(memory("VmHWM"))
    largest = comm.allreduce(number, op=MPI.MAX)
    if comm.rank == 0:
        options.out.write_text(json.dumps({"number": largest, "checksum": checksum}))
    meshfuse.Communicator.instance().barrier()


if __name__ == "__main__":
    main()
