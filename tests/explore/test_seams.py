"""The explorer's own seams: one thread runs everything, or it is said."""

from __future__ import annotations

import threading

from explore.scheduler import Choices, Odds, World
from explore.seams import THREADS, _see_thread
from explore.virtual import Entered


def test_a_thread_of_the_machine_reads_no_answer_of_another() -> None:
    """A thread that the product makes in a world, and that the world does not run, is refused at
    its first call and fails the seed, in place of taking replies that others wait for."""
    world, refused = World(Choices(0), Odds()), list[str]()

    def call() -> None:
        try:
            _see_thread("redis get")
        except RuntimeError as error:
            refused.append(str(error))

    Entered.world = world
    try:
        thread = threading.Thread(target=call, name="begin_0")
        thread.start()
        thread.join()
    finally:
        Entered.world = None
        world.loop.close()
    assert refused == [f"{THREADS}; begin_0 is none"]
    assert str(world.violation) == f"{THREADS}: begin_0: redis get"
