"""Real child processes: a call that ends, freezes or fills its child is found, and what ran beside
it is not harmed."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from fleet import until

from penstock_workers.children import child as one_child
from penstock_workers.children.child import (
    LATE_S,
    Child,
    ChildLimits,
    ChildLost,
    Involvement,
    LossCause,
)
from penstock_workers.children.child_pool import (
    DEATHS_ALLOWED,
    SPARED_MAX,
    WIDTHS,
    CallEndedChild,
    ChildPool,
)
from penstock_workers.children.protocol import (
    LOOP,
    CallFault,
    Check,
    ChildCall,
    ChildReply,
    Fine,
    ImportHook,
    Mismatch,
    Missing,
    Postprocess,
    Preprocess,
    RunningCalls,
    TrySchema,
    new_file,
)
from penstock_workers.errors import ChildBroken

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULE = """
import asyncio, os, signal, subprocess, sys, time

def same(item): return item
def pid(item, response): return {"pid": os.getpid(), "out": print("to the log")}
def exits(item, response):
    if item.doc_id == "poison": os._exit(3)
    return response
async def exits_later(item, response):
    await asyncio.sleep(0.01)
    if item.doc_id == "poison": os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(0.05)
    return response
async def exits_in_a_task(item, response):
    async def inner():
        await asyncio.sleep(0.01)
        if item.doc_id == "poison": os._exit(3)
    await asyncio.create_task(inner())
    await asyncio.sleep(0.05)
    return response
async def blocks(item, response):
    if item.doc_id == "poison": time.sleep(1000)
    await asyncio.sleep(0.01)
    return response
def eats(item, response):
    if item.doc_id == "poison":
        eaten = bytearray(900_000_000)
        time.sleep(1000)
    return response
def hangs(item, response):
    if item.doc_id == "poison": time.sleep(1000)
    return response
def starts_others(item, response):
    popen = subprocess.Popen(["sleep", "1000"])
    forked = os.fork()  # it holds open whatever this process has
    while not forked: time.sleep(1)
    return {"pids": [os.getpid(), popen.pid, forked]}
def garbles(item, response):
    for fd in range(3, 4096):  # a child has the worker's number for its end, and the worker many files
        try: os.write(fd, b"\\xff" * 64)
        except OSError: pass
    return response
"""
LIMIT_S = 1.0
BESIDE = 20


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "hooks_in_child.py").write_text(MODULE)
    (folder / "ends_at_import.py").write_text("import os\nos._exit(4)\n")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(modules: Path) -> AsyncIterator[ChildPool]:
    made = pool_of(modules)
    yield made
    await made.close()


def pool_of(modules: Path, **options: object) -> ChildPool:
    told = {"worker": os.getpid(), "path": [*sys.path, str(modules)], "hook_s": LIMIT_S} | options
    return ChildPool(
        partial(Child.start, told, ChildLimits(500_000_000, LIMIT_S, check_s=LIMIT_S)), 1
    )


def after(name: str, doc: str = "doc") -> Postprocess:
    return Postprocess(f"hooks_in_child:{name}", "job", 1, doc, "/v1/x", b"{}", b'{"a":1}')


async def beside(pool: ChildPool, name: str) -> BaseException | object:
    """What comes of a poisonous document among twenty others, all of which must come through."""
    docs = [*(f"doc-{n}" for n in range(BESIDE)), "poison"]
    said = await asyncio.gather(
        *(pool.ask(after(name, doc)) for doc in docs), return_exceptions=True
    )
    assert said[:BESIDE] == [Fine(b'{"a":1}')] * BESIDE
    return said[BESIDE]


async def test_hooks_run_in_another_process(pool: ChildPool) -> None:
    """And what they print goes to the worker's log, not into the conversation (A1)."""
    said = await pool.ask(after("pid"))
    assert isinstance(said, Fine)
    assert f'"pid":{os.getpid()}' not in said.body.decode()


@pytest.mark.parametrize("name", ["exits", "exits_later", "exits_in_a_task"])
async def test_a_call_that_ends_its_process_is_found_and_its_neighbours_live(
    pool: ChildPool, name: str
) -> None:
    """The marks say which call it was; it is tried once more, alone, and is named as the cause then
    (A1, B7)."""
    ended = await beside(pool, name)
    assert isinstance(ended, CallEndedChild)
    assert (ended.cause, ended.deaths) == (LossCause.DIED, DEATHS_ALLOWED)


async def test_a_repeated_call_is_told_of_each_time(pool: ChildPool) -> None:
    """What a dying child may have sent to a provider is billed, and so it is counted."""
    begun: list[None] = []
    with pytest.raises(CallEndedChild):
        await pool.ask(after("exits", "poison"), begins=lambda: begun.append(None))
    assert len(begun) == DEATHS_ALLOWED


async def test_an_async_hook_that_blocks_its_loop_is_ended(pool: ChildPool) -> None:
    """It costs its own item; the ones beside it are asked again in another process (A13)."""
    ended = await beside(pool, "blocks")
    assert isinstance(ended, CallEndedChild)
    assert (ended.cause, ended.deaths) == (LossCause.STUCK, 1)


