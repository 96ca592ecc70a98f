# SPDX-License-Identifier: BSD-3-Clause
"""Process groups of torch.distributed as the transport of the communicator.

The communicator uses the group that the program gave (``set_process_group``), else the default
group if the program opened it. Else, under a launcher such as torchrun, it meets the other ranks by
the launcher's variables and makes groups of its own; the default group stays free for the program.
"""

from __future__ import annotations

import hashlib
import os
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from . import _C
from .exceptions import Error

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["set_process_group"]

_given: Any = None
_kept: dict[str, Any] = {}  # groups made here, by name: the registry of torch keeps none
_NAME = "meshfuse"


def set_process_group(group: ProcessGroup | DeviceMesh) -> None:
    """Make the communicator of this process use a process group.

    Call it on every rank of the group, before anything that communicates; without it, the default
    group is used if it is open. The ranks of the communicator are those of the group; of a mesh of
    torch, its ranks in row-major order.

    Args:
        group: What ``torch.distributed.new_group`` or ``init_device_mesh`` gives. CPU tensors go
            over gloo where the group has no backend for them.

    Raises:
        meshfuse.Error: the communicator has started already, this process is not in the group, or
            ``MESHFUSE_BACKEND`` asks for another backend.
        TypeError: ``group`` is neither.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    global _given
    wanted = os.environ.get("MESHFUSE_BACKEND", "")
    if wanted not in ("", "c10d"):
        raise Error(
            f"set_process_group: MESHFUSE_BACKEND={wanted} asks for another backend. Unset it, or "
            "set it to c10d."
        )
    if _C.has_communicator():
        raise Error(
            "set_process_group: the communicator of this process has started already, on backend "
            f"{_C.communicator().backend()}. Call set_process_group before that."
        )
    if not isinstance(group, dist.ProcessGroup | DeviceMesh):
        raise TypeError(
            "set_process_group: expected a ProcessGroup or a DeviceMesh of torch.distributed, got "
            f"{type(group).__name__}"
        )
    ranks = group.mesh.flatten().tolist() if isinstance(group, DeviceMesh) else None
    if ranks is not None and dist.get_rank() not in ranks:
        raise Error(
            f"set_process_group: rank {dist.get_rank()} is not in the mesh of ranks {ranks}. Call "
            "it on the ranks of the mesh only."
        )
    _given = group if ranks is None else _group_of(ranks)


def _group_of(ranks: list[int]) -> Any:
    """Return a group of ranks of the default group, in that order; only the ranks call it."""
    import torch.distributed as dist

    default = dist.group.WORLD
    assert default is not None
    if ranks == list(range(dist.get_world_size())):
        return default
    name = f"{_NAME}/mesh/{_digest(ranks)}"
    kinds = {device.type for device in default._device_types}
    if "cuda" in kinds and default._get_backend(torch.device("cuda")).name() == "gloo":
        kinds.remove("cuda")  # carried through the host
    for device in {"cpu", "cuda"} & kinds:
        _make(default.group_name, ranks, device, name)
    return _kept[name]


def _exists() -> bool:
    """Return whether the program has a group; imports and starts nothing."""
    if _given is not None:
        return True
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _open() -> str:
    """Return the name of the group to use."""
    import torch.distributed as dist

    if not dist.is_available():
        raise Error(
            "Communicator: backend c10d needs torch.distributed, which this build of torch lacks. "
            "Start the program by mpirun, or set MESHFUSE_BACKEND=single."
        )
    if _given is not None:
        return str(_given.group_name)
    if dist.is_initialized():
        default = dist.group.WORLD
        assert default is not None
        return str(default.group_name)
    return _meet()


def _meet() -> str:
    """Make a group that only has a store, from the launcher's variables."""
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import ProcessGroup

    rank, size = _C.launched_as() or (0, 1)
    store = PrefixStore(_NAME, _launcher_store(rank, size))
    if torch.cuda.is_available():
        _take_device(store)
    return _register(_NAME, ProcessGroup(store, rank, size))


