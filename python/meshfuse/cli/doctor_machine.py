# SPDX-License-Identifier: BSD-3-Clause
"""Checks of this machine: torch and the extension, cores and threads, shared memory, GPUs."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import torch

from .. import _C
from ..launchers import run_quietly
from ..package_version import version
from .finding import Finding

_REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps meshfuse"
SHM = Path("/dev/shm")
_LEAST_SHM = 256 << 20  # messages between ranks of one node lie there; containers have 64 MiB


def check_torch() -> list[Finding]:
    """Compare torch with the one that the extension was built with, and run a program."""
    built, running = _C.torch_version, torch.__version__
    abi = "new" if torch.compiled_with_cxx11_abi() else "old"
    fact = f"torch {running} ({abi} C++ ABI); the extension, built with {built}, loads"
    found = [Finding("torch", "ok", fact)]
    if built.split("+")[0] != running.split("+")[0]:
        fact = f"torch {running}, but the extension was built with {built}"
        found = [Finding("torch", "warning", fact, f"build it again: {_REBUILD}")]
    if _C.__version__ != str(version()):
        fact = f"the package is {version()}, but its extension {_C.__version__}"
        found.append(Finding("package", "failed", fact, f"build it again: {_REBUILD}"))
    return [*found, _small_program()]


def _small_program() -> Finding:
    from .doctor_program import product_on_simulated_mesh

    try:
        worst = product_on_simulated_mesh()
    except Exception as error:
        fact = f"a product on two simulated devices raises {type(error).__name__}: {error}"
        return Finding("program", "failed", fact, f"build it again: {_REBUILD}")
    if worst > 1e-4:
        fact = f"a product on two simulated devices differs by {worst:.3g} from torch's"
        return Finding("program", "failed", fact, f"build it again: {_REBUILD}")
    return Finding("program", "ok", "a product on two simulated devices equals torch's")


def check_threads() -> list[Finding]:
    """Compare threads with the cores that this process may use."""
    cores, threads = usable_cores(), torch.get_num_threads()
    fact = f"{threads} threads on {cores:g} cores"
    given = {n: os.environ[n] for n in ("OMP_NUM_THREADS", "MKL_NUM_THREADS") if os.environ.get(n)}
    if given:
        fact += " (" + ", ".join(f"{name}={value}" for name, value in given.items()) + ")"
    found = []
    for name, value in given.items():
        if not value.isdigit() or int(value) < 1:
            wrong = f'{name}="{value}" is not a positive integer'
            found.append(Finding("threads", "failed", wrong, f"export {name}={max(1, int(cores))}"))
    if threads > cores:
        share = max(1, int(cores))
        cure = f"export OMP_NUM_THREADS={share}; for n ranks, {share} divided by n"
        found.append(Finding("threads", "warning", fact, cure))
    for name in ("OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        value = os.environ.get(name, "")
        if value and value.lower() not in ("false", "none", "disabled"):
            bound = f"{name}={value} binds the threads of every rank to the same cores"
            found.append(Finding("threads", "warning", bound, f"unset {name}"))
    return found or [Finding("threads", "ok", fact)]


def usable_cores() -> float:
    """Return the number of cores that this process may use, by affinity and by its cgroup."""
    cores = float(len(os.sched_getaffinity(0)))
    quota = Path("/sys/fs/cgroup/cpu.max")
    try:
        limit, period = quota.read_text().split()
        return min(cores, int(limit) / int(period)) if limit != "max" else cores
    except (OSError, ValueError):
        return cores


def check_shared_memory() -> list[Finding]:
    """Write a file into shared memory, and look how much there is."""
    if not SHM.is_dir():
        fact = f"there is no {SHM}, through which ranks of one node send"
        return [Finding("shared memory", "failed", fact, f"mount -t tmpfs tmpfs {SHM}")]
    try:
        with tempfile.TemporaryFile(dir=SHM) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        fact = f"{SHM} cannot be written to: {error.strerror}"
        cure = f"free space in {SHM} (ls -l {SHM}), or chmod 1777 {SHM}"
        return [Finding("shared memory", "failed", fact, cure)]
    usage = shutil.disk_usage(SHM)
    fact = f"{SHM} has {usage.free >> 20} MiB free of {usage.total >> 20} MiB"
    if usage.free < _LEAST_SHM:
        cure = f"mount -o remount,size=1G {SHM}, or start the container with --shm-size=1g"
        return [Finding("shared memory", "warning", fact, cure)]
    return [Finding("shared memory", "ok", fact)]


def check_gpus() -> list[Finding]:
    """Look at GPUs, their compute mode, and NCCL."""
    if torch.version.cuda is None:
        return [Finding("GPUs", "skipped", "this torch is built without CUDA")]
    if not torch.cuda.is_available():
        return [_no_gpu(), Finding("NCCL", "skipped", "there is no GPU")]
    count = torch.cuda.device_count()
    names = ", ".join(dict.fromkeys(torch.cuda.get_device_name(i) for i in range(count)))
    found = [Finding("GPUs", "ok", f"{count} ({names}), CUDA {torch.version.cuda}")]
    try:
        for i in range(count):
            torch.ones(2, device=f"cuda:{i}").add_(1).cpu()
    except RuntimeError as error:
        fact = f"GPU {i} of {count} computes nothing: {str(error).splitlines()[0]}"
        cure = f"look at nvidia-smi, or leave it out by CUDA_VISIBLE_DEVICES without {i}"
        found = [Finding("GPUs", "failed", fact, cure)]
    return [*found, *_compute_modes(), *_ranks_per_gpu(count), _nccl()]


def _no_gpu() -> Finding:
    smi = shutil.which("nvidia-smi")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        fact = f'CUDA_VISIBLE_DEVICES="{hidden}" hides all'
        return Finding("GPUs", "skipped", fact, "unset CUDA_VISIBLE_DEVICES to use them")
    if smi is not None and run_quietly([smi, "-L"], 30).output.startswith("GPU 0"):
        fact = f"nvidia-smi lists GPUs, but torch {torch.__version__} finds none"
        cure = f"install a driver for CUDA {torch.version.cuda}, or a torch for the driver's CUDA"
        return Finding("GPUs", "failed", fact, cure)
    return Finding("GPUs", "skipped", "there is none")


def _compute_modes() -> list[Finding]:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return [Finding("compute mode", "skipped", "there is no nvidia-smi")]
    query = [smi, "--query-gpu=index,compute_mode", "--format=csv,noheader"]
    asked = run_quietly(query, 30)
    if asked.code != 0:
        return [Finding("compute mode", "skipped", f"nvidia-smi: {asked.last_line}")]
    other = [line for line in asked.output.splitlines() if line and "Default" not in line]
    if not other:
        return [Finding("compute mode", "ok", "every GPU takes several processes")]
    fact = f"GPU {other[0].replace(',', ' is in mode')}: it takes one process at most"
    cure = "sudo nvidia-smi -c DEFAULT, or start at most one rank per GPU"
    return [Finding("compute mode", "warning", fact, cure)]


def _ranks_per_gpu(count: int) -> list[Finding]:
    for name in ("OMPI_COMM_WORLD_LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS"):
        text = os.environ.get(name, "")
        if text.isdigit() and int(text) > count:
            fact = f"{name}={text} ranks share {count} GPUs: NCCL refuses, so data goes by the host"
            return [Finding("ranks per GPU", "warning", fact, f"start at most {count} ranks")]
    return [Finding("ranks per GPU", "ok", f"up to {count} ranks have a GPU of their own")]


def _nccl() -> Finding:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        fact = f"torch {torch.__version__} is built without NCCL: data goes by the host"
        return Finding("NCCL", "warning", fact, "install a torch with CUDA from pytorch.org")
    found: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return Finding("NCCL", "ok", f"version {'.'.join(map(str, found))}")
