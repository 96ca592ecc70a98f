# SPDX-License-Identifier: BSD-3-Clause
"""Repro bundles: what they keep, when they are written, and what a replay finds."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from cli_programs import failed, ok, ok_json, run
from programs import X, place, ramp, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, explanation, failure, repro_on_failure
from meshfuse.repro_bundle import load_bundle, make_bundle, save_bundle
from meshfuse.repro_replay import replay
from meshfuse.testing.launcher import _ENVIRONMENT, find_mpirun

PAIR = DeviceMesh(range(2))


def row_parallel(k=-1, d=2, **options):
    with FusionDefinition(**options) as fd:
        x, w = fd.define_tensor([-1, k]), fd.define_tensor([k, 6])
        fd.add_output(fd.ops.matmul(x, w))
        place(DeviceMesh(range(d)), x, w)
        shard(x, 1, d)
        shard(w, 0, d)
    return fd


@pytest.fixture
def path(tmp_path):
    return tmp_path / "case.mfrepro"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of MESHFUSE_REPRO_DIR."""
    monkeypatch.setenv("MESHFUSE_REPRO_DIR", str(tmp_path / "made" / "when needed"))
    monkeypatch.setattr(repro_on_failure, "_written", 0)
    return tmp_path / "made" / "when needed"


def replayed(path):
    return replay(load_bundle(path))


# ---- what is kept


def test_contents(path, monkeypatch):
    """Everything but the elements; the program's options, which the text form leaves out."""
    monkeypatch.setenv("MESHFUSE_TIMEOUT", "30")
    fd = row_parallel(k=4, uneven=True, reduce_dtype=DataType.Double)
    fd.save_repro(path, [torch.randn(3, 4).t().contiguous().t(), torch.randn(4, 6)], seed=7)
    bundle = load_bundle(path)
    assert bundle.program == fd.ir()
    assert bundle.options == {"strict": False, "uneven": True, "reduce_dtype": "Double"}
    assert [(r.shape, r.strides, r.dtype, r.values) for r in bundle.inputs] == [
        ((3, 4), (1, 3), "float32", None),
        ((4, 6), (6, 1), "float32", None),
    ]
    assert bundle.environment["MESHFUSE_TIMEOUT"] == "30"
    assert set(bundle.environment) == {n for n in os.environ if n.startswith("MESHFUSE_")}
    assert bundle.seeds == {"torch": torch.initial_seed(), "inputs": 7}
    assert bundle.versions["torch"] == torch.__version__
    assert bundle.meshes == ["mesh(x=2)"] and bundle.error is None and bundle.messages == {}
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]+\+00:00", bundle.created)
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["bundle.json", "program.mf"]


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.int32, torch.bool, torch.complex64, torch.float8_e5m2],
    ids=str,
)
def test_values_come_back(path, dtype):
    """Bit by bit, in the strides that they had."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.set(fd.from_pytorch(torch.ones(4, 3).to(dtype).t())))
    given = ramp(4, 3).to(dtype).t()
    fd.save_repro(path, [given], values=True)
    from meshfuse.repro_replay import _make

    bundle = load_bundle(path)
    made = _make(bundle.inputs[0], (3, 4), bundle, 0)
    assert made.stride() == given.stride() and made.dtype == dtype
    assert torch.equal(made.contiguous().view(torch.uint8), given.contiguous().view(torch.uint8))
    assert replayed(path).kind == "equal"


def test_numbers_are_kept(path):
    with FusionDefinition() as fd:
        kinds = (DataType.Double, DataType.Int, DataType.Bool, DataType.ComplexDouble)
        for kind in (*kinds, DataType.Double):
            fd.add_output(fd.define_scalar(kind))
    values = [0.1, 2722423872872113, True, 1 + 2j, float("-inf")]
    fd.save_repro(path, values)
    assert [record.number() for record in load_bundle(path).inputs] == values


def test_class_style(path):
    class Neg(FusionDefinition):
        def definition(self):
            self.add_output(self.ops.neg(self.define_tensor([2, 3])))

    Neg().save_repro(path)
    assert replayed(path).kind == "equal"


def test_file_that_cannot_be_written(tmp_path):
    with pytest.raises(
        meshfuse.Error, match=r"save_repro: .*none/x cannot be written: No such file"
    ):
        row_parallel().save_repro(tmp_path / "none" / "x")


def test_sparse_inputs_are_refused(path):
    with pytest.raises(meshfuse.Error, match=r"input 0 is a torch.sparse_coo tensor. Give tensors"):
        row_parallel().save_repro(path, [torch.eye(2).to_sparse()])


# ---- replay


def test_replay_of_a_right_program(path):
    row_parallel().save_repro(path, [torch.randn(3, 4), torch.randn(4, 6)], values=True)
    assert str(replayed(path)) == (
        "replay: it runs on 2 simulated devices, and results equal those of the program alone"
    )


def test_replay_without_inputs(path):
    """Constant sizes are enough; open ones are not."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([4, 6], dtype=DataType.BFloat16)))
    fd.save_repro(path)
    assert replayed(path).kind == "equal"
    row_parallel().save_repro(path)
    with pytest.raises(
        meshfuse.Error, match="the bundle has no inputs, and the sizes of T0 are op"
    ):
        replayed(path)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.add(fd.define_tensor([2]), fd.define_scalar(DataType.Double)))
    fd.save_repro(path)
    with pytest.raises(meshfuse.Error, match="is a number that the program needs"):
        replayed(path)


