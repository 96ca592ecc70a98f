# SPDX-License-Identifier: BSD-3-Clause
"""``fd.explain()``: communications with cause and cost, shardings with their origin."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from programs import X, Y, mlp, place, ramp, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition

EIGHT = DeviceMesh(range(8))
TWO = DeviceMesh(range(2))


def here(back: int = 0) -> str:
    """``file:line`` of the caller's line, or of one above it."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno - back}"


def row_parallel(k: int = 16, dtype=meshfuse.DataType.Float, mesh=EIGHT) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, k], dtype=dtype), fd.define_tensor([k, 8], dtype=dtype)
        fd.add_output(fd.ops.matmul(x, w))
        for tv, axis in ((x, 1), (w, 0)):
            place(mesh, tv)
            shard(tv, axis, mesh.size)
    return fd


def one(fd: FusionDefinition, **sizes):
    (communication,) = fd.explain(**sizes).communications
    return communication


def set_between(before: int | None, after: int | None, shape=(8, 16), mesh=EIGHT):
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(shape))
        y = fd.ops.set(x)
        fd.add_output(y)
        for tv, axis in ((x, before), (y, after)):
            place(mesh, tv)
            if axis is not None:
                shard(tv, axis, mesh.size)
    return fd


# ---- what a communication says


def test_names_the_operation_and_the_lines():
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 16]), fd.define_tensor([16, 8])
        y = fd.ops.matmul(x, w)
        of_y = here(1)
        fd.add_output(y)
        for tv in (x, w):
            tv.set_device_mesh(EIGHT)
        x.outer_split(1, 8)
        x.axis(1).parallelize(X)
        of_x = here(1)
        w.outer_split(0, 8)
        w.axis(0).parallelize(X)
        of_w = here(1)
    c = one(fd)
    assert (c.kind, c.op, c.tensor, c.mesh_axis) == ("all-reduce", "matmul", "T2", "mesh_x")
    assert c.reason == "T0 and T1 split 'k' over mesh_x, so T2 is a sum over these devices"
    assert c.lines == [of_x, of_w, of_y]
    assert c.team == list(range(8))
    assert (c.before, c.after) == ("partial", None)
    report = str(fd.explain())
    for text in ("1 communication, 224 bytes per device", "all-reduce over mesh_x for T2 = matmul",
                 "partial sums -> whole", c.reason, of_x, of_w, of_y):  # fmt: skip
        assert text in report


def test_lines_follow_propagation_to_the_annotation():
    """The line of a weight far above stands for what was found from it."""
    fd = mlp(EIGHT)
    c = one(fd)
    assert c.op == "matmul"
    assert len(c.lines) == 2  # the one loop that annotates both weights, and the product
    assert c.reason == "T7 and T3 split 'k' over mesh_x, so T8 is a sum over these devices"


def test_operands_that_disagree():
    fd = mlp(EIGHT, in_seq=True, out_seq=True)
    gather, scatter = fd.explain().communications
    assert gather.kind == "all-gather"
    assert gather.sent == "T0"
    assert gather.reason == "T0 splits 'm' over mesh_x, T5 splits 'n' over it"
    assert (gather.before, gather.after) == (1, None)
    assert scatter.kind == "reduce-scatter"
    assert (scatter.before, scatter.after) == ("partial", 1)
    assert scatter.reason.endswith("so T8 is a sum over these devices, and it splits 'm' over them")


