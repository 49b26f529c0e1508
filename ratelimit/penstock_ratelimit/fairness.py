"""A process lets its callers start in turn: fair between tenants, and urgent work first.

Between the jobs of a tenant it is fair by weight.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) on three levels. At each level the one that
was served least, for its weight, is next: its tag, the virtual time at which its next item starts,
is the smallest. Serving an item moves the tag of its job by cost / weight, and so the tags of its
tenant and its class. While two jobs wait, what they were given for their weights differs by no more
than their largest items.

Classes of priority age by the same rule. A class weighs eight times the one below it, so urgent
work passes normal work at once, and a class that is passed over keeps its tag while the tags of the
others move on: its turn always comes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush, heapreplace
from itertools import chain, count
from typing import Final, Generic, TypeVar

T = TypeVar("T")

CLASS_STEP: Final = 8.0
"""Weight of a class over the one below it: urgent work waits for little, and a ninth always goes to
the others."""
MAX_FLOW_WEIGHT: Final = 1e6
"""Weights are compared with each other; more than this between two jobs is a priority, not a
weight."""


class Priority(IntEnum):
    """Classes of work, the most urgent first."""

    URGENT = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True)
class Flow:
    """The owner of an item's work.

    ``weight`` counts among the jobs of one tenant and class; tenants count the same.

    Raises ValueError for a weight or a priority that cannot be.
    """

    tenant: str = ""
    job: str = ""
    weight: float = 1.0
    priority: int = Priority.NORMAL

    def __post_init__(self) -> None:
        if not 0 < self.weight <= MAX_FLOW_WEIGHT:
            raise ValueError(
                f"Flow.weight is {self.weight!r}: give a number above 0 and at most "
                f"{MAX_FLOW_WEIGHT:g}"
            )
        Priority(self.priority)


DEFAULT_FLOW: Final = Flow()


class FairLine(Generic[T]):
    """A line of items, each with its flow and its cost.

    First come, first served inside a flow, and with one flow at all.

    Items for which ``gone`` is true are skipped and charged to no flow. Every step takes O(log
    flows). Kept are the items and, of flows that left, the tags that are ahead of the waiting ones:
    leaving earns no credit and clears no debt. They are forgotten when the others have caught up,
    and when the line is empty.

    Items of one flow alone, as of a worker's only job, wait in a plain line: tags are for telling
    flows apart.
    """

    def __init__(self, gone: Callable[[T], bool] | None = None) -> None:
        self._gone = gone or (lambda _: False)
        # ahead of all others; charged when they were taken the first time
        self._returned: deque[T] = deque()
        # all others with their costs, while they are of one flow
        self._alone: deque[tuple[T, float]] = deque()
        self._flow = DEFAULT_FLOW  # that one
        self._served = 0.0  # cost of the item of it that was taken last; 0 where none was
        self._classes: _Crowd[T] = _Crowd()  # all others, since a second flow came

    def push(self, item: T, flow: Flow, cost: float) -> None:
        """Put an item at the end of its flow.

        ``cost`` is its part of what all wait for, in any one unit. Raises ValueError."""
        if not 0 < cost < math.inf:
            raise ValueError(f"the cost of an item is {cost!r}: give a finite number above 0")
        if not self._alone and not self._classes:
            self._flow, self._served = flow, 0.0
        elif self._classes or not (flow is self._flow or flow == self._flow):
            self._sort()
            self._classes.push(_path(flow), item, cost)
            return
        self._alone.append((item, cost))

    def push_front(self, items: Iterable[T]) -> None:
        """Give back items that were popped: they are next again, in this order.

        They are not charged a second time."""
        self._returned.extendleft(reversed(list(items)))

    def pop(self) -> T | None:
        """Return the next item; None when the line is empty."""
        while self._returned:
            item = self._returned.popleft()
            if not self._gone(item):
                return item
        while self._alone:
            item, cost = self._alone.popleft()
            if not self._alone:
                self._flow = DEFAULT_FLOW
            if not self._gone(item):
                self._served = cost
                return item
        popped = self._classes.pop(self._gone) if self._classes else None
        return None if popped is None else popped[0]

    def _sort(self) -> None:
        """Begin to sort, since a second flow has come.

        The first keeps what it was charged last, as if it had had tags all the time."""
        if self._alone:
            self._classes.begin(_path(self._flow), self._served)
        while self._alone:
            self._classes.push(_path(self._flow), *self._alone.popleft())
        self._flow = DEFAULT_FLOW

    def __bool__(self) -> bool:
        return bool(self._alone or self._returned or self._classes)

    def __len__(self) -> int:
        """Count the items in line, with those that are gone and were not passed yet.

        Takes O(flows)."""
        return len(self._returned) + len(self._alone) + len(self._classes)

    def __iter__(self) -> Iterator[T]:
        """Yield all items in line, in no order but that of each flow."""
        return chain(self._returned, (item for item, _ in self._alone), self._classes)


class _Queue(Generic[T]):
    """The items of one job."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: deque[tuple[T, float]] = deque()

    def push(self, path: _Path, item: T, cost: float) -> None:
        self._items.append((item, cost))

    def pop(self, gone: Callable[[T], bool]) -> tuple[T, float] | None:
        """Return an item and its cost; None when all who waited are gone."""
        while self._items:
            item, cost = self._items.popleft()
            if not gone(item):
                return item, cost
        return None

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return (item for item, _ in self._items)


