"""What PyTorch's caching allocator would hold on a GPU for planned steps, by a simulation of its rules.

    python benches/fragments.py --model gpt --batch 8

A row is a plan: bytes of tensors in use at most; what the allocator takes for a second such step as it is,
and with one block taken ahead; and what the planner's placement needs. Operators' workspaces are one request
each. The rules are those of PyTorch 2.15: sizes in multiples of 512; requests up to 1 MiB from segments of
2 MiB, those below 10 MiB from 20 MiB, larger ones from multiples of 2 MiB; best fit; no split that leaves
1 MiB or less.
"""

from __future__ import annotations

import argparse
import bisect
from dataclasses import dataclass

import scrimp
import scrimp.torch
import torch
import torch_compare
from scrimp._torch.step import Planned

MIB = 1 << 20
SMALL, LARGE = 2 * MIB, 20 * MIB
BLOCK = 512
Event = tuple[int, int]
"""A value, and its bytes; 0 if it is released."""


def rounded(size: int, unit: int) -> int:
    """The next multiple."""
    return -(-size // unit) * unit


@dataclass
class Block:
    """A stretch of a segment, between its neighbours."""

    size: int
    large: bool
    before: int | None
    after: int | None
    free: bool = False


class CachingAllocator:
    """Blocks by address, and the free ones of each pool by size."""

    def __init__(self, ahead: int) -> None:
        """Take one large segment ahead, or none."""
        self.blocks: dict[int, Block] = {}
        self.free: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        self.held = self.grown = 0
        if ahead:
            self._release(self._segment(ahead, True))
            self.grown = 0

    def get(self, size: int) -> int:
        """Give an address."""
        size = max(BLOCK, rounded(size, BLOCK))
        large = size > MIB
        fits = self.free[large]
        place = bisect.bisect_left(fits, (size, 0))
        if place < len(fits):
            at = fits.pop(place)[1]
        else:
            whole = rounded(size, SMALL) if size >= LARGE // 2 else LARGE if large else SMALL
            at = self._segment(whole, large)
        block = self.blocks[at]
        block.free = False
        rest = block.size - size
        if rest > MIB if large else rest >= BLOCK:
            self.blocks[at + size] = Block(rest, large, at, block.after)
            if block.after is not None:
                self.blocks[block.after].before = at + size
            block.size, block.after = size, at + size
            self._release(at + size)
        return at

    def give_back(self, at: int) -> None:
        """Join it with free neighbours."""
        block = self.blocks[at]
        for other in (block.after, block.before):
            if other is None or not self.blocks[other].free:
                continue
            low, high = min(at, other), max(at, other)
            self.free[block.large].remove((self.blocks[other].size, other))
            upper = self.blocks.pop(high)
            self.blocks[low].size += upper.size
            self.blocks[low].after = upper.after
            if upper.after is not None:
                self.blocks[upper.after].before = low
            at, block = low, self.blocks[low]
        self._release(at)

    def _segment(self, size: int, large: bool) -> int:
        at = (1 + len(self.blocks) + self.held) << 32
        self.blocks[at] = Block(size, large, None, None)
        self.held += size
        self.grown += size if large else 0
        return at

    def _release(self, at: int) -> None:
        block = self.blocks[at]
        block.free = True
        bisect.insort(self.free[block.large], (block.size, at))


def events(made: Planned) -> list[Event]:
    """What a step asks for and releases."""
    problem = made.lowered.problem
    found: list[Event] = []
    for kind, number in made.plan.steps:
        if kind == "run":
            task = problem.tasks[number]
            found += [(value, problem.values[value]["bytes"]) for value in task["outputs"]]
            workspace = task["modes"][0]["workspace"]
            found += [(-1, workspace), (-1, 0)] if workspace else []
        else:
            found.append((number, 0))
    return [event for event in found if event[1] or event[0] < 0 or problem.values[event[0]]["bytes"]]


def simulated(steps: list[Event], ahead: int) -> CachingAllocator:
    """Two steps; between them everything is released."""
    allocator = CachingAllocator(ahead)
    for _ in range(2):
        where: dict[int, int] = {}
        for value, size in steps:
            if size:
                where[value] = allocator.get(size)
            else:
                allocator.give_back(where.pop(value))
        for at in where.values():
            allocator.give_back(at)
    return allocator


def with_one_block(steps: list[Event], live: int) -> int:
    """What is held with the least block taken ahead that is enough for the large requests."""
    ahead = rounded(live, SMALL)
    while (tried := simulated(steps, ahead)).grown:
        ahead += SMALL
    return tried.held


def placed(steps: list[Event]) -> scrimp.Placement:
    """What the planner's placement needs."""
    open_: dict[int, tuple[int, int]] = {}
    intervals = []
    for now, (value, size) in enumerate(steps):
        if size:
            open_[value] = now, rounded(size, BLOCK)
        else:
            start, whole = open_.pop(value)
            intervals.append((start, now, whole))
    intervals += [(start, len(steps), whole) for start, whole in open_.values()]
    return scrimp.place(intervals)


def main() -> None:
    """Plan a model for some budgets and print a table."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--model", choices=list(torch_compare.CASES), default="gpt")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--budgets", default="100%,60%,40%")
    parser.add_argument("--time-limit", type=float, default=4.0)
    given = parser.parse_args()
    torch.manual_seed(0)
    model, batch, loss_fn, _ = torch_compare.make(given.model, given.batch)
    options = {"costs": "estimate", "time_limit": given.time_limit}
    print(
        "| budget | in use, MiB | caching allocator | one block taken ahead | placed |\n|---|---|---|---|---|"
    )
    budgets = given.budgets.split(",")
    for budget, step in zip(
        budgets, scrimp.torch.sweep(model, loss_fn, batch, budgets, **options), strict=True
    ):
        if not isinstance(step, scrimp.torch.Step):
            print(f"| {budget} | {step} | | | |")
            continue
        steps = events(step._plans.latest)
        packed = placed(steps)
        numbers = [simulated(steps, 0).held, with_one_block(steps, packed.live), packed.arena]
        more = " | ".join(f"{held / packed.live - 1:+.1%}" for held in numbers)
        print(f"| {budget} | {packed.live / MIB:.1f} | {more} |", flush=True)


if __name__ == "__main__":
    main()
