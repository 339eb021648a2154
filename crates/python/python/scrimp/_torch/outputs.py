"""What a model returns, taken apart into tensors, and put together again around others."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from scrimp.errors import Unsupported


@dataclass(frozen=True, repr=False)
class Opaque:
    """An object with tensors inside, such as a cache of keys and values."""

    pickled: bytes
    places: list[int]
    """Which results its tensors are."""


@dataclass(frozen=True, repr=False)
class Outputs:
    """A model's output without its tensors."""

    spec: TreeSpec
    leaves: list[Any]
    """Per leaf a place among the results, an opaque object, or a box with anything else."""
    differentiable: list[bool]
    """Per result, whether it has gradients in the model."""

    def around(self, results: Sequence[Tensor]) -> Any:
        """Put it together again."""

        def leaf(what: Any) -> Any:
            if isinstance(what, int):
                return results[what]
            return _Unpickler(what, results).load() if isinstance(what, Opaque) else what[0]

        return tree_unflatten([leaf(what) for what in self.leaves], self.spec)


def taken_apart(output: Any) -> tuple[list[Tensor], Outputs]:
    """The distinct tensors of an output, and the rest of it."""
    leaves, spec = tree_flatten(output)
    results: list[Tensor] = []
    place_of: dict[int, int] = {}

    def place(tensor: Tensor) -> int:
        if id(tensor) not in place_of:
            place_of[id(tensor)] = len(results)
            results.append(tensor)
        return place_of[id(tensor)]

    def what(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return place(leaf)
        if leaf is None or isinstance(leaf, bool | int | float | str):
            return (leaf,)
        pickler = _Pickler()
        try:
            pickler.dump(leaf)
        except Exception as error:
            raise Unsupported(
                f"the model returns a {type(leaf).__name__}, which is no tensor and can't be pickled, so a "
                f"planned model can't return it; leave it out ({type(error).__name__}: {error})"
            ) from error
        places = [place(tensor) for tensor in pickler.tensors]
        return Opaque(pickler.file.getvalue(), places) if places else (leaf,)

    places = [what(leaf) for leaf in leaves]
    return results, Outputs(spec, places, [result.requires_grad for result in results])


def loss_in(output: Any) -> Tensor | None:
    """The loss that a model works out itself, if it does: a scalar under this name."""
    loss = output.get("loss") if isinstance(output, Mapping) else None
    return loss if isinstance(loss, Tensor) and loss.dim() == 0 and loss.requires_grad else None


class _Pickler(pickle.Pickler):
    """Leaves tensors out."""

    def __init__(self) -> None:
        self.file = io.BytesIO()
        self.tensors: list[Tensor] = []
        super().__init__(self.file, pickle.HIGHEST_PROTOCOL)

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value)
        return len(self.tensors) - 1


class _Unpickler(pickle.Unpickler):
    """Puts tensors in. The bytes are ours: they never leave the process."""

    def __init__(self, opaque: Opaque, results: Sequence[Tensor]) -> None:
        super().__init__(io.BytesIO(opaque.pickled))
        self.tensors = [results[place] for place in opaque.places]

    def persistent_load(self, key: Any) -> Tensor:
        return self.tensors[key]