async def test_a_hook_that_eats_memory_is_ended(pool: ChildPool) -> None:
    """A child that holds more than it may is killed before the machine is short of memory (B7)."""
    ended = await beside(pool, "eats")
    assert isinstance(ended, CallEndedChild)
    assert ended.cause is LossCause.MEMORY


async def test_a_thread_that_hangs_ends_with_its_child(pool: ChildPool) -> None:
    """The call fails after its time, and its process is replaced: threads that never end do not
    pile up (A13)."""
    said = await beside(pool, "hangs")
    assert said == CallFault("it took longer than 1 s", overtime=True, hangs=True)
    first, second = await pool.ask(after("pid")), await pool.ask(after("pid"))
    assert first == second


async def test_a_hook_that_writes_into_the_conversation_is_found(pool: ChildPool) -> None:
    """Garbage where an answer should be is a death of the child, not of the worker (B7)."""
    with pytest.raises(CallEndedChild):
        await pool.ask(after("garbles"))
    assert await pool.ask(after("exits")) == Fine(b'{"a":1}')


async def test_one_regular_expression_costs_one_check(pool: ChildPool) -> None:
    """A pattern that takes for ever on an answer of 41 characters is ended; the checks behind it go
    on (B3)."""
    schema = b'{"type":"string","pattern":"^(a+)+$"}'
    texts = ['"aaa"', '"' + "a" * 40 + 'b"', '"aa"', "5"]
    said = await asyncio.gather(
        *(pool.ask(Check(schema, text)) for text in texts), return_exceptions=True
    )
    assert (said[0], said[2]) == (Fine(), Fine())
    assert isinstance(said[1], CallEndedChild)
    assert said[1].cause is LossCause.STUCK
    assert said[3] == Mismatch(
        "$: 5 is not of type 'string'", '$: it must be of type "string" and is a whole number'
    )


async def test_nothing_is_fetched_for_a_schema(pool: ChildPool) -> None:
    """A reference to a URL or a file is refused without a look at it (B1, B20)."""
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(404)

    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for ref in (f"http://127.0.0.1:{server.server_port}/secret", "file:///etc/passwd"):
            schema = f'{{"$ref":"{ref}"}}'.encode()
            for call in (TrySchema(schema), Check(schema, "5")):
                said = await pool.ask(call)
                assert isinstance(said, CallFault)
                assert "nothing is fetched for a schema" in said.words
                assert "root:" not in said.words
    finally:
        server.shutdown()
        server.server_close()
    assert asked == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (b'{"$ref":"#"}', "it refers to itself without end"),
        (b'{"type":"objekt"}', "'objekt' is not valid"),
        (b'{"$ref":"#/nowhere"}', "nothing is fetched"),
    ],
)
async def test_an_unusable_schema_is_found_before_anything_is_paid(
    pool: ChildPool, schema: bytes, words: str
) -> None:
    """Tried on samples, so that one which only fails in use is found, too (B20)."""
    said = await pool.ask(TrySchema(schema))
    assert isinstance(said, CallFault)
    assert words in said.words


async def test_a_usable_schema_is_fine(pool: ChildPool) -> None:
    """Parts of the schema itself may be referred to (B1)."""
    schema = b'{"$ref":"#/$defs/a","$defs":{"a":{"type":"object","properties":{"next":{"$ref":"#/$defs/a"}}}}}'
    assert await pool.ask(TrySchema(schema)) == Fine()
    assert await pool.ask(Check(schema, '{"next":{"next":{}}}')) == Fine()
    assert await pool.ask(Check(schema, '{"next":5}')) == Mismatch(
        "$.next: 5 is not of type 'object'",
        '$.next: it must be of type "object" and is a whole number',
    )


async def test_a_module_that_ends_its_process_at_import_is_found(pool: ChildPool) -> None:
    """Like a hook that does (A1)."""
    with pytest.raises(CallEndedChild):
        await pool.ask(ImportHook("ends_at_import:f"))


async def test_a_cancelled_call_frees_its_child(pool: ChildPool) -> None:
    """The item's lease is lost: the hook is cancelled, and the next call is answered (A13)."""
    asked = asyncio.create_task(pool.ask(after("blocks")))
    await pool.ask(after("pid"))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await pool.ask(
        Preprocess("hooks_in_child:same", "job", 1, "doc", "/", b'{"b":2}')
    ) == Fine(b'{"b":2}')


async def test_only_allowed_modules_are_imported(modules: Path) -> None:
    """The child enforces `hook_modules`, and names the setting (B10)."""
    pool = pool_of(modules, allowed=["another"])
    said = await pool.ask(after("pid"))
    await pool.close()
    assert isinstance(said, Missing)
    assert """(PENSTOCK_HOOK_MODULES='["hooks_in_child"]')""" in said.words