def test_replay_of_indices(path):
    """Integers stay within those that were recorded, so that a gather is not out of range."""
    with FusionDefinition() as fd:
        x, index = fd.define_tensor([-1, 4]), fd.define_tensor([-1], dtype=DataType.Int)
        fd.add_output(fd.ops.index_select(x, index, 0))
    fd.save_repro(path, [torch.randn(3, 4), torch.tensor([0, 2, 1, 2, 0, 1, 1])])
    assert replayed(path).kind == "equal"


def test_replay_of_random_ops_is_seeded(path):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.rand_like(x))
        place(PAIR, x)
        shard(x, 0, 2)
    fd.save_repro(path)
    before = torch.get_rng_state()
    assert replayed(path).fine
    assert torch.equal(torch.get_rng_state(), before)


def test_replay_of_wrong_results(path, monkeypatch):
    from meshfuse import check_run

    row_parallel().save_repro(path, [torch.randn(3, 4), torch.randn(4, 6)])
    right = check_run.run_on_mesh
    monkeypatch.setattr(
        check_run, "run_on_mesh", lambda *a: [[r + 1 for r in row] for row in right(*a)]
    )
    result = replayed(path)
    assert result.kind == "differs" and not result.fine
    assert str(result).startswith(
        "replay: results on 2 simulated devices differ from those of the program alone\n"
        "  result 0 (T2) on device 0 is "
    )


def test_replay_of_a_program_without_a_form_alone(path):
    """The half of a reduction is shown: there is nothing to compare with."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        total = fd.ops.sum(x, [1])
        place(PAIR, x, total)
        shard(x, 1, 2)
        total.outer_split(1, 2)
        total.axis(1).parallelize(X)
        fd.add_output(total.rfactor([2]))
    fd.save_repro(path)
    result = replayed(path)
    assert result.kind == "runs"
    assert "results were not compared\n  The program has no form without a mesh" in str(result)


def test_replay_needs_memory(path):
    fd = row_parallel()
    fd.save_repro(path, [torch.empty(10**7, device="meta").expand(10**6, 10**7), torch.ones(2, 6)])
    with pytest.raises(meshfuse.Error, match=r"replay: inputs of 40000000000\d+ bytes on 2 simul"):
        replayed(path)


# ---- written on failure


def only_bundle(folder):
    (file,) = folder.iterdir()
    return file


def test_written_by_execute(folder):
    """With the message, which recurs; the exception says where, and is what it was."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(fd.define_tensor([-1, -1]), fd.define_tensor([-1, -1])))
    with pytest.raises(meshfuse.Error, match="axis 1 of T0 has size 2 but axis 0") as caught:
        fd.execute([torch.ones(4, 2), torch.ones(3, 8)])
    file = only_bundle(folder)
    assert caught.value.__notes__ == [f"repro bundle: {file}"]
    assert re.fullmatch(rf"rank0-.*-{os.getpid()}-\d+-Error.mfrepro", file.name)
    bundle = load_bundle(file)
    assert bundle.error.message == str(caught.value)
    assert bundle.messages == {"0": f"Error: {caught.value}"}
    result = replay(bundle)
    assert result.kind == "recurs"
    assert str(result).startswith(
        "replay: the recorded error recurs on 1 simulated device\n  recorded: Error: matmul: axis 1"
    )


