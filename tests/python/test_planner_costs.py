# SPDX-License-Identifier: BSD-3-Clause
"""What plan_costs says of programs, against fd.explain() and counts by hand."""

from __future__ import annotations

import json

import pytest
import torch
from op_examples import REGISTERED, examples_of
from programs import X, Y, dtype_of, place, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition
from meshfuse.planner import Device, Link, Links, Rate, plan_costs
from meshfuse.planner.collectives import KINDS, algorithms

FOUR = DeviceMesh(range(4))
GRID = DeviceMesh(torch.arange(8).reshape(2, 4))


def mlp(rows=8, hidden=16, mesh=FOUR, divided=True):
    """gelu(x w1 + b1) w2 + b2, the weights divided as by Megatron."""
    d = mesh.size
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, hidden])
        w1, b1 = fd.define_tensor([hidden, 4 * hidden]), fd.define_tensor([4 * hidden])
        w2, b2 = fd.define_tensor([4 * hidden, hidden]), fd.define_tensor([hidden])
        h = fd.ops.gelu(fd.ops.add(fd.ops.matmul(x, w1), b1))
        fd.add_output(fd.ops.add(fd.ops.matmul(h, w2), b2))
        if divided:
            place(mesh, x, w1, b1, w2, b2)
            for t, axis in ((w1, 1), (b1, 0), (w2, 0)):
                shard(t, axis, d)
    return fd


def set_between(before, after, shape=(8, 16), mesh=FOUR, to=None):
    """A set from one division to another: {mesh axis: tensor axis}."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(list(shape))
        y = fd.ops.set(x)
        fd.add_output(y)
        for t, divided, on in ((x, before, mesh), (y, after, to or mesh)):
            place(on, t)
            for mesh_axis, axis in sorted(divided.items(), key=lambda item: -item[1]):
                shard(t, axis, on.shape[-1 if mesh_axis == X else -2], mesh_axis)
    return fd


def attention(mesh=FOUR):
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 8, 32])
        weights = [fd.define_tensor([32, 32]) for _ in range(4)]
        q, k, v = (
            fd.ops.permute(fd.ops.reshape(fd.ops.linear(x, w), [2, 8, 4, 8]), [0, 2, 1, 3])
            for w in weights[:3]
        )
        out = fd.ops.sdpfa_fwd(q, k, v, None, True, None)[0]
        out = fd.ops.reshape(fd.ops.permute(out, [0, 2, 1, 3]), [2, 8, 32])
        fd.add_output(fd.ops.linear(out, weights[3]))
        place(mesh, x, *weights)
        for w, axis in zip(weights, (0, 0, 0, 1), strict=True):
            shard(w, axis, mesh.size)
    return fd


def mixed():
    """Operands that disagree on a mesh of two axes, and a tensor that two operations gather."""
    with FusionDefinition() as fd:
        a, b, c = (fd.define_tensor([16, 16]) for _ in range(3))
        y = fd.ops.matmul(a, b)
        z = fd.ops.add(fd.ops.matmul(y, c), fd.ops.sum(a, [0]))
        fd.add_output(z)
        fd.add_output(fd.ops.softmax(y, 1))
        place(GRID, a, b, c)
        shard(a, 1, 2, Y)
        shard(b, 1, 4, X)
        shard(c, 0, 4, X)
        shard(c, 2, 2, Y)
    return fd


GOOD = {"name": "x", "rate": {"alpha_us": 1, "gb_per_s": 1}}
OTHER = DeviceMesh([4, 5, 6, 7])
PROGRAMS = {
    "mlp": mlp,
    "attention": attention,
    "mixed": mixed,
    "all_gather": lambda: set_between({X: 0}, {}),
    "all_to_all": lambda: set_between({X: 0}, {X: 1}),
    "local_slice": lambda: set_between({}, {X: 1}),
    "two_axes": lambda: set_between({X: 0, Y: 1}, {X: 1}, mesh=GRID),
    "both_axes_move": lambda: set_between({X: 0, Y: 1}, {X: 1, Y: 0}, mesh=GRID),
    "broadcast": lambda: set_between({}, {}, to=OTHER),
    "gather": lambda: set_between({X: 0}, {}, to=OTHER),
    "scatter": lambda: set_between({}, {X: 0}, to=OTHER),
    "send_recv": lambda: set_between({X: 0}, {X: 0}, to=OTHER),
    "one_device": lambda: set_between({X: 0}, {}, mesh=DeviceMesh([0])),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_communications_are_those_of_explain(name):
    """Kind, mesh axis, team and bytes are the compiler's, as fd.explain() counts them itself."""
    fd = PROGRAMS[name]()
    want = [(c.kind, c.mesh_axis, len(c.team), c.bytes) for c in fd.explain().communications]
    cost = plan_costs(fd)
    found = [(c.kind, c.mesh_axis, c.team, c.bytes) for c in cost.communications]
    assert found == [entry for entry in want if entry[2] > 1]
    assert cost.bytes == fd.explain().bytes


