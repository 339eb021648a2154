"""What a captured graph depends on, as one number: equal numbers, equal graphs.

The code of the model's classes and of the loss with all that it names, the modules' plain attributes and
configurations, what the batch and the parameters look like, PyTorch and its switches. Code that is
installed counts by its package's version and its file; a user's own by its bytecode, so that comments and
what isn't reached change nothing.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import inspect
import logging
import os
import platform
import re
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from scrimp._native import __version__
from scrimp._torch.capture import CAPTURED_HOOKS

MOST_VISITED = 200_000
"""Objects that are looked at before the model counts as too entangled to be recognized."""
MOST_BYTES = 256 << 20
"""Bytes of tensors' contents that are read."""
SWITCHES = ("ATEN_", "DNNL_", "ONEDNN_", "MKL_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "TORCH_")
"""How variables of the environment that choose kernels begin."""
INSTALLED = tuple(
    str(Path(path)) + os.sep
    for path in {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
)
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
DERIVED = {"_flat_weights", "_flat_weight_refs"}
"""What recurrent layers make of their parameters anew where it is needed; capture leaves its own there."""
MODULE_STATE = frozenset(nn.Module().__dict__) - {"training"} | {"scrimp"} | DERIVED
"""Attributes of every module: its tensors, children and hooks, looked at apart; and plans."""
PLAIN = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), range, torch.Size)
OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class Unrecognizable(Exception):
    """The model holds too much to tell one from another."""


def fingerprint(model: nn.Module, functions: Iterable[Any], *seen: Any) -> str:
    """Of a model, the functions beside it such as its loss, and all else that decides the graph."""
    found = _Fingerprint()
    found.add(_surroundings())
    found.model(model)
    for function in functions:
        if isinstance(function, nn.Module):
            found.model(function)
        else:
            found.add(function)
    for value in seen:
        found.add(value)
    return found.hash.hexdigest()


@functools.cache
def _versions() -> str:
    ours = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        ours.update(path.read_bytes())
    git = getattr(torch.version, "git_version", "")
    return (
        f"{sys.version} {platform.machine()} torch {torch.__version__} {git} {__version__} {ours.hexdigest()}"
    )