def test_written_once_per_failure(folder):
    fd = row_parallel()
    for _ in range(2):
        with meshfuse.simulate(2) as sim, pytest.raises(meshfuse.Error):
            sim.execute(fd, [[torch.ones(3, 2), torch.ones(5, 6)]] * 2)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("fd", "parts", "message"),
    [
        (row_parallel(), [torch.ones(3, 2), torch.ones(5, 6)], "axis 1 of T0 has size"),
        (row_parallel(k=8), [torch.ones(3, 4), torch.ones(5, 6)], "its local size must be 4"),
        (row_parallel(), [torch.ones(3, 2)], "2"),
        (row_parallel(), [torch.ones(3), torch.ones(2, 6)], "to have 2 axes"),
        (row_parallel(), [torch.ones(3, 2), 3], "input 1"),
    ],
    ids=["sizes", "declared", "number", "ndim", "type"],
)
def test_parts_of_a_rank(folder, fd, parts, message):
    """Sizes are put together again; what does not fit is given as it was. Errors recur."""
    with meshfuse.simulate(2) as sim, pytest.raises(Exception, match=message):
        sim.execute(fd, [parts] * 2)
    bundle = load_bundle(only_bundle(folder))
    assert (bundle.parts, bundle.rank, bundle.backend) == ("rank", 0, "simulated")
    assert replay(bundle).kind == "recurs"


def test_error_that_does_not_recur(path):
    """A good program with a recorded failure: its rank's parts make the whole again."""
    fd = row_parallel(k=8)
    peer = failure.PeerError("PeerError: rank 1 failed")
    parts = [torch.randn(4, 3).t(), torch.randn(4, 6)]
    bundle = make_bundle(fd.fusion, parts, parts="rank", error=peer, place=(1, 2, "mpi"))
    save_bundle(bundle, path)
    result = replayed(path)
    assert (result.kind, result.fine) == ("equal", True)
    assert str(result) == (
        "replay: it runs on 2 simulated devices, and results equal those of the program alone; the "
        "recorded error does not recur\n  recorded: PeerError: PeerError: rank 1 failed"
    )


def test_another_error(path):
    bundle = make_bundle(
        row_parallel().fusion,
        [torch.ones(3, 5), torch.ones(5, 6)],
        error=meshfuse.InternalError("boom"),
    )
    save_bundle(bundle, path)
    result = replayed(path)
    assert result.kind == "other error" and not result.fine
    assert str(result).startswith(
        "replay: it fails on 2 simulated devices, but not with the recorded error\n"
        "  recorded: InternalError: boom\n  found: Error: "
    )


def test_uneven_programs(path):
    """The bundle says what the text form leaves out."""
    parts = [torch.randn(3, 4), torch.randn(4, 6)]
    for k in (8, 7):
        fd = row_parallel(k=k, uneven=True)
        save_bundle(make_bundle(fd.fusion, parts, parts="rank"), path)
        assert load_bundle(path).meshes == ["mesh(x=2)"]
        assert replayed(path).kind == "equal"


@pytest.mark.parametrize("call", ["compiled_ir", "explain"])
def test_internal_error_while_compiling(folder, monkeypatch, call):
    """Where nothing is executed; an Error of the user's writes none."""
    fd = row_parallel()
    fusion = fd._executor().fusion()

    class Broken:
        def fusion(self):
            return fusion

        def compiled_ir(self):
            raise meshfuse.InternalError("boom")

    def explain(*_):
        raise meshfuse.InternalError("boom")

    monkeypatch.setattr(fd, "_executor", Broken)
    monkeypatch.setattr(explanation, "explain", explain)
    with pytest.raises(meshfuse.InternalError, match="boom"):
        getattr(fd, call)()
    bundle = load_bundle(only_bundle(folder))
    assert (bundle.error.type, bundle.error.message) == ("InternalError", "boom")
    assert bundle.program == fusion.ir() and bundle.inputs is None


