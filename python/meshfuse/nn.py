# SPDX-License-Identifier: BSD-3-Clause
"""Layers for models in torch whose weights are divided over the devices of a mesh.

Each process holds one device's part of a layer, in parameters like those of other modules, and its
forward and backward pass are fusions that communicate where the division needs it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.nn import Module, Parameter, init

from . import failure
from ._C import Communicator, DeviceMesh, ParallelType
from .autograd import autocast_enabled
from .dtensor_placements import mesh_of
from .exceptions import Error
from .linear_function import LinearPrograms
from .linear_programs import LinearLayout
from .pytorch_utils import torch_dtype_to_meshfuse_dtype
from .tensor_kinds import refuse_fake_mode, refuse_kind, refuse_tangents, refuse_transforms

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchMesh

__all__ = ["ColumnParallelLinear", "RowParallelLinear"]

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class _ParallelLinear(Module):
    """What both layers have in common; subclasses say which axis of the weight is divided."""

    _columns: bool
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool,
        mesh: DeviceMesh | TorchMesh | None,
        whole: bool,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        name = type(self).__name__
        self._devices, self._names, self._place = _row_of(name, mesh)
        self._whole = whole
        self._programs: dict[torch.dtype, LinearPrograms] = {}
        self._check_features()
        ways = len(self._devices)
        rows, columns = (ways, 1) if self._columns else (1, ways)
        _check_dtype(name, dtype or torch.get_default_dtype(), "Give a dtype of")
        factory: Any = {"device": device, "dtype": dtype}
        sizes = out_features // rows, in_features // columns
        self.weight = Parameter(torch.empty(sizes, **factory))
        self.bias = Parameter(torch.empty(sizes[0], **factory)) if bias else None
        self.reset_parameters()

    @property
    def mesh(self) -> DeviceMesh:
        """The devices that the layer is divided over, in one row."""
        return DeviceMesh(self._devices, self._names)

    def reset_parameters(self) -> None:
        """Draw the parameters anew, each as a part of what ``torch.nn.Linear`` draws.

        Every rank draws the whole tensors from torch's generator and keeps its part. Ranks that
        are seeded alike so hold the parts of one layer, and equal copies of a bias that is whole.
        """
        if self.weight.is_meta:
            return
        factory: Any = {"device": self.weight.device, "dtype": self.weight.dtype}
        whole = torch.empty(self.out_features, self.in_features, **factory)
        init.kaiming_uniform_(whole, a=math.sqrt(5))
        bound = 1 / math.sqrt(self.in_features) if self.in_features > 0 else 0
        with torch.no_grad():
            self.weight.copy_(self._part(whole, 0 if self._columns else 1))
            if self.bias is not None:
                drawn = torch.empty(self.out_features, **factory).uniform_(-bound, bound)
                self.bias.copy_(self._part(drawn, 0) if self._columns else drawn)

    def load_global(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Copy this device's part of unsharded tensors into the parameters.

        Args:
            weight: ``[out_features, in_features]``, of any dtype, on any device.
            bias: ``[out_features]``; None leaves the layer's bias as it is.

        Raises:
            meshfuse.Error: a shape is another, or the layer has no bias.
        """
        name = type(self).__name__
        want = [self.out_features, self.in_features]
        if list(weight.shape) != want:
            raise Error(
                f"{name}.load_global: weight has shape {list(weight.shape)}, but the unsharded "
                f"weight is {want}, [out_features, in_features]. Give the whole weight."
            )
        if bias is not None and self.bias is None:
            raise Error(
                f"{name}.load_global: a bias was given, but the layer was made with bias=False. "
                "Leave it out, or make the layer with a bias."
            )
        if bias is not None and list(bias.shape) != want[:1]:
            raise Error(
                f"{name}.load_global: bias has shape {list(bias.shape)}, but the unsharded bias is "
                f"{want[:1]}. Give the whole bias."
            )
        with torch.no_grad():
            self.weight.copy_(self._part(weight, 0 if self._columns else 1))
            if bias is not None and self.bias is not None:
                self.bias.copy_(self._part(bias, 0) if self._columns else bias)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``forward`` and the hooks; if one raises, the other devices are told."""
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:
            self._report(error)
            raise

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return ``input @ weight.T + bias`` of the unsharded layer, or this device's part of it.

        Raises:
            meshfuse.Error: the input's last dim or its dtype does not fit, or it is nested, sparse
                or quantized.
            meshfuse.PeerError: another rank failed.
            meshfuse.UnsupportedError: a transform of torch.func is active, or a tensor has a
                tangent of forward-mode AD.
            TypeError: the input is not a tensor, or one of a class such as DTensor.
        """
        try:
            return self._checked(input)
        except Exception as error:  # of a check, too: the other devices do not know of it
            self._report(error)
            raise

    def _checked(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(input, torch.Tensor):
            raise TypeError(
                f"{type(self).__name__}: the input must be a tensor, but it is a "
                f"{type(input).__name__}."
            )
        weight: torch.Tensor = self.weight
        bias: torch.Tensor | None = self.bias
        self._check_kinds(input, weight, bias)
        if torch._C._is_any_autocast_enabled() and autocast_enabled(input.device.type):
            dtype = torch.get_autocast_dtype(input.device.type)
            input, weight = _autocast(input, dtype), _autocast(weight, dtype)
            bias = None if bias is None else _autocast(bias, dtype)
        dtype = weight.dtype
        programs = self._programs.get(dtype) or self._prepare(dtype)
        if input.dim() == 0 or input.shape[-1] != programs.in_features:
            self._refuse_size(input, programs.in_features)
        if input.dtype != dtype or (bias is not None and bias.dtype != dtype):
            self._refuse_dtype(input, weight, bias)
        return programs.apply(input, weight, bias)

    def extra_repr(self) -> str:
        """Return what ``print`` shows of the layer."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, mesh={self.mesh}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and files hold: all but the programs."""
        return self.__dict__ | {"_programs": {}}

    def _part(self, whole: torch.Tensor, axis: int) -> torch.Tensor:
        return whole.chunk(len(self._devices), axis)[self._place]

    def _check_features(self) -> None:
        name, ways = type(self).__name__, len(self._devices)
        for what in ("in_features", "out_features"):
            size = getattr(self, what)
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise Error(f"{name}: {what} is {size!r}. Give a number of features.")
        what = "out_features" if self._columns else "in_features"
        size = getattr(self, what)
        if size % ways != 0:
            raise Error(
                f"{name}: {what}={size} is not divisible by the {ways} devices of {self.mesh}. "
                f"Choose a number of features that {ways} divides, or pad the layer."
            )

    def _check_kinds(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        name = type(self).__name__
        refuse_transforms(name)
        refuse_fake_mode(name)
        given: list[tuple[str, Any]] = [("the input", input), ("the weight", weight)]
        if bias is not None:
            given.append(("the bias", bias))
        for what, tensor in given:
            refuse_kind(name, what, tensor)
        refuse_tangents(name, given)

    def _prepare(self, dtype: torch.dtype) -> LinearPrograms:
        """Return the programs for parameters of a type; made when they are first needed."""
        name, ways = type(self).__name__, len(self._devices)
        rank = _rank(name)
        if ways > 1 and rank != self._devices[self._place]:
            raise Error(
                f"{name}: its parameters are the part of rank {self._devices[self._place]}, but "
                f"this process is rank {rank}. Load the file that this rank has saved, or make the "
                "layer here and use load_global."
            )
        _check_dtype(name, dtype, "Convert the layer to one of")
        layout = LinearLayout(
            self.in_features,
            self.out_features,
            self.mesh if ways > 1 else None,
            self._columns,
            self._whole,
        )
        programs = LinearPrograms(name, layout, torch_dtype_to_meshfuse_dtype(dtype))
        return self._programs.setdefault(dtype, programs)

    def _report(self, error: Exception) -> None:
        """Keep the other devices of the layer from waiting for this one."""
        try:
            programs = next(iter(self._programs.values()), None) or self._prepare(torch.float32)
        except Error:
            if len(self._devices) > 1:
                failure.report(error, "calling a layer")
            return
        programs.report(error)

    def _refuse_size(self, input: torch.Tensor, local: int) -> NoReturn:
        ways = len(self._devices)
        want = f"in_features={self.in_features}"
        if local != self.in_features:
            want += f" / {ways} devices = {local}"
        raise Error(
            f"{type(self).__name__}: the last dim of the input must be {want}, but the input has "
            f"local shape {list(input.shape)}. Give an input with this many features"
            + (
                ", or make the layer with input_is_parallel=False if every device has all of them."
                if not self._columns and not self._whole
                else "."
            )
        )

    def _refuse_dtype(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> NoReturn:
        of_bias = "" if bias is None else f" and the bias {bias.dtype}"
        raise Error(
            f"{type(self).__name__}: the input is {input.dtype}, but the weight is {weight.dtype}"
            f"{of_bias}. Convert the input, or the layer by .to(dtype)."
        )


class ColumnParallelLinear(_ParallelLinear):
    """A linear layer whose output features are divided over a mesh of devices.

    Each device has ``out_features / D`` rows of the weight, and computes as many features of the
    result. The input is whole on all of the D devices, and equal; its gradient is all-reduced.

    Attributes:
        weight: Local part, ``[out_features / D, in_features]``.
        bias: Local part, ``[out_features / D]``; None without bias.

    Example:
        >>> import torch
        >>> from meshfuse import nn
        >>> layer = nn.ColumnParallelLinear(8, 4)
        >>> layer(torch.ones(2, 3, 8)).shape
        torch.Size([2, 3, 4])
    """

    _columns = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        mesh: DeviceMesh | TorchMesh | None = None,
        gather_output: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer with parameters as ``torch.nn.Linear`` draws them.

        Args:
            in_features: Size of the last dim of inputs.
            out_features: Size of the last dim of the unsharded result; divisible by D.
            bias: Whether a bias is added.
            mesh: The D devices, this rank among them, as a mesh of meshfuse or torch.distributed.
                Of a mesh of more dims they are those along ``mesh_x`` (torch's last dim) from this
                rank, and the others are replicas. None: all ranks.
            gather_output: All-gather the result, so that every device has the whole of it.
            device: Where the parameters are.
            dtype: Their type: float64, float32, float16 or bfloat16.

        Raises:
            meshfuse.Error: ``out_features`` is not divisible by D, the rank is not in the mesh,
                the mesh has devices without a rank, the ranks are simulated, or the type is
                another.
            TypeError: ``mesh`` is not a mesh.
        """
        super().__init__(in_features, out_features, bias, mesh, gather_output, device, dtype)

    @property
    def gather_output(self) -> bool:
        """Whether every device has the whole result."""
        return self._whole

    def extra_repr(self) -> str:
        """Return what ``print`` shows of the layer."""
        return f"{super().extra_repr()}, gather_output={self.gather_output}"


class RowParallelLinear(_ParallelLinear):
    """A linear layer whose input features are divided over a mesh of devices.

    Each device has ``in_features / D`` columns of the weight, and multiplies as many features of
    the input. The products are all-reduced, so that the result is whole on all of the D devices;
    then the bias is added, once.

    Attributes:
        weight: Local part, ``[out_features, in_features / D]``.
        bias: ``[out_features]``, equal on all devices; None without bias.

    Example:
        >>> import torch
        >>> from meshfuse import nn
        >>> mlp = torch.nn.Sequential(
        ...     nn.ColumnParallelLinear(8, 32), torch.nn.GELU(), nn.RowParallelLinear(32, 8)
        ... )
        >>> mlp(torch.ones(3, 8)).shape
        torch.Size([3, 8])
    """

    _columns = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        mesh: DeviceMesh | TorchMesh | None = None,
        input_is_parallel: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer with parameters as ``torch.nn.Linear`` draws them.

        Args:
            in_features: Size of the last dim of the unsharded input; divisible by D.
            out_features: Size of the last dim of results.
            bias: Whether a bias is added.
            mesh: As for ``ColumnParallelLinear``.
            input_is_parallel: Whether a device's input has its own ``in_features / D`` features, as
                a ``ColumnParallelLinear`` gives them. Else it has all of them, and its gradient is
                all-gathered.
            device: Where the parameters are.
            dtype: Their type: float64, float32, float16 or bfloat16.

        Raises:
            meshfuse.Error: as for ``ColumnParallelLinear``; ``in_features`` must be divisible.
            TypeError: ``mesh`` is not a mesh.
        """
        whole = not input_is_parallel
        super().__init__(in_features, out_features, bias, mesh, whole, device, dtype)

    @property
    def input_is_parallel(self) -> bool:
        """Whether inputs have one device's features only."""
        return not self._whole

    def extra_repr(self) -> str:
        """Return what ``print`` shows of the layer."""
        return f"{super().extra_repr()}, input_is_parallel={self.input_is_parallel}"


def _row_of(
    name: str, mesh: DeviceMesh | TorchMesh | None
) -> tuple[list[int], tuple[str, ...], int]:
    """Return the devices of a layer, the name of their dim if any, and this one's place."""
    rank, size = _rank(name), Communicator.instance().size()
    if mesh is None:
        return list(range(size)), (), rank
    mesh = mesh_of(mesh, name)
    names = tuple(mesh.names[-1:])
    if rank not in mesh.devices:
        raise Error(
            f"{name}: rank {rank} is not in the mesh {mesh}. Make and call the layer on the ranks "
            "of its mesh only, or give a mesh with this rank."
        )
    if max(mesh.devices) >= size:
        raise Error(
            f"{name}: the mesh {mesh} needs device {max(mesh.devices)}, but the communicator has "
            f"{size} devices (0 to {size - 1}). Start {max(mesh.devices) + 1} ranks, or use a "
            "smaller mesh."
        )
    row = list(mesh.slice_of(rank, ParallelType.mesh_x))
    return row, names, row.index(rank)


def _rank(name: str) -> int:
    communicator = Communicator.instance()
    if communicator.backend() == "simulated" and communicator.size() > 1:
        raise Error(
            f"{name}: on a simulated mesh of {communicator.size()} devices there is no single rank "
            "whose part the layer could hold. Make and call it outside of meshfuse.simulate: on "
            "ranks that mpirun or torchrun starts, or on one device."
        )
    return communicator.rank()


def _check_dtype(name: str, dtype: torch.dtype, advice: str) -> None:
    if dtype not in _DTYPES:
        known = ", ".join(map(str, _DTYPES))
        raise Error(f"{name}: parameters of {dtype} are not supported. {advice} {known}.")


def _autocast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert as autocast does for products."""
    eligible = tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(dtype) if eligible else tensor