def _surroundings() -> list[Any]:
    """What chooses kernels beside the model."""
    backends: Any = torch.backends
    found: list[Any] = [
        _versions(),
        backends.cpu.get_cpu_capability(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_cache_enabled(),
        torch._C._get_mkldnn_enabled(),
        backends.mha.get_fastpath_enabled(),
        [getattr(backends.cuda, name)() for name in dir(backends.cuda) if name.endswith("_sdp_enabled")],
        sorted((k, v) for k, v in os.environ.items() if k.startswith(SWITCHES)),
    ]
    if torch.cuda.is_available():
        found += [backends.cudnn.version(), backends.cudnn.flags, torch.cuda.get_device_name()]
        found += [
            getattr(backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")
        ]
        found.append(backends.cuda.matmul.allow_tf32)
    return found


class _Fingerprint:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.seen: dict[Any, int] = {}
        self.alive: list[Any] = []
        self.bytes = 0

    def model(self, model: nn.Module) -> None:
        """The modules' tree: classes, tensors with what is tied, and plain attributes."""
        every = list(model.named_modules(remove_duplicate=False))
        for path, module in every:
            self._text("module", path, *self._place(module))
            for kind, tensors in (("parameter", module._parameters), ("buffer", module._buffers)):
                for name, tensor in tensors.items():
                    self._text(kind, name)
                    if tensor is not None:
                        self._text(*self._place(tensor))
                        self._tensor(tensor)
        for module in dict.fromkeys(module for _, module in every):
            self.add(type(module))
            self.add({k: v for k, v in vars(module).items() if k not in MODULE_STATE})
            hooks = [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]
            self.add([hook for hook in hooks if hook.__module__ in CAPTURED_HOOKS])

    def _text(self, *parts: object) -> None:
        self.hash.update(repr(parts).encode())

    def _place(self, value: Any) -> tuple[str, bool]:
        """Which of what was seen this is, and whether it is new."""
        new = id(value) not in self.seen
        if new:
            if len(self.seen) > MOST_VISITED:
                raise Unrecognizable("the model or its loss refers to too much")
            self.seen[id(value)] = len(self.seen)
            self.alive.append(value)
        return f"#{self.seen[id(value)]}", new

    def add(self, value: Any) -> None:
        """Add something and all that it holds; a list of our own, since what is held may lie deep."""
        pending = [value]
        while pending:
            pending += reversed(self._one(pending.pop()))

    def _one(self, value: Any) -> Sequence[Any]:
        """Add one thing; give what it holds."""
        if isinstance(value, PLAIN + OF_TORCH) and not isinstance(value, enum.Enum):
            self._text(type(value).__name__, value)
            return ()
        place, new = self._place(value)
        self._text(place)
        if not new:
            return ()
        if isinstance(value, types.ModuleType):
            self._text("module", value.__name__)
            return ()
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.CodeType):
            return self._code(value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.CellType):
            # A cell may be empty yet.
            return [*_contents(value)]
        if isinstance(value, types.MethodType):
            return [value.__func__, value.__self__]
        if isinstance(value, functools.partial):
            return [value.func, value.args, value.keywords]
        if isinstance(value, logging.Logger):
            return ()
        if isinstance(value, Tensor):
            self._tensor(value)
            self._contents(value)
            return ()
        return self._object(value)

    def _object(self, value: Any) -> Sequence[Any]:
        kind = type(value)
        if isinstance(value, enum.Enum):
            return [kind, value.name]
        if isinstance(value, Mapping):
            self._text(kind.__qualname__, len(value))
            return [part for item in list(value.items()) for part in item]
        if isinstance(value, set | frozenset):
            self._text(kind.__qualname__, sorted(ADDRESS.sub("", repr(v)) for v in value))
            return ()
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            self._text(str(value.dtype), value.shape)
            self.hash.update(value.tobytes())
            return ()
        inner = list(value) if isinstance(value, list | tuple | collections.deque) else []
        self._text(kind.__qualname__, len(inner))
        if isinstance(value, nn.Module):
            # A module beside the model's own: what it holds counts like a model's.
            return [kind, *value.__dict__.values()]
        if hasattr(value, "__dict__") and not isinstance(value, types.BuiltinFunctionType):
            # A hash is another in each process.
            names = sorted(name for name in vars(value) if not name.endswith("_hash"))
            self._text(names)
            inner += [kind, *(vars(value)[name] for name in names)]
        elif not inner:
            self._text(kind.__module__, ADDRESS.sub("", repr(value)))
        return inner

    def _tensor(self, tensor: Tensor) -> None:
        strides = tuple(tensor.stride()) if tensor.layout == torch.strided else tensor.layout
        about = (tuple(tensor.shape), strides, tensor.dtype, str(tensor.device), tensor.requires_grad)
        self._text(type(tensor).__qualname__, about)
        if tensor.layout == torch.strided and tensor.device.type != "meta":
            # Tensors that share memory are seen to.
            storage = ("storage", tensor.untyped_storage()._cdata)
            self._text(self.seen.setdefault(storage, len(self.seen)), tensor.storage_offset())

    def _contents(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        self.bytes += tensor.numel() * tensor.element_size()
        if self.bytes > MOST_BYTES:
            raise Unrecognizable("the model or its loss refers to large tensors that are no parameters")
        raw = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten().view(torch.uint8)
        self.hash.update(raw.numpy().tobytes())

    def _class(self, kind: type) -> Sequence[Any]:
        self._text("class", kind.__module__, kind.__qualname__)
        if _is_installed(kind.__module__):
            self._text(_package(kind.__module__))
            return [base for base in kind.__bases__ if base is not object]
        held = [v for name, v in sorted(vars(kind).items()) if name not in CLASS_STATE]
        return [*kind.__bases__, *(_unwrapped(v) for v in held)]

    def _function(self, function: types.FunctionType) -> Sequence[Any]:
        module = function.__module__ or ""
        self._text("function", module, function.__qualname__)
        parts = [function.__defaults__, function.__kwdefaults__, *(function.__closure__ or ())]
        if _is_installed(module):
            self._text(_package(module))
            return parts
        names = _names(function.__code__)
        known = [function.__globals__[name] for name in names if name in function.__globals__]
        modules = [v for v in known if isinstance(v, types.ModuleType)]
        # What is imported inside of a function is named there, too.
        modules += [sys.modules[name] for name in names if name in sys.modules]
        reached = [vars(m)[name] for m in modules for name in names if name in vars(m)]
        held = [v for name, v in sorted(vars(function).items())]
        return [function.__code__, *parts, *known, *(v for v in reached if not _is_data(v)), *held]

    def _code(self, code: types.CodeType) -> Sequence[Any]:
        self._text(code.co_code, code.co_names, code.co_varnames, code.co_freevars)
        return code.co_consts


CLASS_STATE = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__"),
    *("__slotnames__", "_abc_impl"),
}
"""What a class has of itself, or gets when it is used."""


def _is_data(value: Any) -> bool:
    """Whether a module's attribute is a module again or a registry, found by a name that may mean another."""
    return isinstance(value, types.ModuleType | dict | Tensor)


def _contents(cell: types.CellType) -> Iterable[Any]:
    try:
        yield cell.cell_contents
    except ValueError:
        return


def _unwrapped(value: Any) -> Any:
    if isinstance(value, staticmethod | classmethod):
        return value.__func__
    if isinstance(value, property):
        return (value.fget, value.fset)
    return value


def _names(code: types.CodeType) -> list[str]:
    """The names of globals and attributes in a function and those inside of it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return list(dict.fromkeys([*code.co_names, *(name for c in inner for name in _names(c))]))


@functools.cache
def _is_installed(module: str) -> bool:
    """Whether a module is from the standard library or an installed package, so that a version tells all."""
    if module.partition(".")[0] == "scrimp":
        return True
    found = sys.modules.get(module)
    path = getattr(found, "__file__", None)
    if path is None:
        return module in sys.builtin_module_names or (found is not None and module != "__main__")
    return str(Path(path)).startswith(INSTALLED) or "-packages" + os.sep in path


@functools.cache
def _package(module: str) -> str:
    """The version of a module's package, and its file's contents."""
    top = module.partition(".")[0]
    version = getattr(sys.modules.get(top), "__version__", "")
    if top in ("torch", "scrimp"):
        # Seen to once for all.
        return str(version)
    path = (
        inspect.getsourcefile(sys.modules[module])
        if getattr(sys.modules.get(module), "__file__", None)
        else None
    )
    try:
        digest = hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        digest = ""
    return f"{top} {version} {digest}"
