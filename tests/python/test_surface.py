# SPDX-License-Identifier: BSD-3-Clause
"""Names that scripts use beside defining and executing: scripts, caches, copies, comparisons."""

from __future__ import annotations

import json

import pytest
import torch

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionCache, FusionDefinition, LRUCache, ParallelType


def program(n=4, op="relu"):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, n])
        fd.add_output(getattr(fd.ops, op)(x))
    return fd


@pytest.fixture
def counted():
    """The cache of the process, empty, and switched off afterwards."""
    cache = FusionCache.get(max_fusions=3)
    yield cache
    FusionCache._instance = None


# ---- scripts


def run_script(text):
    names = {}
    exec(text, names)
    return names


INPUTS = [
    torch.randn(2, 4),
    torch.randn(4, 2).t(),
    torch.randn(2, 1).expand(2, 4),
    torch.randint(0, 5, (4, 2)).t(),
    torch.ones(4, 2, dtype=torch.bool).t(),
    torch.randn(4, 2, dtype=torch.complex64).t(),
    torch.randn(8, 2).to(torch.float8_e4m3fn)[::2].t(),
]


@pytest.mark.parametrize("tensor", INPUTS, ids=lambda x: f"{x.dtype}-{x.stride()}")
def test_repro_script_makes_inputs_of_the_same_kind(tensor):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.set(fd.from_pytorch(tensor)))
    (made,) = run_script(fd.repro_script_for([tensor]))["inputs"]
    assert (made.shape, made.dtype, made.stride()) == (tensor.shape, tensor.dtype, tensor.stride())


def test_repro_script_has_numbers_literally():
    with FusionDefinition() as fd:
        kinds = (DataType.Double, DataType.Int, DataType.Bool, DataType.ComplexDouble)
        for dtype in (*kinds, DataType.Double):
            fd.add_output(fd.define_scalar(dtype))
    values = [0.1, 2722423872872113, True, 1 + 2j, float("inf")]
    assert run_script(fd.repro_script_for(values))["inputs"] == values


def test_last_repro_script():
    """Saved kinds of inputs, lists flattened; without them an AssertionError."""
    fd = program()
    with pytest.raises(AssertionError, match=r"cannot provide a repro because fd.execute"):
        fd.last_repro_script()
    fd.execute([[torch.randn(3, 4)]], save_repro_inputs=True)
    text = fd.last_repro_script()
    assert text.startswith("# CUDA devices:\n")
    assert f"# torch version: {torch.__version__}" in text
    assert "from meshfuse import FusionDefinition, DataType" in text
    assert text.rstrip().endswith("fd.execute(inputs)")
    assert run_script(text)["inputs"][0].shape == (3, 4)


def test_repro_script_keeps_settings():
    with FusionDefinition(uneven=True, reduce_dtype=DataType.Float) as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([3])))
    text = fd.repro_script_for()
    assert "FusionDefinition(uneven=True, reduce_dtype=DataType.Float)" in text
    assert "inputs" not in text and run_script(text)["fd"].fusion.uneven


def test_print_repro(capsys):
    fd = program()
    fd.execute([torch.randn(3, 4)], print_repro=True)
    here = torch.ones(1).device
    assert f"make_tensor((3, 4), dtype=torch.float32, device='{here}')" in capsys.readouterr().out


def test_failure_is_logged_with_a_script(caplog):
    fd = program()
    with pytest.raises(RuntimeError):
        fd.execute([torch.randn(3, 5)])
    assert "def nvfuser_fusion" in caplog.text and "make_tensor((3, 5)" in caplog.text


def test_debug_output(monkeypatch, capsys):
    fd = program()
    assert fd.debug_output() is None
    monkeypatch.setenv("MESHFUSE_DUMP", "fusion_ir_math,python_definition,fusion_args")
    fd.execute([torch.randn(3, 4)], capture_debug_output=True)
    assert "%kernel_math" in fd.debug_output() and "def nvfuser_fusion" in fd.debug_output()
    assert "make_tensor((3, 4)" in fd.debug_output()
    assert capsys.readouterr().out == ""


