"""What rewritten graphs call beside PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from scrimp.errors import Unsupported


def save_rng(device: torch.device) -> torch.Tensor:
    """The state of a device's generator."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return torch.get_rng_state()


def set_rng(device: torch.device, state: torch.Tensor) -> None:
    """Put a device's generator into a state."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def replay(
    device: torch.device, state: torch.Tensor, operator: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run a random operator as it ran when the state was saved, and leave the generator as it is."""
    now = save_rng(device)
    set_rng(device, state)
    try:
        return operator(*args, **kwargs)
    finally:
        set_rng(device, now)


def recurrent_layer(*args: Any) -> tuple[torch.Tensor, ...]:
    """oneDNN's recurrent layer; it only keeps what backward needs where gradients are on."""
    with torch.enable_grad():
        return torch.ops.aten.mkldnn_rnn_layer.default(*args)


def rounded_recurrent_backward(*args: Any) -> tuple[torch.Tensor | None, ...]:
    """The backward pass of that layer; its float32 results get its input's type, as from autograd."""
    made = torch.ops.aten.mkldnn_rnn_layer_backward.default(*args)
    return tuple(None if result is None else result.to(args[0].dtype) for result in made)


def conform(gradient: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
    """A gradient in memory of its own, laid out as its parameter."""
    return gradient.new_empty_strided(size, stride).copy_(gradient)


def accumulate(existing: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to a gradient that is there already, in place, as autograd does."""
    existing.add_(gradient)


def put(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy values into tensors; all of a kind at once, since a GPU's kernels are short and many here."""
    kinds: dict[Any, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for target, value in zip(targets, values, strict=True):
        kinds.setdefault((target.device, target.dtype, value.dtype), []).append((target, value))
    for pairs in kinds.values():
        torch._foreach_copy_([target for target, _ in pairs], [value for _, value in pairs])


def update(updater: Any, place: int, gradient: torch.Tensor) -> None:
    """Let the optimizer update a parameter."""
    updater.update(place, gradient)


def bring_state(updater: Any, place: int) -> None:
    """Begin to bring the optimizer's state of a parameter back."""
    updater.homes.bring(updater.parameters[place])


def store_state(updater: Any, place: int) -> None:
    """Begin to send it away."""
    updater.homes.store(updater.parameters[place], updater.memory)


def arrive_state(updater: Any, place: int) -> None:
    """Wait until it is there."""
    updater.homes.arrive(updater.parameters[place])


def free_state(updater: Any, place: int) -> None:
    """Give its bytes back, once it has been sent away."""
    updater.homes.free(updater.parameters[place])


def clip(updater: Any, gradients: list[torch.Tensor], places: list[int]) -> None:
    """Clip all gradients by their norm."""
    updater.clip(gradients, places)


def take(box: list[Any], index: int) -> Any:
    """Take something out of a list, so that the list doesn't hold it any more."""
    value = box[index]
    box[index] = None
    return value


def store(trip: Any, value: int, offset: int, tensor: torch.Tensor) -> None:
    """Begin to copy a swapped value's bytes to where it waits."""
    trip.store(value, offset, tensor)


def bring(trip: Any, value: int, offset: int, size: int, device: torch.device) -> torch.Tensor:
    """Take memory for a swapped value, and begin to bring its bytes back."""
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    trip.bring(value, offset, memory)
    return memory


def arrive(trip: Any, value: int, *held: torch.Tensor) -> None:
    """Wait until a swapped value's copy is done; what it reads is ``held`` until then."""
    trip.wait(value)


def trip_of(token: torch.Tensor) -> Any:
    """Give what copies the swapped values of a run whose forward and backward passes share tensors only."""
    trip = token.trip  # type: ignore[attr-defined]
    if trip.has_ended:
        raise Unsupported(
            "backward was called a second time on one forward pass, but the values that waited elsewhere are "
            "gone; call the model again"
        )
    return trip


def end_trip(trip: Any) -> None:
    """Give back where swapped values waited."""
    trip.end()


def seen_as(
    memory: torch.Tensor, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """The tensor that a value was before its bytes went away."""
    bare = torch.empty(0, dtype=dtype, device=memory.device)
    return bare.set_(memory.untyped_storage(), offset, size, stride)


def begin_joined(part: torch.Tensor, size: list[int], order: list[int], at: int) -> torch.Tensor:
    """Memory for what is joined of tiles along a dimension, with the first of them."""
    whole = torch.empty_permuted(size, order, dtype=part.dtype, device=part.device)
    return join(whole, part, at, 0)


def join(whole: torch.Tensor, part: torch.Tensor, at: int, start: int) -> torch.Tensor:
    """Write a tile to its place, over what was there."""
    whole.narrow(at, start, part.shape[at]).copy_(part)
    return whole


def begin_added(part: torch.Tensor, size: list[int], order: list[int], at: int, start: int) -> torch.Tensor:
    """Memory for what is added up of tiles that overlap, with the first of them."""
    whole = torch.empty_permuted(size, order, dtype=part.dtype, device=part.device).zero_()
    return join(whole, part, at, start)


def add_lines(whole: torch.Tensor, part: torch.Tensor, at: int, start: int) -> torch.Tensor:
    """Add a tile to its place, over what was there."""
    whole.narrow(at, start, part.shape[at]).add_(part)
    return whole


def add_product(total: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Add a tile's product to the sum of those before it, over that."""
    return total.addmm_(first, second)
