"""Pretend to have a second device: tensors that say they are there, though their numbers are kept on the CPU.

An operation that mixes tensors of both devices raises what torch raises on a machine with a GPU, so that code which forgets
to say ``device=`` is found on a machine that has none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("elsewhere")
torch.get_device_module("elsewhere").get_amp_supported_dtype = list
DEVICE = torch.device("elsewhere", 0)
MOVING = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""Positions may be on the CPU, as with any other device."""


class Elsewhere(torch.Tensor):
    numbers: torch.Tensor

    @staticmethod
    def __new__(cls, numbers: torch.Tensor) -> "Elsewhere":
        shape: dict[str, Any] = {"dtype": numbers.dtype, "device": DEVICE}
        if numbers.layout == torch.strided:
            shape |= {"strides": numbers.stride(), "storage_offset": numbers.storage_offset()}
        elif numbers.layout == torch.sparse_coo:  # CSR is not known to C++: it is taken for strided there
            shape["layout"] = numbers.layout
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, **shape)

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    # what torch does not do for such tensors by itself
    layout = property(lambda self: self.numbers.layout)  # pyright: ignore
    to_dense = lambda self: Elsewhere(self.numbers.to_dense())  # pyright: ignore # noqa: E731
    tolist = lambda self: self.numbers.tolist()  # pyright: ignore # noqa: E731
    __repr__ = lambda self: f"elsewhere: {self.numbers}"  # pyright: ignore # noqa: E731

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


class Constructor(TorchFunctionMode):
    """Tensors of lists of numbers, whose making dispatch modes do not see."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func not in (torch.tensor, torch.as_tensor) or torch.device(kwargs.get("device") or "cpu").type != DEVICE.type:
            return func(*args, **kwargs)
        leaf = kwargs.pop("requires_grad", False)
        return func(*args, **{**kwargs, "device": None}).to(DEVICE).requires_grad_(leaf)


@contextmanager
def second_device() -> Iterator[torch.device]:
    """Have a second device within a ``with`` block."""
    with SecondDevice(), Constructor():
        yield DEVICE


class SecondDevice(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    there = {id(x.numbers): x for x in tensors if isinstance(x, Elsewhere)}
    here = [x for x in tensors if not isinstance(x, Elsewhere) and x.ndim]
    indexes = (
        func._schema.name in INDEXING and isinstance(args[0], Elsewhere) and not any(map(torch.is_floating_point, here))
    )
    if there and here and func not in MOVING and not indexes:
        raise RuntimeError(f"expected all tensors on one device, got {DEVICE} and cpu in {func}")
    goes = kwargs.get("device")
    outside = bool(there) if goes is None else torch.device(goes).type == DEVICE.type
    if func is torch.ops.aten.copy_.default:
        outside = isinstance(args[0], Elsewhere)
    if goes is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain = tree_map(lambda x: x.numbers if isinstance(x, Elsewhere) else x, (args, kwargs))
    found = func(*plain[0], **plain[1])

    def wrap(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return there.get(id(x)) if id(x) in there else Elsewhere(x) if outside else x

    if outside and goes is not None and any(found is x for x in tensors):
        found = found.clone()
    return tree_map(wrap, found)
