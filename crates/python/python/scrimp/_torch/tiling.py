"""Which parts of a step are run by tiles, and by how many: as asked for, or those with the fastest plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from scrimp._native import format_bytes
from scrimp._torch.capture import Joint
from scrimp._torch.settings import FREE, Settings
from scrimp._torch.tiled import Tiled, parts_in, tiled
from scrimp._torch.tiles import Part, StripPart
from scrimp.errors import BadOption, Infeasible, Unsupported
from scrimp.planning import Plan

Asked = TypeVar("Asked")
Attempt = Callable[[Joint, Settings], tuple[Asked, Plan]]
"""Makes a problem of a captured graph and plans it."""

COUNTS = (2, 4, 8, 16, 32, 64, 128)
"""The numbers of tiles that are tried."""
SEARCH = 0.2
"""Of the time limit, what the search of one of them gets."""
SCREENING = 0.1
"""The same if costs are only estimated."""
Judged = tuple[bool, float]
"""Whether there is no plan, and seconds, or bytes."""
REFUSED: Judged = True, math.inf
MOST_WORSE = 2
"""Numbers in a row that may be no better than one before."""


@dataclass(frozen=True)
class Choice:
    """Some parts and their tiles."""

    tiles: int
    parts: frozenset[str]
    """The names of the products that those by rows begin with."""
    height: int | None
    """The least height of images that are run by strips; None: none are."""


Judgements = dict[bool, tuple[Judged, Choice]]
"""The best tiles by strips (`True`) and by rows (`False`)."""


class Tiling:
    """Chooses tiles, and remembers what it chose."""

    def __init__(self) -> None:
        """Nothing is chosen yet."""
        self.latest: tuple[Choice, int] | None = None
        """What was chosen, and the budget in bytes."""
        self._has_tiled = False

    def best(
        self, joint: Joint, settings: Settings, attempt: Attempt[Asked], *, ahead: bool, gated: bool = False
    ) -> tuple[Asked, Plan]:
        """Plan with the tiles that are asked for; with `auto`, with those whose plan is fastest.

        In a training loop, when it isn't ``ahead``, what was chosen for another batch is tried first.
        """
        if settings.tile != "auto":
            return attempt(self.fixed(joint, settings, gated=gated), settings)
        search = _Search(joint, settings, attempt, gated)
        if not ahead and self.latest is not None:
            choice, budget = self.latest
            again = search.tried(choice, settings.within(budget))
            if not isinstance(again, Infeasible):
                return again
        chosen, found = search.best()
        if chosen is not None:
            self.latest = chosen, found[1].budget
        return found

    def fixed(self, joint: Joint, settings: Settings, *, gated: bool = False) -> Joint:
        """Run all that can be by the number of tiles that is asked for; of later batches, perhaps nothing."""
        if settings.tile == "off":
            return joint
        if not isinstance(settings.tile, int):
            raise BadOption("a sweep takes a number of tiles, or 'off', so that its plans are of one problem")
        found = tiled(joint, settings.tile, gated=gated)
        if not found.parts and self._has_tiled:
            settings.say(f"nothing runs by tiles: {found.reason}")
            return found.joint
        if not found.parts:
            raise Unsupported(
                f"nothing of the model can be run by tiles: {found.reason}; plan with tile='off'"
            )
        self._has_tiled = True
        settings.say(_told(found, settings.tile))
        return found.joint


class _Search(Generic[Asked]):
    """Tries tiles for one graph."""

    def __init__(self, joint: Joint, settings: Settings, attempt: Attempt[Asked], gated: bool) -> None:
        self.joint = joint
        self.settings = settings
        self.attempt = attempt
        self.gated = gated
        self.least: Infeasible | None = None
        """Of those without a plan, the one that needs least."""

    def tried(self, choice: Choice, settings: Settings) -> tuple[Asked, Plan] | Infeasible:
        """Plan with some tiles."""
        found = tiled(self.joint, choice.tiles, gated=self.gated, only=choice.parts, height=choice.height)
        settings.say(f"trying {_told(found, choice.tiles)}")
        return self.planned(found.joint, settings)

    def planned(self, joint: Joint, settings: Settings) -> tuple[Asked, Plan] | Infeasible:
        """Plan, or say why there is no plan."""
        try:
            return self.attempt(joint, settings)
        except Infeasible as error:
            return error

    def best(self) -> tuple[Choice | None, tuple[Asked, Plan]]:
        """The fastest of plans without tiles and with several; a percentage is of the bytes without."""
        plain = self.planned(self.joint, self.settings)
        if isinstance(plain, Infeasible):
            settings = self.settings.within(plain.budget)
        elif plain[1].overhead <= FREE and self.settings.budget != "min":
            return None, plain
        else:
            settings = self.settings.within(plain[1].budget)
        choice = self._fastest(settings)
        chosen = self.tried(choice, settings) if choice is not None else None
        if chosen is not None and not isinstance(chosen, Infeasible):
            limit = math.inf if isinstance(plain, Infeasible) else self._rank(plain[1])
            if self._rank(chosen[1]) < limit:
                return choice, chosen
        if not isinstance(plain, Infeasible):
            return None, plain
        if self.least is None or self.least.least_found >= plain.least_found:
            raise plain
        least = self.least.least_found
        text = f"{plain}. By tiles the least that was found is {least} bytes ({format_bytes(least)})"
        raise Infeasible(text, plain.budget, least, self.least.floor)

    def _fastest(self, settings: Settings) -> Choice | None:
        """The tiles with the fastest plan, if there is one.

        Operators take long to measure, so the search is by estimated costs; what it finds is measured, and
        then half as many tiles or twice as many, as long as that is better.
        """
        limit = settings.time_limit
        best = self._screened(dataclasses.replace(settings, costs="estimate", time_limit=limit * SCREENING))
        if best and settings.costs != "estimate":
            _, start = min(best.values(), key=lambda judged: judged[0])
            best = self._measured_near(start, dataclasses.replace(settings, time_limit=limit * SEARCH))
        (refused, _), choice = min(best.values(), key=lambda judged: judged[0], default=(REFUSED, None))
        return None if refused else choice

    def _measured_near(self, start: Choice, settings: Settings) -> Judgements:
        """Judge some tiles, and fewer or more of the same parts as long as that is better."""
        best: Judgements = {}
        rank = self._judged(start, settings, best)
        for factor in (0.5, 2):
            choice, is_better = start, False
            while (tiles := int(choice.tiles * factor)) in COUNTS:
                choice = dataclasses.replace(choice, tiles=tiles)
                now = self._judged(choice, settings, best)
                if now >= rank:
                    break
                rank, is_better = now, True
            if is_better:
                break
        return best

    def _screened(self, settings: Settings) -> Judgements:
        """Judge all numbers of tiles of what may be tiled, until more are no better."""
        best: Judgements = {}
        for what, most in _choices(parts_in(self.joint)):
            rank, worse = REFUSED, 0
            for tiles in (count for count in COUNTS if count <= most):
                now = self._judged(dataclasses.replace(what, tiles=tiles), settings, best)
                worse = 0 if now < rank else worse + 1
                rank = min(rank, now)
                if worse == MOST_WORSE:
                    break
        if len(best) == 2:
            (_, rows), (_, strips) = best[False], best[True]
            for tiles in sorted({rows.tiles, strips.tiles, 2 * max(rows.tiles, strips.tiles)}):
                self._judged(Choice(tiles, rows.parts, strips.height), settings, best)
        return best

    def _judged(self, choice: Choice, settings: Settings, best: Judgements) -> Judged:
        """Try some tiles, and remember them if they are better than what is known of their kind."""
        found = self.tried(choice, settings)
        if isinstance(found, Infeasible):
            as_asked = settings.costs == self.settings.costs
            if as_asked and (self.least is None or found.least_found < self.least.least_found):
                self.least = found
            now: Judged = True, found.least_found
        else:
            now = False, self._rank(found[1])
        kind = choice.height is not None
        if kind not in best or now < best[kind][0]:
            best[kind] = now, choice
        return now

    def _rank(self, plan: Plan) -> float:
        """What is compared: seconds, and bytes if the least are wanted."""
        return plan.peak if self.settings.budget == "min" else plan.cost


def _choices(parts: list[Part]) -> Iterator[tuple[Choice, int]]:
    """What may be tiled, and by how many tiles at most.

    By rows the largest parts, then with them the next ones, and so on: those of one size together. By strips
    the images of the largest height, and so on.
    """
    by_rows = [part for part in parts if not isinstance(part, StripPart)]
    chosen: frozenset[str] = frozenset()
    for size in sorted({part.inside for part in by_rows}, reverse=True):
        chosen |= {part.first.name for part in by_rows if part.inside == size}
        yield Choice(1, chosen, None), max(p.count for p in by_rows if p.first.name in chosen)
    heights = {height for part in parts if isinstance(part, StripPart) for height in part.heights}
    for height in sorted(heights, reverse=True):
        yield Choice(1, frozenset(), height), height


def _told(found: Tiled, tiles: int) -> str:
    names = ", ".join(part.name for part in found.parts[:3])
    more = f" and {len(found.parts) - 3} more" if len(found.parts) > 3 else ""
    return f"{tiles} tiles of {names}{more}"
