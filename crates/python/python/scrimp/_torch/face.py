"""A planned model keeps its face: it stays the object it was, of a subclass that differs in ``forward``.

The class of the instance is changed, as PyTorch's FSDP2 and parametrizations do. So names of parameters,
attributes, methods, ``isinstance``, optimizers made before and tools that unwrap models see no difference.
A module around the model would put a prefix before names and hide methods; a ``forward`` set on the
instance would be lost when the model is pickled, and taken off by tools that set their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._C._functorch import peek_interpreter_stack

from scrimp._torch.policy import Policy
from scrimp._torch.settings import Settings
from scrimp._torch.wrapped import Planner
from scrimp.errors import BadOption, Unsupported

if TYPE_CHECKING:
    from scrimp.planning import Plan

KEY = "scrimp"
"""The attribute of a planned model that has its planner."""
SHORT = ("plan", "peak", "explain", "report", "snapshot", "policy", "prepare")
"""What a planned model has of its planner under the same name, unless it has an own of that name."""


class Wrapped(nn.Module):
    """What the class of a planned model has beside those it had; see `scrimp.torch.wrap`."""

    if TYPE_CHECKING:
        scrimp: Planner
        plan: Plan
        peak: int
        explain: Callable[[], str]
        report: Callable[[str], None]
        snapshot: Callable[[str], None]
        policy: Callable[..., Policy]
        prepare: Callable[..., Plan]

    _planned_base: type[nn.Module]

    def __getattr__(self, name: str) -> Any:
        """Give what the model has, else what its planner has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in SHORT:
                raise
        return getattr(_planner(self), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles name the class that the model had; their plans are made anew."""
        reduced: Any = super().__reduce_ex__(protocol)
        make, args, *rest = reduced
        base = self._planned_base
        args = tuple(base if arg is type(self) else arg for arg in args)
        return _again, (make, args), *rest


def wrapped(model: nn.Module, settings: Settings, *, loss_only: bool = True) -> Wrapped:
    """Change a model into a planned one, or the settings of one."""
    if not isinstance(model, Wrapped):
        refuse_planned(model)
        if "forward" in vars(model):
            raise Unsupported(
                f"forward was replaced on this {type(model).__name__} itself, as accelerate's prepare() and "
                "hooks for offloading do; wrap the model before that"
            )
        model.__class__ = planned_class(type(model))
        assert isinstance(model, Wrapped)
    vars(model)[KEY] = Planner(model, model._planned_base, settings, loss_only=loss_only)
    return model


def unwrapped(model: nn.Module) -> nn.Module:
    """Change a planned model back into what it was."""
    if not isinstance(model, Wrapped):
        raise BadOption(f"this {type(model).__name__} isn't planned by scrimp.torch.wrap")
    if type(model) is not planned_class(model._planned_base):
        raise Unsupported(f"the class of this {type(model).__name__} was changed after wrap; undo that first")
    del vars(model)[KEY]
    plain: nn.Module = model
    plain.__class__ = model._planned_base
    return plain


def refuse_planned(model: nn.Module) -> None:
    """Refuse a model with a planned one inside: a plan within a plan means nothing."""
    for path, module in model.named_modules():
        if isinstance(module, Wrapped):
            where = f"its module '{path}'" if path else "the model"
            raise BadOption(f"{where} is planned by scrimp.torch.wrap already; scrimp.torch.unwrap it first")


def planned_class(base: type[nn.Module]) -> type[Wrapped]:
    """The subclass: one for each class of models."""
    if base not in CLASSES:
        CLASSES[base] = _subclass(base)
    return CLASSES[base]


CLASSES: dict[Any, type[Wrapped]] = {}


def _subclass(base: Any) -> type[Wrapped]:
    """Make it under the same name: libraries look names up, and write them into files."""

    def forward(self: Wrapped, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or torch.compiler.is_exporting() or torch._C._is_tracing():
            return base.forward(self, *args, **kwargs)
        return _planned(self, *args, **kwargs)

    functools.update_wrapper(forward, base.forward)
    # Tools that take wrappers off would take the plan off.
    del forward.__wrapped__  # type: ignore[attr-defined]
    forward.__signature__ = inspect.signature(base.forward)  # type: ignore[attr-defined]
    names = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "_planned_base": base,
        "forward": forward,
    }
    made: type[Wrapped] = type(base)(base.__name__, (Wrapped, base), names)
    return made


def _run(model: Wrapped, *args: Any, **kwargs: Any) -> Any:
    if peek_interpreter_stack() is not None:
        raise Unsupported(
            "torch.func transforms what a model does with tensors of its own, for which there is no plan; "
            "use the model itself there (scrimp.torch.unwrap)"
        )
    return _planner(model)(*args, **kwargs)


_planned: Callable[..., Any] = torch.compiler.disable(_run)
"""Runs the plan, also within ``torch.compile``, which compiles what is around it."""


def _planner(model: Wrapped) -> Planner:
    planner: Planner = vars(model)[KEY]
    if planner.model is not model:
        # A shallow copy has its own parameters, so it needs its own plans.
        planner = Planner(model, planner.base, planner.settings, loss_only=planner.loss_only)
        vars(model)[KEY] = planner
    return planner


def _again(make: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    model = make(*args)
    model.__class__ = planned_class(type(model))
    return model