def test_internal_error_while_defining(folder):
    with pytest.raises(meshfuse.InternalError), FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([2])))
        raise meshfuse.InternalError("boom")
    bundle = load_bundle(only_bundle(folder))
    assert bundle.error.type == "InternalError" and bundle.program.endswith("return T1\n")


def test_nothing_is_written_without_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("MESHFUSE_REPRO_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(meshfuse.Error) as caught:
        row_parallel().execute([torch.ones(2)])
    assert not hasattr(caught.value, "__notes__") and list(tmp_path.iterdir()) == []


def test_failure_to_write_masks_nothing(tmp_path, monkeypatch, caplog):
    """The folder cannot be made; the error is the program's, and the log says the other."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MESHFUSE_REPRO_DIR", str(tmp_path / "file" / "folder"))
    with (
        caplog.at_level(logging.WARNING, "meshfuse"),
        pytest.raises(meshfuse.Error, match="input"),
    ):
        row_parallel().execute([torch.ones(2)])
    assert "MESHFUSE_REPRO_DIR: no repro bundle could be written: " in caplog.text


def test_folder_in_the_home_folder(folder, tmp_path, monkeypatch):
    """As a shell would expand it, which leaves ~ in a quoted word."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MESHFUSE_REPRO_DIR", "~/made/when needed")
    with pytest.raises(meshfuse.Error):
        row_parallel().execute([torch.ones(2)])
    assert load_bundle(only_bundle(folder)).error.type == "Error"


def test_program_that_cannot_be_printed(folder, monkeypatch, path):
    class Broken:
        strict = uneven = False
        reduce_dtype = DataType.Null

        def ir(self):
            raise meshfuse.InternalError("no text")

    save_bundle(make_bundle(Broken(), []), path)
    with pytest.raises(
        meshfuse.Error,
        match=r"the bundle has no program, since it could not be printed: InternalError: no text.",
    ):
        replayed(path)


def test_number_of_bundles_is_limited(folder, monkeypatch):
    monkeypatch.setattr(repro_on_failure, "MOST", 3)
    fd = row_parallel()
    for _ in range(5):
        with pytest.raises(meshfuse.Error):
            fd.execute([torch.ones(2)])
    assert len(list(folder.iterdir())) == 3


RANKS = """\
import sys, torch, meshfuse
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType
with FusionDefinition() as fd:
    x = fd.define_tensor([-1, 6])
    fd.add_output(fd.ops.sum(x, [0]))
    x.set_device_mesh(DeviceMesh(range(2)))
    x.outer_split(0, 2)
    x.axis(0).parallelize(ParallelType.mesh_x)
if Communicator.instance().rank() == 1:
    raise OSError("no weights")
fd.execute([torch.ones(4, 6)])
"""