class _Branch(Generic[T]):
    """One of a crowd: a class, a tenant or a job.

    ``tag`` is the virtual time at which its next item starts."""

    __slots__ = ("line", "name", "tag", "weight")

    def __init__(self, name: Hashable, line: _Queue[T] | _Crowd[T], tag: float) -> None:
        self.name, self.line, self.tag = name, line, tag
        self.weight = 1.0


class _Crowd(Generic[T]):
    """Branches that share what their crowd is given.

    Virtual time is the tag of the one served last."""

    __slots__ = ("_branches", "_left", "_now", "_order", "_waiting")

    def __init__(self) -> None:
        self._branches: dict[Hashable, _Branch[T]] = {}
        self._waiting: list[_Entry[T]] = []  # a heap by tag; equal tags take turns
        # a heap by tag of branches that ran out of items while ahead
        self._left: list[_Entry[T]] = []
        self._order = count()
        self._now = 0.0

    def begin(self, path: _Path, cost: float) -> None:
        """Begin with one branch, which is ahead by an item of ``cost`` that was served just now.

        Only while there is none."""
        name, weight = path.pop()
        line: _Queue[T] | _Crowd[T] = _Queue()
        if path:
            line = _Crowd[T]()
            line.begin(path, cost)
        self._branches[name] = _Branch(name, line, cost / weight)

    def push(self, path: _Path, item: T, cost: float) -> None:
        name, weight = path.pop()
        branch = self._branches.get(name)
        if branch is None:
            branch = self._branches[name] = _Branch(name, _Crowd() if path else _Queue(), self._now)
        branch.weight = weight
        if not branch.line:
            heappush(self._waiting, (branch.tag, next(self._order), branch))
        branch.line.push(path, item, cost)

    def pop(self, gone: Callable[[T], bool]) -> tuple[T, float] | None:
        popped = None
        while self._waiting and popped is None:
            tag, _, branch = self._waiting[0]
            popped = branch.line.pop(gone)
            if popped is not None:
                self._now = tag
                branch.tag = tag + popped[1] / branch.weight
            if branch.line:
                heapreplace(self._waiting, (branch.tag, next(self._order), branch))
            else:
                heappop(self._waiting)
                heappush(self._left, (branch.tag, next(self._order), branch))
        self._forget()
        return popped

    def _forget(self) -> None:
        """Forget those who left and are no longer ahead.

        So a tag found at the return is never in the past."""
        if not self._waiting:
            self._branches.clear()
            self._left.clear()
            self._now = 0.0
        while self._left and self._left[0][0] <= self._now:
            _, _, branch = heappop(self._left)
            if not branch.line and branch.tag <= self._now:
                self._branches.pop(branch.name, None)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return sum(len(branch.line) for branch in self._branches.values())

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(branch.line for branch in self._branches.values())


_Path = list[tuple[Hashable, float]]  # names and weights from the leaf up: job, tenant, class
_Entry = tuple[float, int, _Branch[T]]


def _path(flow: Flow) -> _Path:
    return [
        (flow.job, flow.weight),
        (flow.tenant, 1.0),
        (flow.priority, CLASS_STEP**-flow.priority),
    ]