def test_debug_output_has_the_dumps_of_passes(monkeypatch, capfd):
    """They are kept at every call, also of a program that was compiled before."""
    monkeypatch.setenv("MESHFUSE_DUMP", "before:expand-fused,after:propagate-sharding,fusion_ir")
    fd = program()
    for _ in range(2):
        fd.execute([torch.randn(3, 4)], capture_debug_output=True)
        text = fd.debug_output()
        after, before = text.index("// after:propagate"), text.index("// before:expand-fused\n")
        assert after < before < len(text) - len(fd.ir()) - 1
        assert text.endswith(fd.ir() + "\n")
    assert capfd.readouterr().err.count("// after:propagate-sharding\n") == 1


# ---- records


def test_records_share_one_counter(monkeypatch):
    monkeypatch.setattr(FusionCache, "_instance", None)  # it would number the definitions
    with FusionDefinition(id=7) as fd:
        x, y = fd.define_tensor([2, 3]), fd.define_tensor([2, 3])
        fd.add_output(fd.ops.add(x, y))
    assert (fd.inputs(), fd.outputs(), fd.extents()) == ([0, 1], [2], [-1, -2, -3, -4])
    assert fd.id() == 7
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([2]), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(x, s))
    assert (fd.inputs(), fd.outputs(), fd.id()) == ([0, 1], [2], None)


def test_segment_has_no_parts():
    fd = program()
    assert fd.segment([torch.randn(2, 4)]) == [] and fd.segments == []
    assert fd.execute([-torch.ones(2, 4)])[0].sum() == 0


# ---- comparison


def test_validate():
    """Results are returned; wrong references are told."""
    x = torch.randn(3, 4)
    with FusionDefinition() as fd:
        a = fd.define_tensor([-1, 4])
        fd.add_output(fd.ops.sum(fd.ops.relu(a), dims=[0]))
    (out,) = fd.validate([x])
    torch.testing.assert_close(out, x.relu().sum(0))
    fd.validate([x], [x.relu().sum(0)])
    with pytest.raises(AssertionError, match="output 0 is not its reference"):
        fd.validate([x], [x.relu().sum(0) + 1])
    with pytest.raises(AssertionError, match="there are 1 outputs, but 0 references"):
        fd.validate([x], [])
    meshfuse.validate_with_auto_inferred_outputs(fd.fusion, [out], [x])
    with pytest.raises(AssertionError):
        meshfuse.validate_with_auto_inferred_outputs(fd.fusion, [out + 1], [x])


def test_validate_of_parts_needs_references():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.neg(x))
        x.set_device_mesh(DeviceMesh([0, 1]))
        x.outer_split(0, 2).axis(0).parallelize(ParallelType.mesh_x)
    with pytest.raises(meshfuse.Error, match="Give reference_outputs"):
        meshfuse.validate_with_auto_inferred_outputs(fd.fusion, [torch.ones(2)], [torch.ones(2)])


def test_tolerances_follow_type_and_reductions():
    def of(dtype, n, op):
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1], dtype=dtype)
            fd.add_output(op(fd, x))
        return fd.getValTolerances([torch.ones(n)])

    negate, total = (lambda fd, x: fd.ops.neg(x)), (lambda fd, x: fd.ops.sum(x))
    ((single, _),) = of(DataType.Float, 100, negate)
    ((half, _),) = of(DataType.Half, 100, negate)
    ((summed, relative),) = of(DataType.Float, 10000, total)
    assert 0 < single < summed < half and relative == summed
    assert of(DataType.Int, 100, total) == [(0.0, 0.0)]


# ---- copies


def test_clone():
    fd, new, opened = program(), FusionDefinition(), FusionDefinition()
    meshfuse.clone(fd, new)
    with opened:
        meshfuse.clone(fd, opened)
    assert new.fusion == fd.fusion == opened.fusion and new.fusion is not fd.fusion
    assert new.execute([-torch.ones(2, 4)])[0].sum() == 0
    with pytest.raises(meshfuse.Error, match="complete already"):
        meshfuse.clone(fd, new)
    with pytest.raises(meshfuse.Error, match="first definition is not defined"):
        meshfuse.clone(FusionDefinition(), FusionDefinition())