def test_peer_error_of_a_rank(tmp_path):
    """The rank that waits writes a bundle with its own and the other rank's message."""
    script = tmp_path / "script.py"
    script.write_text(RANKS)
    environment = {**os.environ, "MESHFUSE_REPRO_DIR": str(tmp_path / "bundles")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    call = [find_mpirun(), "-np", "2", sys.executable, str(script)]
    result = subprocess.run(
        call, env=_ENVIRONMENT | environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode != 0
    bundle = load_bundle(only_bundle(tmp_path / "bundles"))
    assert (bundle.rank, bundle.size, bundle.error.type) == (0, 2, "PeerError")
    assert "PeerError" in bundle.messages["0"] and "no weights" in bundle.messages["1"]
    assert replay(bundle).kind == "equal"


# ---- files that are no bundles


def edited(path, **facts):
    """Write a good bundle with other facts."""
    row_parallel().save_repro(path, [torch.ones(2, 2), torch.ones(2, 6)], values=True)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    found = json.loads(members["bundle.json"]) | facts
    members["bundle.json"] = json.dumps(found).encode()
    return members


def packed(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


INPUT = dict(shape=[2], strides=[1], dtype="int64", device="cpu", values=None, span=None)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"format": "other"}, "bundle.json is not of the format meshfuse-repro"),
        ({"version": 9}, "has version 9 of the format, but this meshfuse reads version 1. Use the"),
        ({"parts": "all"}, "parts is 'all', not one of global, rank"),
        ({"inputs": 3}, "in bundle.json, inputs is 3, not a list of from 0 to 1048576 entries"),
        ({"inputs": [{"shape": [2]}]}, "inputs[0].strides is missing"),
        (
            {"inputs": [{"kind": "int", "value": "x"}]},
            "inputs[0].value is 'x', not of the kind int",
        ),
        ({"inputs": [{"kind": None, "value": "x"}]}, "inputs[0].kind is None, not one of bool, in"),
        ({"inputs": [{"kind": "bool", "value": "1"}]}, "value is '1', not one of True, False"),
        ({"version": [9], "versions": 3}, "has version [9] of the format"),
        ({"seeds": {"torch": 1e308}}, "seeds.torch is 1e+308, not a whole number from -92233"),
        ({"seeds": {"inputs": 1 << 64}}, "seeds.inputs is 18446744073709551616, not a whole"),
        ({"seeds": []}, "seeds is [], not an object"),
        ({"options": {"strict": 0}}, "options.strict is 0, not true or false"),
        ({"rank": True}, "rank is True, not a whole number from 0 to 1048575"),
        ({"created": None}, "created is None, not text"),
        ({"inputs": [{**INPUT, "span": []}]}, "inputs[0].span is [], not a list of 2 entries"),
        ({"inputs": [{**INPUT, "span": [2, 1]}]}, "span ends before it begins: [2, 1]"),
        (
            {"inputs": [{**INPUT, "strides": [1 << 62]}]},
            "inputs[0] of the shape [2] with the strides [4611686018427387904] is larger than any",
        ),
        ({"inputs": [{**INPUT, "shape": [1e308]}]}, "inputs[0].shape[0] is 1e+308, not a whole"),
        (
            {
                "inputs": [
                    dict(shape=[2], strides=[1], dtype="Tensor", device="", values=None, span=None)
                ]
            },
            "inputs[0].dtype is 'Tensor', not one of ",
        ),
        (
            {
                "inputs": [
                    dict(shape=[2], strides=[-1], dtype="int8", device="", values=None, span=None)
                ]
            },
            "inputs[0].strides[0] is -1, not a whole number from 0",
        ),
        (
            {
                "inputs": [
                    dict(shape=[2], strides=[1], dtype="int8", device="", values="/x", span=None)
                ]
            },
            "inputs[0].values is '/x', not the name of a member inputs/N.bin",
        ),
        (
            {
                "inputs": [
                    dict(
                        shape=[99],
                        strides=[1],
                        dtype="int8",
                        device="",
                        values="inputs/0.bin",
                        span=None,
                    )
                ]
            },
            "inputs/0.bin has 16 bytes, not 99 as its shape says",
        ),
        ({"error": {"type": "Error"}}, "in bundle.json, error.message is missing"),
    ],
    ids=str,
)
def test_wrong_facts(path, facts, message):
    packed(path, edited(path, **facts))
    with pytest.raises(meshfuse.Error) as caught:
        load_bundle(path)
    assert message in str(caught.value) and str(caught.value).startswith(f"replay: {path} ")