def _take_device(store: Any) -> None:
    """Make the device of this local rank the current one; tell all if another rank has it, too."""
    device = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    torch.cuda.set_device(device)
    if store.add(f"ranks_on/{torch.cuda.get_device_properties(device).uuid}", 1) > 1:
        store.add("ranks_that_share_a_device", 1)


def _launcher_store(rank: int, size: int) -> Any:
    from torch._C._distributed_c10d import HashStore, TCPStore
    from torch.distributed.rendezvous import rendezvous

    timeout = timedelta(seconds=_C.communication_timeout())
    address, port = _master(size)
    if address is None:
        if size == 1:
            return HashStore()
        query = f"env://?rank={rank}&world_size={size}"
        return next(rendezvous(query, timeout=timeout))[0]
    return TCPStore(address, port, size, rank == 0, timeout=timeout, multi_tenant=True)


def _master(size: int) -> tuple[str | None, int]:
    """Return where rank 0 keeps the store; None for the launcher's own address."""
    for prefix in ("MESHFUSE_", "NVFUSER_"):
        address, port = (os.environ.get(f"{prefix}MASTER_{end}") for end in ("ADDR", "PORT"))
        if address or port:
            return address or "localhost", _number(f"{prefix}MASTER_PORT", port)
    if os.environ.get("MASTER_ADDR") and os.environ.get("MASTER_PORT"):
        return None, 0
    if size == 1:
        return None, 0
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE")
    if os.environ.get("MASTER_ADDR") or str(size) == local:
        return os.environ.get("MASTER_ADDR", "localhost"), _DEFAULT_PORT
    raise Error(
        f"Communicator: this process was started as one of {size} ranks, and not by mpirun, but "
        "nothing says where they meet. Start it by torchrun, by mpirun, or set MASTER_ADDR to the "
        "node of rank 0 and MASTER_PORT to a free port; MESHFUSE_BACKEND=single runs every process "
        "alone."
    )


_DEFAULT_PORT = 29500 + 42  # torch's default, which a default group may use, and some


def _number(name: str, text: str | None) -> int:
    if not text:
        return _DEFAULT_PORT
    if not text.isdecimal() or not 0 < int(text) < 2**16:
        raise Error(f'Communicator: {name} is "{text}", which is not a port. Set it to a number.')
    return int(text)


def _make(group: str, team: list[int], device: str, name: str = "") -> str:
    """Make a group of ranks ``team`` of a group, in that order, with a backend for one device."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore, _resolve_process_group

    base: Any = _resolve_process_group(group)  # type: ignore[arg-type]
    whole = list(range(base.size()))
    place = team.index(base.rank())
    name = name or f"{group}/{_NAME}/{device}/{'all' if team == whole else _digest(team)}"
    store = PrefixStore(f"{name}/{device}", base.get_group_store())
    made: Any = _kept.get(name) or dist.ProcessGroup(store, place, len(team))
    timeout = timedelta(seconds=_C.communication_timeout())
    kinds = dist.ProcessGroup.BackendType
    backend: Any
    options: Any
    if device == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.group_name = name
        options.global_ranks_in_group = list(team)
        backend = dist.ProcessGroupNCCL(store, place, len(team), options)
        kind = kinds.NCCL
    else:
        backend = dist.ProcessGroupGloo(store, place, len(team), timeout=timeout)
        kind = kinds.GLOO
    made._set_default_backend(kind)
    backend._set_sequence_number_for_group()
    made._register_backend(torch.device(device), kind, backend)
    made._set_group_name(name)
    return name if name in _kept else _register(name, made)


def _register(name: str, group: Any) -> str:
    from torch._C._distributed_c10d import _register_process_group

    _register_process_group(name, group)  # type: ignore[arg-type]
    _kept[name] = group
    return name


def _digest(team: list[int]) -> str:
    text = "-".join(map(str, team))
    return text if len(text) < 64 else hashlib.sha256(text.encode()).hexdigest()


_C.set_process_groups(_exists, _open, _make)