async def test_a_child_that_cannot_start_is_no_fault_of_a_call(modules: Path) -> None:
    """It says so, and no document gets the failure (A1)."""
    pool = pool_of(modules, hook_s="not a number")
    with pytest.raises(ChildBroken, match="did not start"):
        await pool.ask(after("pid"))
    await pool.close()


async def test_calls_that_meet_a_child_that_has_just_died_are_made_in_another(
    modules: Path,
) -> None:
    """Their answers are paid for: none of them fails because uvloop closed the connection before
    the end of the child was heard of, so none of their documents is asked again (A1, B7)."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> list[ChildReply]:
        pool = pool_of(modules)
        pid = pid_in(await pool.ask(after("pid")))

        async def at_once() -> ChildReply:
            os.kill(pid, signal.SIGKILL)
            # and the loop has not looked since
            until(lambda: not is_running(pid), 10, "the child is dead")
            return await pool.ask(after("exits"))

        async def a_turn_later() -> ChildReply:
            await asyncio.sleep(0)
            return await pool.ask(after("exits"))

        try:
            return list(await asyncio.gather(at_once(), a_turn_later(), a_turn_later()))
        finally:
            await pool.close()

    def run() -> list[ChildReply]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())

    assert await asyncio.to_thread(run) == [Fine(b'{"a":1}')] * 3


@pytest.mark.parametrize(
    "step", ["socket.socketpair", "new_file", "asyncio.create_subprocess_exec"]
)
async def test_a_machine_that_has_no_more_files_is_no_fault_of_a_call(
    modules: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The answer that was to be checked waits for a process, as when there is no memory for one
    (A1)."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(f"{one_child.__name__}.{step}", refuse)
    with pytest.raises(ChildBroken, match=r"no process could be started .*Too many open files"):
        await pool_of(modules).ask(after("pid"))


async def test_children_that_die_before_they_take_a_call_are_no_fault_of_it() -> None:
    """They are replaced so many times, and then none can be started; no document is blamed for it
    (A1)."""
    started = []

    class Dying:
        open, lost, in_flight = True, False, 0

        async def ask(self, call: ChildCall) -> ChildReply:
            self.open, self.lost = False, True
            raise ChildLost(LossCause.DIED, Involvement.OTHER)

    async def start() -> Child:
        started.append(Dying())
        return cast(Child, started[-1])

    with pytest.raises(ChildBroken, match="ended before they took a call"):
        await ChildPool(start, 1).ask(after("pid"))
    assert len(started) == SPARED_MAX + len(WIDTHS)


async def test_time_in_which_the_worker_stood_still_is_held_against_no_call() -> None:
    """After a pause of the whole machine a child has its time as before, and a call that blocks it
    is still found (A13)."""
    process: Any = SimpleNamespace(pid=2**30, returncode=None)  # there is no such process
    running_calls = RunningCalls(new_file())
    child = Child(process, running_calls, ChildLimits(500_000_000, LIMIT_S))
    answer: asyncio.Future[ChildReply] = asyncio.get_running_loop().create_future()
    child._calls[1] = one_child._Pending(after("blocks"), answer, child._signs._heard_at)
    open_end = SimpleNamespace(
        is_closing=lambda: False, write=lambda data: None, close=lambda: None
    )
    child._writer = cast(asyncio.StreamWriter, open_end)
    child._hello.set_result(None)
    running_calls.enter(LOOP, 1)
    begun = child._signs._heard_at
    child._look(begun)
    child._signs.spare(100.0 - LATE_S)
    child._look(begun + 100.0 - LATE_S)
    assert not answer.done()
    child._look(begun + 100.0)
    with pytest.raises(ChildLost, match="STUCK"):
        await answer


WORKER = """
import asyncio, json, os, sys
from penstock_workers.children.child import Child, ChildLimits
from penstock_workers.children.protocol import Postprocess

async def work():
    options = {"worker": os.getpid(), "path": sys.path + [sys.argv[1]], "hook_s": 10}
    child = await Child.start(options, ChildLimits(500_000_000, 10))
    said = await child.ask(Postprocess("hooks_in_child:starts_others", "job", 1, "doc", "/v1/x", b"{}", b"{}"))
    print(said.body.decode(), flush=True)
    await asyncio.sleep(100)

asyncio.run(work())
"""


async def test_what_hooks_have_started_ends_with_a_killed_worker(modules: Path) -> None:
    """Neither the child nor the processes that a hook started or forked outlive a worker that gets
    SIGKILL (A1)."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, str(modules), stdout=subprocess.PIPE
    )
    assert worker.stdout is not None
    pids = json.loads(await worker.stdout.readline())["pids"]
    assert all(map(is_running, pids))
    worker.kill()
    try:
        until(
            lambda: not any(map(is_running, pids)),
            10,
            "its child and what that has started are gone",
        )
    finally:
        for pid in filter(is_running, pids):
            os.kill(pid, signal.SIGKILL)
        await worker.wait()  # its output ends with the last of them


def pid_in(said: ChildReply) -> int:
    assert isinstance(said, Fine)
    return int(json.loads(said.body)["pid"])


def is_running(pid: int) -> bool:
    """A zombie that its new parent has not fetched yet does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