def test_damaged_files(path, tmp_path):
    members = edited(path)
    whole = path.read_bytes()
    for data, message in [
        (b"", "it is not a whole zip file"),
        (b"hello", "it is not a whole zip file"),
        (whole[:-100], "it is not a whole zip file"),
    ]:
        path.write_bytes(data)
        with pytest.raises(meshfuse.Error, match=message):
            load_bundle(path)
    flipped = bytearray(whole)
    at = whole.index(b"bundle.json") + 60
    flipped[at : at + 8] = b"\xff" * 8
    path.write_bytes(flipped)
    with pytest.raises(meshfuse.Error, match="is not a repro bundle that can be read"):
        load_bundle(path)
    for name, message in [
        ("bundle.json", "it has no bundle.json"),
        ("inputs/0.bin", "it has no in"),
    ]:
        packed(path, {k: v for k, v in members.items() if k != name})
        with pytest.raises(meshfuse.Error, match=message):
            load_bundle(path)
    packed(path, members | {"bundle.json": b"{"})
    with pytest.raises(meshfuse.Error, match=r"bundle.json is not JSON"):
        load_bundle(path)
    packed(path, members | {"bundle.json": b"[" * 100000})
    with pytest.raises(meshfuse.Error, match=r"bundle.json is not JSON: maximum recursion depth"):
        load_bundle(path)
    packed(path, members | {"program.mf": b"\xff\xfe"})
    with pytest.raises(meshfuse.Error, match=r"program.mf is not text"):
        load_bundle(path)
    packed(path, members | {"program.mf": b"hello"})
    with pytest.raises(
        meshfuse.Error, match="the bundle's program cannot be read: parseIr: line 1"
    ):
        replayed(path)
    with pytest.raises(meshfuse.Error, match="there is no file"):
        load_bundle(tmp_path / "none")
    with pytest.raises(meshfuse.Error, match="cannot be read: Is a directory"):
        load_bundle(tmp_path)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (6, 99, "it is not a whole zip file: zip file version 9.9"),
        (8, 1, "bundle.json is encrypted"),
        (10, 5, "bundle.json is compressed by the method 5"),
        (46, 255, "it is not a whole zip file: 'utf-8' codec can't decode byte 0xff"),
    ],
)
def test_zip_files_that_are_not_read(path, at, value, message):
    """Fields of the central directory that another tool, or damage, may have set."""
    edited(path)
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + at] = value
    if at == 46:
        data[entry + 9] = 8  # names are UTF-8
    path.write_bytes(data)
    with pytest.raises(meshfuse.Error, match=message):
        load_bundle(path)


def test_program_that_is_damaged(path):
    """What the bundle holds is shown all the same."""
    packed(path, edited(path) | {"program.mf": b"x: f32[i0{4} mesh(\nreturn"})
    assert load_bundle(path).meshes == []
    assert "x: f32[i0{4} mesh(" in ok("replay", path, "--show")
    assert failed("replay", path)[1].startswith("replay: the bundle's program cannot be read: par")


@pytest.mark.parametrize("name", ["__class__", "mro", "name", "colour"])
def test_reduce_dtype_that_is_none(path, name):
    options = {"strict": False, "uneven": False, "reduce_dtype": name}
    packed(path, edited(path, options=options))
    message = f"the bundle's reduce_dtype '{name}' is no type of meshfuse"
    with pytest.raises(meshfuse.Error, match=message):
        replayed(path)


@pytest.mark.parametrize("seed", [-(1 << 63), -1, 1 << 63, (1 << 64) - 1])
def test_seeds_at_the_ends(path, seed):
    """The second input has the seed behind it."""
    facts = {"seeds": {"torch": seed, "inputs": seed}}
    row_parallel().save_repro(path, [torch.ones(2, 2), torch.ones(2, 6)], seed=seed)
    assert replayed(path).kind == "equal"
    packed(path, edited(path, **facts))
    assert replayed(path).kind == "equal"


@pytest.mark.parametrize("seed", [1 << 64, -(1 << 63) - 1, 1.0, True, None])
def test_seeds_beyond_the_ends(path, seed):
    with pytest.raises(meshfuse.Error, match="save_repro: seed is not a whole number from -9223"):
        row_parallel().save_repro(path, seed=seed)
    assert not path.exists()


@pytest.mark.parametrize("dtype", ["quint8", "quint4x2", "bits8", "uint4"])
def test_types_of_which_torch_makes_no_values(path, dtype):
    packed(path, edited(path, inputs=[{**INPUT, "dtype": dtype}, INPUT]))
    with pytest.raises(
        meshfuse.Error, match=rf"replay: input 0, of torch\.{dtype}, cannot be made: "
    ):
        replayed(path)


