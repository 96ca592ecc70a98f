# SPDX-License-Identifier: BSD-3-Clause
"""A script as a user has it: `mypy --strict` must accept it (test_stubs.py). It is not run."""

from __future__ import annotations

from typing import assert_type

import torch

import meshfuse
from meshfuse import (
    Communicator,
    DataType,
    DeviceMesh,
    FusionDefinition,
    IterDomain,
    ParallelType,
    PythonProfiler,
    Scalar,
    Sharding,
    TensorView,
    autograd,
    nn,
)


class ColumnParallel(FusionDefinition):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(strict=True)
        self.mesh = mesh

    def definition(self) -> None:
        self.x = self.define_tensor([-1, 8], contiguity=True, dtype=DataType.Float)
        self.w = self.define_tensor([8, 12])
        self.y = self.ops.matmul(self.x, self.w)
        self.add_output(self.y)

    def multidevice_schedule(self) -> None:
        for t in (self.x, self.w, self.y):
            self.sched._set_device_mesh(t, self.mesh)
        for t, columns in ((self.w, -1), (self.y, -2)):
            self.sched.split(t, columns, self.mesh.size, False)
            self.sched.parallelize(t, columns - 1, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(t)


def define(mesh: DeviceMesh) -> tuple[FusionDefinition, TensorView]:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, 8]), fd.define_tensor([8, 12])
        s = fd.define_scalar(2.0)
        y = assert_type(fd.ops.relu(fd.ops.matmul(x, w)), TensorView)
        assert_type(y * s + 1, TensorView)
        assert_type(1 - y, TensorView)
        assert_type(s * y, TensorView)
        assert_type(-(s * 2.0), Scalar)
        assert_type(fd.ops.mul(2.0, y), TensorView)
        assert_type(fd.ops.mul(2.0, s), Scalar)
        assert_type(meshfuse.ops.where(y > 0, y, 0.0), TensorView)
        assert_type(fd.ops.var_mean(y, [0]), tuple[TensorView, TensorView])
        total = assert_type(fd.ops.sum(y, dims=[0], dtype=DataType.Double), TensorView)
        fd.add_output(fd.ops.full([4, fd.ops.size(x, 0)], 0.0, DataType.Float))
        fd.add_output(total)
        x.set_device_mesh(mesh)
        w.set_sharding(meshfuse.from_partition_spec("None, x", mesh=mesh))
        w.outer_split(0, 2).merge(0, 1)
        assert_type(w.axis(0), IterDomain).parallelize("x")
    return fd, w


def use(fd: FusionDefinition, w: TensorView) -> list[torch.Tensor]:
    explanation = fd.explain(sizes={"T0": (4, 8)}, suggest=True)
    assert_type([c.kind for c in explanation.communications], list[str])
    assert_type(fd.check(examples=3, mesh=(2, 2)).examples, int)
    again = assert_type(meshfuse.parse_ir(fd.ir()), FusionDefinition)
    inputs = [torch.randn(4, 8), torch.randn(8, 12)]
    with meshfuse.simulate(4) as sim, PythonProfiler() as prof:
        outputs = assert_type(sim.run(again, inputs), list[torch.Tensor])
        assert_type(sim.local(output=0, device=3), torch.Tensor)
    assert_type([step.time_ms for step in prof.profile.kernel_profiles], list[float])
    fd.visualize("page.html")
    local = assert_type(meshfuse.multidevice.shard_tensor(inputs[1], w), torch.Tensor)
    return [*outputs, *fd.execute([inputs[0], local])]


def plan(mesh: DeviceMesh, fd: FusionDefinition, backward: FusionDefinition) -> None:
    model = torch.nn.Sequential(nn.ColumnParallelLinear(8, 12), nn.RowParallelLinear(12, 8))
    assert_type(autograd.apply(fd, backward, model(torch.ones(1, 8))), list[torch.Tensor])
    assert_type(meshfuse.plan_costs(fd, mesh=8).time_us, float)
    assert_type(meshfuse.autoshard(fd, mesh=4), FusionDefinition)
    sharding = meshfuse.from_shardy('#sdy.sharding<@mesh, [{"x"}, {}]>', mesh)
    assert_type(sharding, Sharding)
    assert_type(sharding.to_partition_spec(), str)


def errors() -> str | None:
    try:
        define(DeviceMesh(torch.arange(4).reshape(2, 2), names=("dp", "tp")))
    except meshfuse.PeerError as error:
        return assert_type(error.reason, str | None)
    except meshfuse.Error as error:
        return assert_type(error.tensor, str | None)
    return f"{assert_type(Communicator.instance().rank(), int)}"


def wrong(fd: FusionDefinition, x: TensorView) -> None:
    """Each of these is an error; with --strict an ignore that ignores nothing is one, too."""
    fd.define_tensor("4")  # type: ignore[arg-type]
    fd.define_tensor([4], dtype=torch.float32)  # type: ignore[call-overload]
    fd.define_scalar("4")  # type: ignore[call-overload]
    fd.ops.matmul(x, 2.0)  # type: ignore[arg-type]
    fd.ops.no_such_op(x)  # type: ignore[attr-defined]
    x.outer_split(0)  # type: ignore[call-arg]
    DeviceMesh(4)  # type: ignore[arg-type]
    meshfuse.simulate("4")  # type: ignore[arg-type]
