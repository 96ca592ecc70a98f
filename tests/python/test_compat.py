# SPDX-License-Identifier: BSD-3-Clause
"""Scripts that import nvfuser and nvfuser_direct, and hard-code CUDA, run unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest
import torch

import meshfuse
from meshfuse import compat
from meshfuse.compat import script_definition
from meshfuse.compat.__main__ import main

SCRIPTS = Path(__file__).with_name("compat_scripts")
needs_no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="is about the CPU")


@pytest.fixture
def clean():
    """Nothing of the alias packages is in sys.modules, before and after."""

    def forget():
        for name in list(sys.modules):
            if name.partition(".")[0] in ("nvfuser", "nvfuser_direct"):
                del sys.modules[name]

    forget()
    yield
    forget()
    meshfuse.FusionCache._instance = None


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.cpu_only("the scripts are redirected to the CPU")
@pytest.mark.parametrize("style", ["class", "direct"])
def test_script(style, clean, monkeypatch, capsys):
    """The scripts of either style run through the entry of ``python -m meshfuse.compat``."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    with compat.redirect_cuda_to_cpu():
        assert main([str(SCRIPTS / f"{style}_style.py"), "--size", "4"]) == 0
    assert capsys.readouterr().out.startswith(f"{style} style: done")


@needs_no_cuda
def test_command():
    """The command passes arguments on, puts the script's folder first, and redirects CUDA."""
    run = subprocess.run(
        [sys.executable, "-m", "meshfuse.compat", "--mf-cpu", "direct_style.py", "-x", "--mf-cpu"],
        cwd=SCRIPTS,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "direct style: done -x --mf-cpu\n"), run.stderr
    assert "CUDA calls go to the CPU" in run.stderr


@pytest.mark.parametrize("arguments", [[], ["--mf-cpu"], ["-x"], ["missing.py"]], ids=str)
def test_wrong_command(arguments, capsys):
    assert main(arguments) == 2
    assert "meshfuse.compat" in capsys.readouterr().err


def test_help(capsys):
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: python -m meshfuse.compat")


@needs_no_cuda
def test_pytest_plugin(tmp_path):
    """A suite passes with the plugin and --mf-cpu; the header says that CUDA is redirected."""
    shutil.copy(SCRIPTS / "suite.py", tmp_path / "test_suite.py")
    options = ["-p", "meshfuse.compat.pytest_plugin", "-p", "no:cacheprovider", "--mf-cpu"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "."],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout and "meshfuse: CUDA calls go to the CPU" in run.stdout


def test_import_forms(clean):
    compat.install()
    compat.install()  # a second time changes nothing
    import nvfuser
    import nvfuser.contrib.nn.normalization
    import nvfuser_direct
    from nvfuser import FusionCache, Tensor, compute_contiguity
    from nvfuser.nvfuser_version import Version
    from nvfuser_direct import TensorView
    from nvfuser_direct.multidevice import DeviceMesh
    from nvfuser_direct.nvfuser_direct_version import Version as DirectVersion
    from nvfuser_direct.ops import relu

    assert nvfuser is meshfuse.compat.nvfuser and Version is DirectVersion
    assert Tensor is TensorView is meshfuse.TensorView and DeviceMesh is meshfuse.DeviceMesh
    assert relu is meshfuse.ops.relu and FusionCache is meshfuse.FusionCache
    assert compute_contiguity is meshfuse.compute_contiguity
    assert nvfuser.FusionDefinition._api_name == "nvfuser"
    assert nvfuser_direct.FusionDefinition._api_name == "nvfuser_direct"
    assert not hasattr(nvfuser_direct, "FusionCache") and not hasattr(nvfuser, "TensorView")
    for package in (nvfuser, nvfuser_direct):
        for name in package.__all__:
            assert hasattr(package, name), name