# ---- caches


def test_fusion_cache_counts_equal_definitions(counted, tmp_path):
    assert counted is FusionCache.get() and counted.stats() == "Total Fusions: 0\n"
    ids = [program(op=op).id() for op in ("neg", "exp", "neg", "neg")]
    assert ids == [0, 1, 0, 0] and counted.num_fusions() == 2
    with pytest.raises(ZeroDivisionError), FusionDefinition() as fd:
        fd.define_tensor([9])
        raise ZeroDivisionError
    assert counted.num_fusions() == 2
    text = (
        "Total Fusions: 2\nCache Hits by Fusion Id:\n\t0 -> 2 hits\n\t1 -> 0 hits\n"
        "Cache Lookups: 4 Cache Hits: 2 Hit Rate: 50%\n"
    )
    assert counted.stats() == repr(counted) == text
    counted.serialize(tmp_path / "fusions")
    counted.reset()
    assert counted.num_fusions() == 0
    counted.deserialize(tmp_path / "fusions")
    assert counted.stats() == text and program(op="exp").id() == 1


def test_fusion_cache_refuses(counted, tmp_path):
    for op in ("neg", "exp", "abs"):
        program(op=op)
    with pytest.raises(meshfuse.Error, match="more than 3 different definitions"):
        program(op="sin")
    for content in ("no json", json.dumps({"format": "other"}), json.dumps([])):
        (tmp_path / "file").write_text(content)
        with pytest.raises(meshfuse.Error, match="was not written by FusionCache"):
            counted.deserialize(tmp_path / "file")


def test_fusion_cache_is_off_until_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(FusionCache, "_instance", None)
    assert program().id() is None
    assert FusionCache.note(program().fusion) is None


def test_lru_cache_stats_text():
    cache = LRUCache(10)
    assert cache.stats() == "Max Fusions Allowed: 10\nThe fusion cache is empty.\n"
    for _ in range(5):
        first = cache.cache_compile(program(op="neg").fusion)
        assert first is not cache.cache_compile(program(op="exp").fusion)
    assert cache.num_fusions() == 2
    assert cache.stats() == (
        "Max Fusions Allowed: 10\nTotal Fusions in Cache: 2\nTotal Unique Fusions Compiled: 2\n"
        "Cache Hits by LRU ordering:\n\t0 -> 4 hits\n\t1 -> 4 hits\nCache Lookups: 10\n"
        "Cache Hits: 8\nHit Rate: 80%\n"
    )


def test_lru_cache_drops_the_least_recently_used():
    cache = LRUCache(max_fusions=2)
    kept, dropped = (cache.cache_compile(program(op=op).fusion) for op in ("neg", "exp"))
    assert cache.cache_compile(program(op="neg").fusion) is kept
    cache.cache_compile(program(op="abs").fusion)
    assert cache.cache_compile(program(op="neg").fusion) is kept and cache.num_fusions() == 2
    assert cache.cache_compile(program(op="exp").fusion) is not dropped
    with pytest.raises(meshfuse.Error, match="max_fusions is 0"):
        LRUCache(0)


def test_lru_cache_tells_orders_of_inputs_apart():
    def subtract(swap):
        with FusionDefinition() as fd:
            x, y = fd.define_tensor([2]), fd.define_tensor([2])
            fd.add_output(fd.ops.sub(y, x) if swap else fd.ops.sub(x, y))
        return fd.fusion

    cache = LRUCache(4)
    assert cache.cache_compile(subtract(False)) is not cache.cache_compile(subtract(True))