def test_peak_memory_of_an_mlp():
    """Inputs, and the product of the last step with what it reads."""
    f, rows, h, d = 4, 8, 16, 4
    inputs = f * (rows * h + h * 4 * h // d + 4 * h // d + 4 * h * h // d + h)
    inner, outer = f * rows * 4 * h // d, f * rows * h
    assert inner == outer
    assert plan_costs(mlp(rows, h)).peak_memory == inputs + 2 * inner


def test_peak_memory_frees_at_the_last_use():
    with FusionDefinition() as fd:
        x = fd.define_tensor([100])
        y = fd.ops.exp(x)
        z = fd.ops.neg(fd.ops.neg(fd.ops.neg(y)))
        fd.add_output(fd.ops.add(y, z))
    # x, y, and two of the chain, or two and the result
    assert plan_costs(fd).peak_memory == 400 * 4


def test_peak_memory_of_views():
    """A view has no memory of its own, and keeps what it looks at."""
    with FusionDefinition() as fd:
        y = fd.ops.exp(fd.define_tensor([10, 10]))
        view = fd.ops.reshape(fd.ops.permute(y, [1, 0]), [100])
        fd.add_output(fd.ops.neg(fd.ops.permute(y, [1, 0])))
        fd.add_output(fd.ops.sum(view, [0]))
    assert plan_costs(fd).peak_memory == 400 * 3 + 4


def test_peak_memory_of_an_uneven_division():
    with FusionDefinition(uneven=True) as fd:
        x = fd.define_tensor([10])
        fd.add_output(fd.ops.neg(x))
        place(FOUR, x)
        shard(x, 0, 4)
    assert plan_costs(fd).peak_memory == 2 * 3 * 4  # the first devices have 3 elements


def test_another_mesh():
    fd = mlp(hidden=32)
    one, two = plan_costs(fd, mesh=2), plan_costs(fd, mesh=DeviceMesh(range(8)))
    assert (one.mesh, two.mesh, plan_costs(fd).mesh) == ((2,), (8,), (4,))
    assert two.peak_memory < plan_costs(fd).peak_memory < one.peak_memory
    assert one.bytes == 2 * 1 * (8 * 32 * 4) // 2


@pytest.mark.parametrize(
    "mesh", [[DeviceMesh(range(2))], [(2, 2)], "2x2", 2.0, True, b"2", bytearray(b"2")], ids=repr
)
def test_what_is_no_mesh(mesh):
    for call in (plan_costs, meshfuse.autoshard, FusionDefinition.check):
        with pytest.raises(TypeError) as caught:
            call(mlp(), mesh)
        assert str(caught.value) == (
            f"{call.__name__}: mesh is {mesh!r}, which is neither a mesh nor the shape of one. "
            "Give 1 to 3 sizes of at least 1, or a DeviceMesh. For several meshes, call it for "
            "each."
        )


@pytest.mark.parametrize("fd", [None, "fd", mlp().fusion], ids=["None", "text", "fusion"])
def test_what_is_no_definition(fd):
    for call in (plan_costs, meshfuse.autoshard):
        with pytest.raises(TypeError) as caught:
            call(fd, 2)
        assert str(caught.value) == (
            f"{call.__name__}: fd must be a FusionDefinition, but it is a {type(fd).__name__}."
        )


def test_dict_and_text():
    cost = plan_costs(mlp())
    facts = json.loads(json.dumps(cost.to_dict()))
    assert set(facts) == {
        *("mesh", "communications", "bytes", "peak_memory", "time_us"),
        *("computed", "repeated_over"),
    }
    assert facts["mesh"] == [4]
    assert [c["kind"] for c in facts["communications"]] == ["all-reduce"]
    assert "mesh 4" in str(cost)
    assert "1 all-reduce" in str(cost)


def test_work_that_is_repeated():
    """What is divided over x alone is computed by both rows of the mesh."""
    cost = plan_costs(set_between({X: 0}, {X: 0}, mesh=GRID))
    assert (cost.computed, cost.repeated_over) == (1.0, [])  # nothing is computed at all
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 16])
        fd.add_output(fd.ops.exp(x))
        place(GRID, x)
        shard(x, 0, 4)
    cost = plan_costs(fd)
    assert (cost.computed, cost.repeated_over) == (2.0, ["mesh_y"])
    assert "no operation is divided over mesh_y: the same is computed 2 times" in str(cost)
    assert plan_costs(fd, mesh=(1, 4)).repeated_over == []


