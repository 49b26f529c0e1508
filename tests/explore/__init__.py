"""The explorer of interleavings: real code of Penstock, one seeded scheduler, virtual time.

Workers, control processes and people are processes of this world. Each call that they make to SQL
or Redis is a stop: the scheduler chooses who goes on, whose call is refused or happens and is not
answered, who dies, who freezes, whose clock is wrong, when Redis forgets, and when time passes.
A real redis-server and a real database are underneath; their clock is the world's. After each step
``invariants`` looks at the database, and at the end faults stop, the world runs to quiet, and each
document must have one visible outcome.

- ``scheduler``: the world: its clock, its processes and their actors, and the choices of a seed
- ``seams``: where calls to SQL and Redis stop, and where the product reads clocks and makes threads
- ``actors``: the processes: workers, control loops, people; and the provider that they call
- ``scenarios``: what jobs a seed has, and what people do to them
- ``invariants``: what must be true after each step, and in the end
- ``history``: a run as a table, and the shortest one that still fails
- ``known_faults``: faults of the past, of which the explorer must find each

``python -m tests.explore --seeds 1000`` runs seeds and prints what was tried;
``--seeds 417:417`` runs one again, and a seed that fails prints its history.
"""
