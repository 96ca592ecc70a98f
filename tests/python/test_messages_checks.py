# SPDX-License-Identifier: BSD-3-Clause
"""What ``fd.check``, replays, the planner and the start of ranks refuse, in which words."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch
from programs import X, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, process_group, repro_bundle
from meshfuse.planner import measure
from meshfuse.planner.links import Links
from meshfuse.program_text import parse
from meshfuse.python_values import ValueText
from meshfuse.repro_bundle import load_bundle
from meshfuse.repro_replay import replay

PAIR = DeviceMesh(range(2))


def half_of_a_sum(op=None):
    """A tensor that holds each device's part of a sum is read, or returned."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 4])
        out = fd.ops.sum(x, [0])
        place(PAIR, x, out)
        shard(x, 0, 2)
        out.outer_split(0, 2)
        half = out.rfactor([1])
        half.axis(0).parallelize(X)
        fd.add_output(half if op is None else getattr(fd.ops, op)(half))
        if op is not None:
            fd.add_output(out)
    return fd


def test_check_of_an_input_without_random_values():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4], dtype=DataType.Float8_e8m0fnu)
        fd.add_output(fd.ops.set(x))
        place(PAIR, x)
    message = (
        "check: input T0 is of type f8e8m0fnu, for which no random values can be made. Check the "
        "program with another type."
    )
    with pytest.raises(meshfuse.UnsupportedError, match=re.escape(message)):
        fd.check()


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("neg", "is the part of a reduction that an rfactor left to a device, and .* reads it"),
        (None, "check: the result T2 is the part of a reduction that an rfactor left to a device"),
    ],
)
def test_check_of_half_a_reduction(op, message):
    with pytest.raises(meshfuse.Error, match=message):
        half_of_a_sum(op).check()


def test_check_of_sizes_that_no_input_has():
    """The constants of the program need 15 elements; what is drawn has 0 to 5."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.reshape(fd.define_tensor([-1]), [3, 5]))
    message = (
        r"check: no inputs were found that the program accepts without a mesh: reshape: .*, the "
        r"result \[3, 5\]\. .* Make its sizes constants, or run it on inputs of your own\."
    )
    with pytest.raises(meshfuse.Error, match=message):
        fd.check()


def test_check_of_a_maximum_on_another_mesh():
    """The piece of a reduction that is not a sum cannot have another size."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 12])
        out = fd.ops.max(x, [1])
        fd.add_output(out)
        place(PAIR, x, out)
        shard(x, 1, 2)
        out.outer_split(-1, 2)
        out.rfactor([-1]).axis(-2).parallelize(X)
    message = (
        "check: the sizes of T1 = max(T2, dims=[1]) depend on the size of a mesh axis by an "
        "rfactor of T2, and only a sum over it can be carried over to another mesh. Use a "
        "program without that operation."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        fd.check(mesh=3)


def bundle(fd, path, **options):
    fd.save_repro(path, [torch.ones(2)], **options)
    return load_bundle(path)


def relu():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([2])))
    return fd


def test_replay_of_an_unknown_option(tmp_path):
    made = bundle(relu(), tmp_path / "case.mfrepro")
    made.options["reduce_dtype"] = "Quad"
    message = "replay: the bundle's reduce_dtype 'Quad' is no type of meshfuse."
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        replay(made)


def test_replay_of_an_input_of_another_kind(tmp_path):
    path = tmp_path / "case.mfrepro"
    relu().save_repro(path, ["x"])
    message = (
        "replay: input 0 was of type str, of which a bundle keeps nothing. Execute the program "
        "with tensors and numbers."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        replay(load_bundle(path))


def test_bundle_that_is_too_large(tmp_path, monkeypatch):
    path = tmp_path / "case.mfrepro"
    relu().save_repro(path, [torch.ones(2)])
    monkeypatch.setattr(repro_bundle, "_LARGEST_TEXT", 10)
    with pytest.raises(meshfuse.Error, match=r"can be read: bundle.json is larger than 0 MiB. "):
        load_bundle(path)


def test_links_of_a_wrong_file(tmp_path):
    path = tmp_path / "links.json"
    path.write_text(json.dumps({"inner": None}))
    with pytest.raises(meshfuse.Error, match=re.escape(f" The file is {path}.")):
        Links.load(path)


def test_ranks_that_cannot_be_started(monkeypatch):
    monkeypatch.setattr(measure.launchers, "find_mpirun", lambda: None)
    monkeypatch.setattr(sys, "executable", "/none/python")
    message = (
        "measure_links: 2 ranks could not be started by /none/python: .* Start this script by "
        "mpirun or torchrun, where measure_links uses the ranks that run."
    )
    with pytest.raises(meshfuse.Error, match=message):
        measure._started(2)


def test_port_that_is_no_number():
    with pytest.raises(meshfuse.Error) as caught:
        process_group._number("MESHFUSE_MASTER_PORT", "http")
    assert str(caught.value) == (
        'Communicator: MESHFUSE_MASTER_PORT is "http", which is not a port. Set it to a number.'
    )


SCRIPT = """
import torch.distributed as dist
import meshfuse
try:
    meshfuse.set_process_group(3)
except TypeError as error:
    print(error)
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
meshfuse.Communicator.instance()
try:
    meshfuse.set_process_group(dist.group.WORLD)
except meshfuse.Error as error:
    print(error)
"""


def test_process_group_that_comes_too_late():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == (
        "set_process_group: expected a ProcessGroup or a DeviceMesh of torch.distributed, got int"
    )
    assert second == (
        "set_process_group: the communicator of this process has started already, on backend "
        "c10d. Call set_process_group before that."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: f32[i0{4}\nreturn a", "program text: a bracket is not closed: "),
        ("a: f32[four]\nreturn a", "program text: not an axis: four"),
    ],
)
def test_program_text_that_is_not_the_printers(text, message):
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_scalar_that_is_not_the_printers():
    with pytest.raises(ValueError, match="program text: not a scalar: what"):
        ValueText({}).scalar("what")