def test_work_that_is_repeated_in_part():
    """One of two operations alike is whole on each of four devices."""
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([8, 16]), fd.define_tensor([2, 16])
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.neg(y))
        place(FOUR, x, y)
        shard(x, 0, 4)
    cost = plan_costs(fd)
    assert (cost.computed, cost.repeated_over) == (pytest.approx(2 / (1 + 1 / 4)), [])


def test_no_mesh():
    cost = plan_costs(mlp(divided=False))
    assert (cost.mesh, cost.communications, cost.bytes) == ((), [], 0)
    assert cost.time_us > 0


def symbolic():
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, 8])
        fd.add_output(fd.ops.matmul(x, w))
        place(FOUR, x, w)
        shard(x, 1, 4)
        shard(w, 0, 4)
    return fd


@pytest.mark.parametrize(
    "sizes", [{"T0": (4, 16)}, {"T0.0": 4, "T0.1": 16}, {"T0.0": 4, "T1": (16, 8)}]
)
def test_open_sizes(sizes):
    """Sizes that an operation needs to be equal to those that are given are found."""
    cost = plan_costs(symbolic(), sizes=sizes)
    assert cost.bytes == symbolic().explain(sizes={"T0": (4, 16)}).bytes
    assert cost.peak_memory == 4 * (4 * 4 + 4 * 8 + 2 * 4 * 8)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, r"depend on the size T\d\.\d, which the program leaves open. Pass sizes="),
        ({"T0": (4, 16), "T1": (12, 8)}, "16.*12"),
        ({"T7": (4,)}, "^plan_costs: sizes names 'T7'"),
        ({"T0.0": -1}, r"^plan_costs: sizes\['T0.0'\] is -1"),
    ],
)
def test_wrong_sizes(sizes, message):
    with pytest.raises(meshfuse.Error, match=message):
        plan_costs(symbolic(), sizes=sizes)