def test_mesh_of_too_many_devices(path):
    program = (
        "T0: f32[i0{1048576}] { i1{1048576}@x, i2{1} = split i0 outer 1048576 } mesh(x=1048576)\n"
        "T1 = relu(T0): f32[i0{1048576}]\nreturn T1\n"
    )
    packed(path, edited(path, inputs=None) | {"program.mf": program.encode()})
    with pytest.raises(meshfuse.Error, match="on 1048576 devices, and 65536 are the most that a"):
        replayed(path)


@pytest.mark.parametrize("kind", ["conj", "neg", "transposed"])
def test_views_that_conjugate_or_negate(path, kind):
    """Their memory holds other elements than they have."""
    x = torch.randn(3, 4, dtype=torch.complex64)
    value = {"conj": x.conj(), "neg": x.conj().imag, "transposed": x.mH}[kind]
    assert value.is_conj() or value.is_neg()
    dtype = DataType.ComplexFloat if value.is_complex() else DataType.Float
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor(list(value.shape), dtype=dtype)))
    fd.save_repro(path, [value], values=True)
    kept = torch.frombuffer(bytearray(load_bundle(path).blobs["inputs/0.bin"]), dtype=value.dtype)
    assert torch.equal(kept.reshape(value.shape), value.resolve_conj().resolve_neg())
    assert replayed(path).kind == "equal"


def test_values_of_quantized_inputs(path):
    quantized = torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)
    with pytest.raises(meshfuse.Error, match=r"input 0 is quantized \(torch.qint8\), whose values"):
        row_parallel().save_repro(path, [quantized, torch.ones(2, 6)], values=True)


@pytest.mark.parametrize("given", [None, [{**INPUT, "shape": [1 << 59], "dtype": "float32"}]])
def test_inputs_larger_than_memory(path, given):
    """As the program declares them, and as they were recorded."""
    size = 99999999999 if given is None else 4
    program = f"x: f32[i0{{{size}}}, i1{{{size}}}]\nreturn x\n"
    packed(path, edited(path, inputs=given) | {"program.mf": program.encode()})
    with pytest.raises(meshfuse.Error, match=r"replay: inputs of \d+ bytes on 1 simulated device"):
        replayed(path)


def test_largest_integers(path):
    """The values of a replay are within the recorded ones, up to the last that can be drawn."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1], dtype=DataType.Int)))
    largest = (1 << 63) - 1
    fd.save_repro(path, [torch.tensor([largest, largest])])
    assert load_bundle(path).inputs[0].span == (largest, largest)
    assert replayed(path).kind == "equal"


def test_no_code_is_read(path):
    """Another zip file, such as one of torch.save, is refused by its contents."""
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    path.write_bytes(file.getvalue())
    with pytest.raises(meshfuse.Error, match=r"it has no bundle.json"):
        load_bundle(path)


# ---- the command


def test_replay_command(path):
    row_parallel().save_repro(path, [torch.randn(3, 4), torch.randn(4, 6)])
    assert "results equal those of the program alone" in ok("replay", path)
    assert ok_json("replay", path) == {
        "kind": "equal",
        "recurs": False,
        "recorded": None,
        "found": None,
        "detail": "",
        "devices": 2,
    }
    assert "T2 = matmul(T0, T1)" in ok("replay", path, "--show")
    assert ok_json("replay", path, "--show")["meshes"] == ["mesh(x=2)"]


def test_replay_command_where_an_error_recurs(folder):
    with meshfuse.simulate(2) as sim, pytest.raises(meshfuse.Error):
        sim.execute(row_parallel(), [[torch.ones(3, 2), torch.ones(5, 6)]] * 2)
    code, told = failed("replay", only_bundle(folder))
    assert code == 1 and told.startswith("replay: the recorded error recurs on 2 simulated devices")
    result = run("replay", only_bundle(folder), "--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["recurs"]


def test_replay_command_on_a_wrong_file(path):
    assert failed("replay", path) == (2, f"replay: there is no file {path}.")