@pytest.mark.parametrize(
    ("axes", "reasons"),
    [
        (
            (1, 1),
            [
                "T0 splits 'k' over mesh_x, T1 splits 'n' over it",
                "T0 and the resharded T1 split 'k' over mesh_x, so T2 is a sum over these devices",
            ],
        ),
        (
            (0, 1),
            [
                "T0 splits 'm' over mesh_x, T1 splits 'n' over it",
                "T0 splits 'm' over mesh_x, T2 holds it whole",
            ],
        ),
    ],
)
def test_each_communication_of_an_operation_has_its_own_reason(axes, reasons):
    """One reshards an operand; the other is about the result, with what the first one made."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([8, 16]), fd.define_tensor([16, 8])
        y = fd.ops.matmul(x, w)
        fd.add_output(y)
        place(EIGHT, x, w, y)
        shard(x, axes[0], 8)
        shard(w, axes[1], 8)
    assert [c.reason for c in fd.explain().communications] == reasons


def test_declared_result_that_disagrees():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 4])
        y = fd.ops.relu(x)
        fd.add_output(y)
        place(EIGHT, x, y)
        shard(x, 0, 8)
    c = one(fd)
    assert (c.kind, c.op, c.tensor) == ("all-gather", "relu", "T1")
    assert "T0 splits" in c.reason
    assert c.reason.endswith("over mesh_x, T1 holds it whole")


def test_a_set_of_the_user():
    c = one(set_between(0, 1))
    assert (c.kind, c.op, c.tensor, c.before, c.after) == ("all-to-all", "set", "T1", 0, 1)


def test_names_of_mesh_axes_and_teams():
    mesh = DeviceMesh(torch.arange(8).reshape(2, 4), names=("dp", "tp"))
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 16]), fd.define_tensor([16, 8])
        fd.add_output(fd.ops.matmul(x, w))
        place(mesh, x, w)
        shard(x, 1, 4)
        shard(x, 0, 2, Y)
        shard(w, 0, 4)
    c = one(fd)
    assert (c.mesh_axis, c.mesh_axis_name) == ("mesh_x", "tp")
    assert c.teams == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert c.team == [0, 1, 2, 3]
    assert c.bytes == 2 * 3 * (2 * 8 * 4) // 4  # the result of one team: 2 rows of 8 floats
    assert "all-reduce over mesh_x ('tp')" in str(c)


# ---- bytes


@pytest.mark.parametrize(
    ("program", "kind", "sent"),
    [
        (lambda: row_parallel(), "all-reduce", 2 * 7 * (4 * 8 * 4) // 8),
        (lambda: row_parallel(dtype=meshfuse.DataType.BFloat16), "all-reduce", 2 * 7 * 64 // 8),
        (lambda: set_between(0, None), "all-gather", 7 * (8 * 16 * 4) // 8),
        (lambda: set_between(0, 1), "all-to-all", 7 * (16 * 4) // 8),
        (lambda: mlp(EIGHT, out_seq=True), "reduce-scatter", 7 * (4 * 16 * 6 * 4) // 8),
    ],
)
def test_bytes_per_device(program, kind, sent):
    fd = program()
    c = one(fd)
    assert (c.kind, c.bytes) == (kind, sent)
    assert fd.explain().bytes == sent


def test_slices_and_meshes_of_one_device_are_no_communication():
    assert fd_kinds(set_between(None, 0)) == []
    assert fd_kinds(set_between(0, None, mesh=DeviceMesh([0]))) == []
    assert str(set_between(None, 0).explain()).startswith("no communications\n")


def fd_kinds(fd: FusionDefinition) -> list[str]:
    return [c.kind for c in fd.explain().communications]


# ---- tensors


def test_origins():
    tensors = {t.name: t for t in mlp(EIGHT, out_seq=True).explain().tensors}
    assert tensors["T1"].sharding == {"mesh_x": 1}
    assert "programs.py:" in tensors["T1"].origin
    assert tensors["T0"].sharding == {}
    assert tensors["T0"].origin == ("T5", None)  # an input: the mesh of its reader alone
    assert tensors["T5"].sharding == {"mesh_x": 2}
    assert tensors["T5"].origin == ("T1", "n")
    assert tensors["T6"].origin[0] == "T5"
    assert tensors["T8"].sharding == {"mesh_x": 1}
    assert tensors["T8"].origin[0] == "T9"  # backward, from the declared result
    assert "programs.py:" in tensors["T9"].origin
    assert {"mesh_x": "partial"} in [t.sharding for t in tensors.values()]


def test_each_mesh_axis_has_its_origin():
    mesh = DeviceMesh(torch.arange(4).reshape(2, 2))
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(x, w))
        place(mesh, x, w)
        shard(x, 0, 2, Y)
        shard(w, 1, 2, X)
    out = fd.explain().tensors[2]
    assert out.sharding == {"mesh_x": 1, "mesh_y": 0}
    assert out.origins == {"mesh_x": ("T1", "n"), "mesh_y": ("T0", "m")}


def test_program_without_a_mesh():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([-1])))
    explained = fd.explain()
    assert explained.communications == []
    assert [(t.sharding, t.origin, t.mesh) for t in explained.tensors] == [({}, None, None)] * 2
    assert "T0: on no mesh" in str(explained)


def test_dict_is_json():
    explained = mlp(EIGHT, in_seq=True).explain()
    data = json.loads(json.dumps(explained.to_dict()))
    assert data == explained.to_dict()
    assert data["communications"][0]["kind"] == "all-gather"
    assert data["bytes"] == explained.bytes
    annotated = next(t for t in data["tensors"] if t["name"] == "T1")
    assert annotated["origin"] == {
        "line": explained.tensors[1].origin,
        "tensor": None,
        "factor": None,
    }
    assert {t["mesh"] for t in data["tensors"]} == {"mesh(x=8)"}


def test_dict_has_origins_of_one_form():
    """A line, or a tensor and a loop, for a tensor and for each of its mesh axes."""
    data = mlp(EIGHT).explain().to_dict()["tensors"]
    filled = next(t for t in data if t["name"] == "T5")
    assert filled["origins"] == {"mesh_x": {"line": None, "tensor": "T1", "factor": "n"}}
    assert filled["origin"] == filled["origins"]["mesh_x"]
    mesh = DeviceMesh(torch.arange(4).reshape(2, 2), names=["dp", "tp"])
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.relu(x))
        place(mesh, x)
    first = fd.explain().to_dict()["tensors"][0]
    assert first["mesh"] == 'mesh(y=2 "dp", x=2 "tp")'
    assert meshfuse.parse_ir(fd.ir()).explain().to_dict()["tensors"][0]["origin"] is not None


def test_nothing_is_changed():
    fd = mlp(TWO)
    before = fd.ir()
    fd.explain()
    assert fd.ir() == before
    with meshfuse.simulate(2) as sim:
        sim.run(fd, [ramp(4, 4, 6), ramp(6, 8), ramp(8), ramp(8, 6), ramp(6)])
    assert str(fd.explain()) == str(mlp(TWO).explain())


def test_class_style():
    class Model(FusionDefinition):
        def definition(self):
            self.x = self.define_tensor([8, 4])
            self.y = self.ops.sum(self.x, [0])
            self.add_output(self.y)

        def multidevice_schedule(self):
            self.sched._set_device_mesh(self.x, EIGHT)
            self.sched.parallelize(self.x, 0, X)

    assert fd_kinds(Model()) == ["all-reduce"]


# ---- sizes


def symbolic() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 8])
        fd.add_output(fd.ops.matmul(x, w))
        for tv, axis in ((x, 1), (w, 0)):
            place(TWO, tv)
            shard(tv, axis, 2)
    return fd


@pytest.mark.parametrize(
    "known",
    [
        {"inputs": [torch.empty(4, 16), torch.empty(16, 8)]},
        {"inputs": [torch.empty(4, 16, device="meta"), torch.empty(16, 8, device="meta")]},
        {"sizes": {"T0": (4, 16), "T1": [16, 8]}},
        {"sizes": {"T0": (4, 16)}},
        {"sizes": {"T0.0": 4}},
    ],
)
def test_open_sizes(known):
    assert one(symbolic(), **known).bytes == 4 * 8 * 4


def test_open_sizes_by_tensor():
    fd = symbolic()
    assert one(fd, sizes={fd.fusion.inputs()[0]: (4, 16)}).bytes == 4 * 8 * 4


def test_open_sizes_that_no_communication_needs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.relu(x))
        place(TWO, x)
        shard(x, 0, 2)
    assert fd.explain().communications == []


@pytest.mark.parametrize(
    ("known", "message"),
    [
        ({}, r"bytes of the all-reduce for T2 depend on sizes that the program leaves open: T0\.0"),
        ({"sizes": {"T7": (4, 4)}}, r"sizes names 'T7', which is no tensor input.*T0\.0"),
        (
            {"sizes": {"T0.7": 4}},
            r"sizes names 'T0\.7', which is no open size.*Open sizes are: T0\.0, T0\.1, T1\.0\.$",
        ),
        ({"sizes": {"T0": (4, 16, 2)}}, "3 sizes are given for T0, which has 2 axes"),
        ({"sizes": {"T1": (16, 9)}}, "axis 1 of T1 is given the size 9 but declared with 8"),
        ({"sizes": {"T0": (4, 16), "T1": (12, 8)}}, "16.*12"),
        ({"sizes": {"T0": (4, 16), "T0.0": 5}}, "the value 5"),
        ({"sizes": {"T0": "large"}}, r"sizes\['T0'\] is 'large'\. Give a number"),
        ({"sizes": {"T0.0": -4}}, r"sizes\['T0\.0'\] is -4\. Give a number"),
        ({"inputs": [torch.empty(4, 16)]}, "expected 2 inputs, but 1 were given"),
        ({"inputs": [torch.empty(4, 16), 3]}, "input 1 is int, not a tensor"),
        ({"inputs": [torch.empty(4, 16), torch.empty(16, 4)]}, "axis 1 of T1.*4.*8.*global sizes"),
    ],
)
def test_wrong_sizes(known, message):
    with pytest.raises(meshfuse.Error, match=message):
        symbolic().explain(**known)


def test_uneven_sizes():
    fd = set_between(0, None, shape=(-1, 4), mesh=TWO)
    with pytest.raises(meshfuse.Error, match=r"T0.*5.*2"):
        fd.explain(sizes={"T0": (5, 4)})