def test_sizes_that_cannot_be_divided():
    """Whether a communication needs the size or not."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        fd.add_output(fd.ops.neg(x))
        place(FOUR, x)
        shard(x, 1, 4)
    for caller, ask in (("plan_costs", plan_costs), ("explain", FusionDefinition.explain)):
        with pytest.raises(meshfuse.Error, match=f"^{caller}: axis 1 of T0 of size 6 is not divis"):
            ask(fd, sizes={"T0": (3, 6)})
    assert fd.explain(sizes={"T0.0": 3}).cost is None  # what is not given is not refused


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (3, r"axis 0 of T1, of which 16 elements are to be split, cannot be divided by 3"),
        (0, "0 is not the shape of a mesh"),
        (2**31, "mesh is 2147483648, and a mesh has at most 1048576 devices. Give sizes whose pro"),
        ((2**11, 2**10), r"mesh is \(2048, 1024\), and a mesh has at most 1048576 devices"),
        (10**30, "mesh is a size of 100 bits, and a mesh has at most 1048576 devices"),
        (10**9999, r"mesh is a size of \d+ bits, and a mesh has at most 1048576 devices"),
        (-(10**9999), r"a size of \d+ bits is not the shape of a mesh"),
        (range(10**30), "range.* is not the shape of a mesh"),
    ],
    ids=lambda value: str(value)[:30] if abs(getattr(value, "real", 0)) < 1e9 else "huge",
)
def test_wrong_meshes(mesh, message):
    """A message begins with the function that was called."""
    fd = set_between({}, {X: 0}, shape=(16, 8))
    with pytest.raises(meshfuse.Error, match=f"^plan_costs: {message}"):
        plan_costs(fd, mesh=mesh)
    with pytest.raises(meshfuse.Error, match=f"^autoshard: {message}"):
        meshfuse.autoshard(fd, mesh=mesh)


@pytest.mark.parametrize("kind", KINDS)
def test_time_grows_with_bytes_and_team(kind):
    link = Links.preset("sockets").inner
    for team in (2, 3, 4, 8, 64):
        times = [link.time_us(kind, team, n) for n in (0, 1, 1e3, 1e5, 1e7, 1e9)]
        assert times == sorted(times)
        assert times[0] > 0
    for n in (8.0, 1e4, 1e8):
        times = [link.time_us(kind, team, n) for team in range(1, 65)]
        assert times == sorted(times)
        assert times[0] == 0


def test_programs_take_longer_with_more_bytes():
    times = [plan_costs(mlp(rows=rows)).time_us for rows in (1, 8, 64, 512)]
    assert times == sorted(times)


def test_formulas():
    """Ring and trees of Thakur, Rabenseifner, Gropp 2005."""
    ways = {a.name: (a.messages, a.volume) for a in algorithms("all-reduce", 8, 1024)}
    assert ways["ring"] == (14, 2 * 7 / 8 * 1024)
    assert ways["Rabenseifner"] == (6, 2 * 7 / 8 * 1024)
    assert ways["recursive doubling"] == (3, 3 * 1024)


def test_teams_on_several_hosts_use_the_outer_link():
    device = Links.preset("nvlink").device
    links = Links(Link("in", Rate(1, 100)), device, Link("out", Rate(10, 1)), devices_per_host=4)
    times = [c.time_us for c in plan_costs(PROGRAMS["two_axes"](), links=links).communications]
    assert len(times) == 2
    slow, fast = max(times), min(times)  # over y, from host to host, and over x
    assert slow > 5 * fast


def test_links_as_json(tmp_path, monkeypatch):
    links = Links.preset("nvlink+infiniband")
    path = links.save(tmp_path / "deep" / "links.json")
    assert Links.load(path) == links
    monkeypatch.setenv("MESHFUSE_LINKS", str(path))
    assert plan_costs(mlp()) == plan_costs(mlp(), links=links)
    monkeypatch.setenv("MESHFUSE_LINKS", str(tmp_path / "none.json"))
    with pytest.raises(meshfuse.Error, match=r"cannot read .*none\.json.*measure_links"):
        plan_costs(mlp())


def test_links_in_the_cache_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MESHFUSE_LINKS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = plan_costs(mlp())
    assert before == plan_costs(mlp(), links="shared-memory")
    assert Links.preset("sockets").save() == tmp_path / "meshfuse" / "links.json"
    assert plan_costs(mlp()).time_us > before.time_us


def figures(**device):
    """What to_dict() returns, with other figures of the device."""
    facts = Links.preset("nvlink+infiniband").to_dict()
    return facts | {"device": facts["device"] | device}


def with_rate(**rate):
    return {"inner": GOOD | {"rate": GOOD["rate"] | rate}}


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inner": None}, "inner is None, not an object"),
        ({"inner": {}}, "inner.name is missing"),
        ({"device": {}}, "device.name is missing"),
        ({"device": []}, r"device is \[\], not an object"),
        ({"outer": 5}, "outer is 5, not an object"),
        (with_rate(gb_per_s=0), "inner.rate.gb_per_s is 0, not a number above 0"),
        (with_rate(gb_per_s="450"), "inner.rate.gb_per_s is '450', not a number above 0"),
        (with_rate(gb_per_s=NAN), "inner.rate.gb_per_s is nan, not a number above 0"),
        (with_rate(gb_per_s=INF), "inner.rate.gb_per_s is inf, not a number above 0"),
        (with_rate(gb_per_s=True), "inner.rate.gb_per_s is True, not a number above 0"),
        (
            with_rate(gb_per_s=-(10**9999)),
            r"gb_per_s is a number of \d+ bits, not a number above 0",
        ),
        (with_rate(alpha_us=-1), "inner.rate.alpha_us is -1, not a number of at least 0"),
        (with_rate(alpha_us=None), "inner.rate.alpha_us is None, not a number of at least 0"),
        (
            {"inner": GOOD | {"kinds": {"shout": GOOD["rate"]}}},
            "a name in inner.kinds is 'shout', not one of all-reduce",
        ),
        ({"inner": GOOD | {"kinds": {"gather": 3}}}, "inner.kinds.gather is 3, not an object"),
        ({"devices_per_host": 0}, "devices_per_host is 0, not a whole number from 1 to 1048576"),
        ({"devices_per_host": "8"}, "devices_per_host is '8', not a whole number"),
        ({"measured": 1}, "measured is 1, not true or false"),
        (figures(step_us="4"), "device.step_us is '4', not a number of at least 0"),
        (figures(half_size=-1.0), "device.half_size is -1.0, not a number of at least 0"),
        (figures(gflops={"f32": NAN}), "device.gflops.f32 is nan, not a number above 0"),
        (figures(memory_gb_per_s=0), "device.memory_gb_per_s is 0, not a number above 0"),
        (figures(name=7), "device.name is 7, not text"),
    ],
)
def test_wrong_links(change, message, tmp_path, monkeypatch):
    """In a dict, and in a file, which is named."""
    facts = Links.preset("sockets").to_dict() | change
    cure = r"\. Give what to_dict\(\) of Links returned, or measure again"
    with pytest.raises(meshfuse.Error, match=f"^Links: in the figures, .*{message}.*{cure}"):
        Links.from_dict(facts)
    if "bits" in message:  # JSON has no such numbers
        return
    path = tmp_path / "links.json"
    path.write_text(json.dumps(facts))
    monkeypatch.setenv("MESHFUSE_LINKS", str(path))
    with pytest.raises(meshfuse.Error, match=f"{message}.*The file is .*links.json"):
        plan_costs(mlp())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"all of it is \[1\], not an object"),
        ("[" * 100000, "Links: cannot read .*: maximum recursion depth"),
        ("{", "Links: cannot read .*: Expecting"),
        ("{}", "inner is missing"),
    ],
    ids=["list", "deep", "cut", "empty"],
)
def test_files_that_are_no_links(text, message, tmp_path, monkeypatch):
    """Also explain says why it has no time; where suggestions need it, that is an error."""
    path = tmp_path / "links.json"
    path.write_text(text)
    monkeypatch.setenv("MESHFUSE_LINKS", str(path))
    for call in (plan_costs, lambda fd: fd.explain(suggest=True)):
        with pytest.raises(meshfuse.Error, match=message):
            call(mlp())
    explained = mlp().explain()
    assert explained.cost is None
    assert f"not modelled: {explained.note}\n" in str(explained)
    assert explained.to_dict()["note"] == explained.note and "links.json" in explained.note


def test_links_that_are_made_wrong(tmp_path):
    links = Links(Link("l", Rate(1.0, float("nan"))), Links.preset("nvlink").device)
    for call in (lambda: plan_costs(mlp(), links=links), lambda: links.save(tmp_path / "l")):
        with pytest.raises(meshfuse.Error, match=r"inner\.rate\.gb_per_s is nan"):
            call()
    assert not (tmp_path / "l").exists()


def test_links_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MESHFUSE_LINKS", "~/links.json")
    assert Links.preset("sockets").save() == tmp_path / "links.json"
    assert plan_costs(mlp()) == plan_costs(mlp(), links="sockets")


def test_unknown_preset():
    with pytest.raises(meshfuse.Error, match=r"no figures are known for 'pigeons'\. Use one of"):
        plan_costs(mlp(), links="pigeons")
    with pytest.raises(meshfuse.Error, match=r"no figures are known for \[5\]\. Use one of"):
        plan_costs(mlp(), links=[5])


def test_text_of_links():
    text = str(Links.preset("nvlink"))
    assert "published" in text
    assert "450.00" in text


def test_arithmetic_and_memory_make_a_roofline():
    fast = Device("d", {"other": 1e9}, 1.0, 0.0, 0.0)
    slow = Device("d", {"other": 1.0}, 1e9, 0.0, 0.0)
    link = Link("l", Rate(0, 1e9))
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(fd.define_tensor([10, 20]), fd.define_tensor([20, 30])))
    bytes_moved, flops = 4 * (200 + 600 + 300), 2 * 10 * 20 * 30
    assert plan_costs(fd, links=Links(link, fast)).time_us == pytest.approx(bytes_moved / 1e3)
    assert plan_costs(fd, links=Links(link, slow)).time_us == pytest.approx(flops / 1e3)


@pytest.mark.parametrize("op", sorted(REGISTERED))
def test_every_op_has_a_cost(op):
    """Divided and whole; with the communications that fd.explain() counts."""
    for example in examples_of(op):
        for divided in (False, True):
            with FusionDefinition() as fd:
                tensors = [
                    fd.define_tensor(list(t.shape), dtype=dtype_of(t)) for t in example.tensors
                ]
                for out in example.call(fd.ops, tensors):
                    fd.add_output(out)
                for t in tensors:
                    place(FOUR, t)
                    if divided and t.ndim and str(t.shape()[0]) in ("4", "8", "12"):
                        shard(t, 0, 4)
            explained = fd.explain()
            assert explained.cost is not None, example.label
            assert explained.cost.time_us >= 0
            found = [(c.kind, c.bytes) for c in explained.cost.communications]
            assert found == [(c.kind, c.bytes) for c in explained.communications], example.label