def test_executor_from_a_cache():
    """A definition runs with the executor set as fec, also when its own program is deleted."""
    cache = LRUCache(4)
    for _ in range(2):
        fd = program()
        fd.fec = cache.cache_compile(fd.fusion)
        del fd._fusion
        assert fd.execute([-torch.ones(2, 4)])[0].sum() == 0
        assert fd.fusion is not None and "tv1 = fd.ops.relu(tv0)" in repr(fd)
    assert fd.fec.stats()["runs"] == 2 and fd.fec.stats()["compiles"] == 1


def test_lru_fusion_cache_decorator():
    @meshfuse.LruFusionCache(max_fusions=10)
    def make(op):
        return program(op=op)

    assert make.stats() == "Max Fusions Allowed: 10\nThe fusion cache is empty.\n"
    for _ in range(5):
        for op in ("neg", "exp"):
            torch.testing.assert_close(
                make(op).execute([torch.ones(2, 4)])[0], getattr(torch, op)(torch.ones(2, 4))
            )
    assert make.num_fusions() == 2 and "Hit Rate: 80%" in make.stats()

    @meshfuse.LruFusionCache()
    def nothing():
        return None

    with pytest.raises(meshfuse.Error, match="nothing returned NoneType"):
        nothing()


# ---- others


def test_multi_device_executor():
    from meshfuse.multidevice import MultiDeviceExecutor, MultiDeviceExecutorParams

    params = MultiDeviceExecutorParams()
    params.backend_type = meshfuse.CommunicatorBackend.nccl  # one process: there is no backend
    params.number_of_streams, params.use_allocation_cache = 2, True
    executor = MultiDeviceExecutor(program().fusion, params)
    assert "relu" in str(executor)
    assert executor.run([-torch.ones(2, 4)])[0].sum() == 0
    assert "relu" in str(executor)
    with meshfuse.simulate(2), pytest.raises(meshfuse.Error):
        executor.run([torch.ones(2, 5)])


@pytest.mark.parametrize(
    "name",
    "LaunchParams CompileParams HeuristicParams PointwiseParams ReductionParams MatmulParams "
    "SchedulerHyperParameters KernelExecutor".split(),
)
def test_cuda_only_classes(name):
    with pytest.raises(meshfuse.UnsupportedError, match=f"{name} controls a generated CUDA"):
        getattr(meshfuse, name)(1, two=2)


def test_cuda_only_modules():
    import meshfuse.contrib.nn.normalization
    from meshfuse import contrib, idm, nvf_cutlass, ops, schedule

    for call in (
        contrib.nn.InstanceNorm2dNVFuser,
        idm.IdModel,
        nvf_cutlass.nvfp4_scaled_mm,
        ops.scaled_mm,
        FusionDefinition().ops.nv_block_quantize,
        schedule.inline_most,
        schedule.inline_at,
    ):
        with pytest.raises(meshfuse.UnsupportedError, match=r"\."):
            call()
    assert "Not supported" in schedule.schedule.__doc__


def test_kinds_of_operations():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        y = fd.ops.broadcast(x, [True, False])
        fd.add_output(y)
    assert isinstance(y.definition(), meshfuse.BroadcastOp)
    assert not isinstance(y.definition(), meshfuse.ReshapeOp)
    assert not isinstance("broadcast", meshfuse.BroadcastOp) and x.definition() is None


def test_definition_of_an_axis():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.neg(x))
        whole = x.axis(1)
        x.inner_split(1, 3)
        split = x.axis(2).definition()
        x.merge(0, 1)
    assert isinstance(split, meshfuse.Split) and split.input(0) == whole
    assert split.output(1) == x.axis(1) and len(split.outputs()) == 2
    merge = x.axis(0).definition()
    assert isinstance(merge, meshfuse.Merge) and len(merge.inputs()) == 2
    assert str(merge).startswith("Merge: ") and whole.definition() is None
    with pytest.raises(IndexError, match="there are 1 axes"):
        merge.output(1)


def test_automatic_serialization_does_nothing():
    meshfuse.enable_automatic_serialization()
    meshfuse.disable_automatic_serialization()
    assert meshfuse.serialize() is None