def test_foreign_package_is_refused(clean):
    sys.modules["nvfuser"] = types.ModuleType("nvfuser")
    sys.modules["nvfuser.pytorch_utils"] = types.ModuleType("nvfuser.pytorch_utils")
    with pytest.raises(ImportError, match="another 'nvfuser' is loaded already"):
        compat.install()
    assert "nvfuser_direct" not in sys.modules
    compat.install(overwrite=True)
    assert sys.modules["nvfuser"] is meshfuse.compat.nvfuser
    assert sys.modules["nvfuser.pytorch_utils"] is meshfuse.pytorch_utils


def test_warning_beside_a_foreign_package(clean, monkeypatch):
    """Importing the direct package warns where nvfuser is another one, and only there."""
    name = "meshfuse.compat.nvfuser_direct"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        __import__(name)
    monkeypatch.delitem(sys.modules, name)
    sys.modules["nvfuser"] = types.ModuleType("nvfuser")
    with pytest.warns(UserWarning, match="nvfuser is another package"):
        __import__(name)


def test_class_style_definitions_have_a_limit(clean):
    compat.install()
    import nvfuser
    import nvfuser_direct

    def chain(cls, length):
        with cls() as fd:
            x = fd.define_tensor([2])
            for _ in range(length):
                x = fd.ops.neg(x)
            fd.add_output(x)

    with pytest.raises(RuntimeError, match="limit given as max_length"):
        chain(nvfuser.FusionDefinition, 1024)
    chain(nvfuser_direct.FusionDefinition, 1024)


@needs_no_cuda
def test_redirection():
    """CUDA devices of functions, methods and modules are the CPU, until the end of the block."""
    device = torch.device("cuda:1")
    with meshfuse.testing.redirect_cuda_to_cpu() as redirection:
        tensors = [
            torch.zeros(2, device="cuda"),
            torch.testing.make_tensor((2,), dtype=torch.float32, device=device),
            torch.ones(2).to(device),
            torch.ones(2).to("cuda:3", torch.float64),
            torch.ones(2).cuda(1),
            torch.empty(2, pin_memory=True).pin_memory(),
            torch.rand(2, generator=torch.Generator(device="cuda"), device="cuda"),
            torch.nn.Linear(2, 2).cuda().weight,
            torch.nn.Linear(2, 2, device="cuda").bias,
        ]
        assert isinstance(torch.default_generator, torch.Generator)
        with torch.device("cuda"):
            tensors.append(torch.arange(3))
        torch.cuda.set_device(0)
        torch.cuda.synchronize()
        assert torch.cuda.current_device() == 0
        with meshfuse.FusionDefinition() as fd:
            fd.add_output(fd.ops.neg(fd.define_tensor([2])))
        (out,) = fd.execute([torch.ones(2)], device="cuda:0")
        assert {t.device.type for t in [*tensors, out]} == {"cpu"}
    redirection.stop()  # a second time changes nothing
    with pytest.raises((RuntimeError, AssertionError)):
        torch.zeros(2, device="cuda")
    with pytest.raises(RuntimeError, match="Inputs are not all on the same device"):
        fd.execute([torch.ones(2)], device="cuda:0")


class _Negation(script_definition.ClassStyleDefinition):
    def definition(self):
        self.texts = []
        x = self.define_tensor([2, -1])
        for tensor in (x, self.ops.neg(x)):
            self.texts.append(repr(tensor))
        self.add_output(tensor)


def test_tensors_of_class_style_programs_print_as_in_nvfuser(clean):
    """Those of other programs print their axes, as before."""
    with script_definition.ClassStyleDefinition() as fd:
        x = fd.define_tensor([2, -1])
        assert [repr(x), repr(fd.ops.sum(x, 0))] == [
            "Tensor(index=0, ndim=2)",
            "Tensor(index=1, ndim=1)",
        ]
        assert str(x) == "T0_g_float[iS0{2}, iS1{i0}]"
    negation = _Negation()
    negation.execute([torch.ones(2, 3)])
    assert negation.texts == ["Tensor(index=0, ndim=2)", "Tensor(index=1, ndim=2)"]
    for cls in (meshfuse.FusionDefinition, script_definition.DirectStyleDefinition):
        with cls() as fd:
            assert repr(fd.define_tensor([2])) == "T0_g_float[iS0{2}]"
