# SPDX-License-Identifier: BSD-3-Clause
"""Rows 4 to 7 and 8 (two devices) on 2 ranks; on 4 ranks short all-reduces.

Ranks of which there are more than cores wait for one another's turn.

Usage: PYTHONPATH=python tools/mpirun -np 2 python benchmarks/bench_ranks.py [--smoke] [--out FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

import harness
import ranks
import workloads
from harness import Effort
from meshfuse import Communicator
from rows import Figure, missing

if TYPE_CHECKING:
    from mpi4py import MPI

SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "64 MB": 64 << 20}  # of the result on each rank


def parallel_linear(comm: MPI.Comm, style: Any, inner: int, outer: int, bias: bool) -> Any:
    """Return a linear layer of torch that is divided over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    layer = torch.nn.Linear(inner, outer, bias=bias)
    return parallelize_module(layer, init_device_mesh("cpu", (comm.size,)), style)


def column_parallel(comm: MPI.Comm, effort: Effort) -> list[Figure]:
    """Row 4; nothing is communicated, and a call takes as long as on the slowest rank."""
    from torch.distributed.tensor.parallel import ColwiseParallel

    x = torch.ones(8, 8)
    layer = parallel_linear(comm, ColwiseParallel(), 8, 8 * comm.size, bias=True)
    w, b = (p.to_local() for p in (layer.weight, layer.bias))
    fd = workloads.column_parallel_linear(comm.size, [8], 8, 8)
    given = [x, w, b]
    torch.testing.assert_close(fd.execute(given)[0], layer(x))
    contenders: harness.Contenders = {
        "F.linear": lambda: functional.linear(x, w, b),
        "execute": lambda: fd.execute(given),
        "ColwiseParallel": lambda: layer(x),
    }
    result = ranks.contest(comm, contenders, effort.of(151, 2))
    others = {"ColwiseParallel": result.ratio("ColwiseParallel")}
    return [result.figure("4", result.ratio("execute"), others)]


def row_parallel(comm: MPI.Comm, effort: Effort, key: str, rows: list[int], size: int) -> Figure:
    """Row 5: the product of the parts and its sum over the ranks, which all have in the end."""
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    from torch.distributed.tensor.parallel import RowwiseParallel

    x = torch.randn(*rows, size)
    layer = parallel_linear(comm, RowwiseParallel(), size * comm.size, size, bias=False)
    w = layer.weight.to_local()
    fd = workloads.row_parallel_linear(comm.size, rows, size, size)

    def rowwise() -> torch.Tensor:
        result: torch.Tensor = layer(x)
        if isinstance(result, AsyncCollectiveTensor):  # it may be on its way still
            result = result.wait()
        return result

    torch.testing.assert_close(fd.execute([x, w])[0], rowwise(), rtol=1e-4, atol=1e-4)
    contenders: harness.Contenders = {
        "RowwiseParallel": rowwise,
        "execute": lambda: fd.execute([x, w]),
    }
    result = ranks.contest(comm, contenders, effort.of(31))
    return result.figure(key, result.ratio("execute"))


def row_parallel_rows(comm: MPI.Comm, effort: Effort) -> list[Figure]:
    """Row 5, both sizes."""
    seed = ([2, 8], 16) if effort.smoke else ([2, 1024], 768)
    return [
        row_parallel(comm, effort, "5 tiny", [8], 8),
        row_parallel(comm, effort, "5 seed", *seed),
    ]


def mpi_all_reduce(comm: MPI.Comm, local: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return the call of mpi4py, into new memory."""
    given, count = local.numpy(), local.numel()

    def plain() -> torch.Tensor:
        out = torch.empty(count)
        comm.Allreduce(given, out.numpy())
        return out

    return plain


def all_reduces(comm: MPI.Comm, effort: Effort, no_gloo: str) -> list[Figure]:
    """Rows 6 and 7: the sum over the ranks, into new memory; ``no_gloo``: why gloo is left out."""
    import torch.distributed as dist

    figures = []
    for name, size in SIZES.items():
        count = 64 if effort.smoke else size // 4
        local = torch.randn(1, count)
        fd = workloads.all_reduce(comm.size, count)
        plain = mpi_all_reduce(comm, local)

        def gloo(local: torch.Tensor = local) -> torch.Tensor:
            out = local.clone()
            dist.all_reduce(out)
            return out

        def fused(fd: Any = fd, local: torch.Tensor = local) -> object:
            return fd.execute([local])

        torch.testing.assert_close(fd.execute([local])[0], plain())
        contenders: harness.Contenders = {"mpi4py": plain, "execute": fused}
        contenders |= {} if no_gloo else {"gloo": gloo}
        result = ranks.contest(comm, contenders, effort.of(31))
        others = {} if no_gloo else {"gloo": result.ratio("gloo")}
        figures.append(result.figure(f"6 all-reduce, {name}", result.ratio("execute"), others))
    if no_gloo:
        return figures + missing(["7"], no_gloo)
    best = min(("mpi4py", "gloo"), key=result.median)  # of the largest size
    others = {name: result.ratio(name, best) for name in ("mpi4py", "gloo")}
    figures.append(result.figure("7", result.ratio("execute", best), others))
    return figures


def all_gathers(comm: MPI.Comm, effort: Effort) -> list[Figure]:
    """Row 6: the parts of all ranks, into new memory."""
    figures = []
    for name, size in SIZES.items():
        count = 64 if effort.smoke else size // 4
        local = torch.randn(count // comm.size)
        fd = workloads.all_gather(comm.size, count)

        def plain(local: torch.Tensor = local, count: int = count) -> torch.Tensor:
            out = torch.empty(count)
            comm.Allgather(local.numpy(), out.numpy())
            return out

        def fused(fd: Any = fd, local: torch.Tensor = local) -> object:
            return fd.execute([local])

        assert torch.equal(fd.execute([local])[0], plain())
        contenders: harness.Contenders = {"mpi4py": plain, "execute": fused}
        result = ranks.contest(comm, contenders, effort.of(31))
        figures.append(result.figure(f"6 all-gather, {name}", result.ratio("execute")))
    return figures


def seed_program(comm: MPI.Comm, effort: Effort) -> list[Figure]:
    """Row 8, two devices: both ranks compute at the same time."""
    shape, columns = ([2, 8, 16], 16) if effort.smoke else ([2, 1024, 768], 768)
    x, w = torch.randn(shape), torch.randn(shape[-1], columns)
    fd = workloads.ColumnParallel(comm.size, shape, columns)
    torch.testing.assert_close(fd.execute([x, w])[0], x @ w)
    contenders: harness.Contenders = {
        "torch.matmul": lambda: torch.matmul(x, w),
        "execute": lambda: fd.execute([x, w]),
    }
    result = ranks.contest(comm, contenders, effort.of(31, 100))
    return [result.figure("8 d=2", result.ratio("execute"))]


def oversubscribed(comm: MPI.Comm, effort: Effort) -> list[Figure]:
    """The last row: ranks that wait have to leave the core to those that work."""
    local = torch.randn(1, SIZES["4 KB"] // 4)
    fd = workloads.all_reduce(comm.size, local.numel())
    plain = mpi_all_reduce(comm, local)
    torch.testing.assert_close(fd.execute([local])[0], plain())
    contenders: harness.Contenders = {"mpi4py": plain, "execute": lambda: fd.execute([local])}
    result = ranks.contest(comm, contenders, effort.of(31))
    others = {"mpi4py": result.median("mpi4py") / 1e3}
    return [result.figure("also", result.median("execute") / 1e3, others)]


def independent(comm: MPI.Comm, effort: Effort) -> Figure:
    """Sums that wait for nothing: all are under way before the first result is read."""
    number = 16
    locals_ = [torch.randn(1, SIZES["4 KB"] // 4) for _ in range(number)]
    fd = workloads.all_reduces(comm.size, locals_[0].numel(), number)
    in_order = [mpi_all_reduce(comm, local) for local in locals_]

    def plain() -> list[torch.Tensor]:
        return [torch.neg(call()) for call in in_order]

    torch.testing.assert_close(list(fd.execute(locals_)), plain())
    contenders: harness.Contenders = {"mpi4py": plain, "execute": lambda: fd.execute(locals_)}
    result = ranks.contest(comm, contenders, effort.of(31))
    return result.figure(f"posted, {comm.size} ranks", result.ratio("execute"))


def gloo_missing(comm: MPI.Comm) -> str:
    """Return why there is no group of gloo; empty if there is one, on all ranks."""
    try:
        ranks.join_gloo(comm)
        own = ""
    except Exception as error:
        own = f"no gloo: {type(error).__name__}: {error}".splitlines()[0]
    return next(filter(None, comm.allgather(own)), "")


def main() -> None:
    """Measure what these ranks are for."""
    from mpi4py import MPI

    options, comm = harness.options(__doc__), MPI.COMM_WORLD
    torch.manual_seed(comm.rank)
    Communicator.instance()  # before torch.distributed has a group
    figures: list[Figure] = []
    with torch.no_grad():
        if comm.size > 2:
            figures = [*oversubscribed(comm, options.effort), independent(comm, options.effort)]
        else:
            figures = all_gathers(comm, options.effort) + seed_program(comm, options.effort)
            figures.append(independent(comm, options.effort))
            no_gloo = gloo_missing(comm)
            figures += all_reduces(comm, options.effort, no_gloo)
            if no_gloo:
                figures += missing(["4", "5 tiny", "5 seed"], no_gloo)
            else:
                figures += column_parallel(comm, options.effort)
                figures += row_parallel_rows(comm, options.effort)
    if comm.rank == 0:
        harness.report(figures, options.out)
    Communicator.instance().barrier()


if __name__ == "__main__":
    main()
