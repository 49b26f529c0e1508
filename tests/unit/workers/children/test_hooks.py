"""A job's own functions: what they may do, and that whatever else they do is the fate of their item
alone.

Most of it without a process: ``Here`` answers as a child does. What only a child can prove is in
test_children.py.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from attempts import make_attempt

from penstock_ratelimit.for_penstock import DETAIL_CHARS
from penstock_workers.children import protocol
from penstock_workers.children.protocol import (
    ImportHook,
    Postprocess,
    Preprocess,
    RunningCalls,
    new_file,
)
from penstock_workers.errors import ChildBroken, HookMissing, HookStuck
from penstock_workers.in_child import hook_calls
from penstock_workers.in_child.hook_calls import HookCalls
from penstock_workers.in_child.hook_imports import HOOKS_KEPT, HookImports
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.run import job_code
from penstock_workers.item.run.job_code import JobCode
from penstock_workers.item.slots import Slots

BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
REPLY = Reply(b'{"answer":1}', 200, "r", "m", "stop", 3, 2, "text", 5)

MODULE = """
import asyncio, functools, threading, time
from penstock_workers.hooks import Invalid, Item

gate = threading.Event()
not_callable = 5

def louder(item):
    item.body["messages"][0]["content"] += "!"
    return item

def another(item):
    return Item(item.job_id, item.generation, "other-" + item.doc_id, item.endpoint, {"model": "new"})

async def later(item):
    await asyncio.sleep(0)
    return louder(item)

wrapped = functools.partial(later)

def enrich(item, response):
    return {**response, "doc": item.doc_id, "asked": item.body["model"], "thread": threading.current_thread().name}

async def enrich_later(item, response):
    return enrich(item, response)

def refuse(item, response):
    return Invalid("no " + "x" * 1000)

def refuse_for_good(item, response):
    return Invalid("never", retry=False)

def nothing(item, *rest): pass
def a_list(item, *rest): return [1]
def a_generator(item, *rest): yield item
async def an_async_generator(item, *rest): yield item
def bad_body(item):
    item.body = [1]
    return item
def no_json(item):
    item.body["x"] = object()
    return item
def no_json_answer(item, response): return {"x": {1, 2}}
def endless(item, response):
    response["x"] = response
    return response
def huge(item, response): return {"x": "y" * 2000}

def raises(item, *rest): raise ValueError("no such text")
async def raises_later(item, *rest): raise KeyError("k")
def leaves(item, *rest): raise SystemExit(3)
async def leaves_later(item, *rest): raise SystemExit(3)
def interrupts(item, *rest): raise KeyboardInterrupt
def stops(item, *rest): raise StopIteration(1)
async def cancels(item, *rest): raise asyncio.CancelledError
def times_out(item, *rest): raise TimeoutError("its own")
async def times_out_later(item, *rest): raise TimeoutError("its own")
def takes_none(): pass
async def takes_none_later(): pass

def sticks(item, *rest): gate.wait()
async def sticks_later(item, *rest): await asyncio.Event().wait()
def sticky_awaitable(item, *rest): return sticks_later(item)
"""


COUNTED = "import sys\nsys.counted = getattr(sys, 'counted', 0) + 1\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of hooks that can be imported."""
    (tmp_path / "hooks_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "hooks_of_test"
    loaded = sys.modules.pop("hooks_of_test", None)
    if loaded is not None:
        loaded.gate.set()  # lets go of threads that a test left waiting


class Here:
    """A child pool whose calls run in this process, through the same messages."""

    def __init__(self, timeout_s: float) -> None:
        self._calls = HookCalls(RunningCalls(new_file()), None, timeout_s)

    async def ask(
        self, call: ImportHook | Preprocess | Postprocess, line: int = 0
    ) -> protocol.ChildReply:
        return await self._calls.answer(1, call)


def hooks_here(timeout_s: float = 10) -> JobCode:
    pool: Any = Here(timeout_s)
    return JobCode(pool, pool, pool, timeout_s)


@pytest.fixture
async def at_work() -> JobCode:
    return hooks_here()


def attempt(**spec: Any) -> Attempt:
    return make_attempt(generation=2, body=BODY, **spec)


async def before(at_work: JobCode, path: str) -> tuple[Failure | None, dict[str, Any]]:
    item = attempt(preprocess=path)
    await at_work.ready(item)
    failure = await at_work.preprocess(item)
    assert item.given == BODY
    return failure, orjson.loads(item.body)


async def after(at_work: JobCode, path: str) -> Reply | Failure:
    return await at_work.accept(attempt(postprocess=path), REPLY)


async def test_a_job_without_hooks_is_left_as_it_is(at_work: JobCode) -> None:
    """No hook, no parsing: the same bytes and the same reply."""
    item = attempt()
    assert await at_work.preprocess(item) is None
    assert (item.body, await at_work.accept(item, REPLY)) == (BODY, REPLY)


@pytest.mark.parametrize("name", ["louder", "later", "wrapped"])
async def test_preprocess_changes_what_is_sent(at_work: JobCode, module: str, name: str) -> None:
    """Plain, async, or plain around async."""
    assert (await before(at_work, f"{module}:{name}"))[1]["messages"][0]["content"] == "hello!"


async def test_preprocess_may_return_an_item_of_its_own(at_work: JobCode, module: str) -> None:
    """Only its body counts: what the document is called is not the hook's to say."""
    item = attempt(preprocess=f"{module}:another")
    assert await at_work.preprocess(item) is None
    assert (item.body, item.key.doc_id) == (b'{"model":"new"}', "doc")


async def test_postprocess_changes_what_is_stored(at_work: JobCode, module: str) -> None:
    """The counts of the reply stay; a plain function runs in a thread of its own, an async one on
    the loop."""
    plain, asynchronous = (
        await after(at_work, f"{module}:enrich"),
        await after(at_work, f"{module}:enrich_later"),
    )
    assert isinstance(plain, Reply)
    assert isinstance(asynchronous, Reply)
    assert orjson.loads(plain.body) == {"answer": 1, "doc": "doc", "asked": "m", "thread": "hook"}
    assert orjson.loads(asynchronous.body)["thread"] == threading.current_thread().name
    assert (plain.prompt_tokens, plain.finish_reason) == (3, "stop")


@pytest.mark.parametrize(("name", "final"), [("refuse", False), ("refuse_for_good", True)])
async def test_invalid_is_a_failure_of_its_own(
    at_work: JobCode, module: str, name: str, final: bool
) -> None:
    """It is retried unless the hook says that this does not help."""
    said = await after(at_work, f"{module}:{name}")
    assert isinstance(said, Failure)
    assert (said.name, said.final, said.status) == ("invalid_result", final, 200)
    assert said.detail.startswith(f"{module}:{name}: n")
    assert len(said.detail) <= DETAIL_CHARS


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "ValueError: no such text (line"),
        ("raises_later", "KeyError: 'k' (line"),
        ("leaves", "SystemExit: 3"),
        ("leaves_later", "SystemExit: 3"),
        ("interrupts", "KeyboardInterrupt"),
        ("stops", "StopIteration: 1"),
        ("cancels", "CancelledError"),
        ("times_out", "TimeoutError: its own"),
        ("times_out_later", "TimeoutError: its own"),
        ("takes_none", "takes 0 positional arguments"),
        ("takes_none_later", "takes 0 positional arguments"),
        ("nothing", "it returned nothing"),
        ("a_list", "it returned list"),
        ("a_generator", "it returned generator"),
        ("an_async_generator", "it returned async_generator"),
    ],
)
async def test_whatever_a_hook_raises_or_returns_ends_its_item_alone(
    at_work: JobCode, module: str, name: str, words: str
) -> None:
    """The failure has the last line of the traceback; the loop and the next item go on."""
    failure, body = await before(at_work, f"{module}:{name}")
    refused = await after(at_work, f"{module}:{name}")
    assert isinstance(refused, Failure)
    for said, status in ((failure, None), (refused, 200)):
        assert said is not None
        assert (said.name, said.status, said.detail.startswith(f"{module}:{name}: ")) == (
            "hook_failed",
            status,
            True,
        )
        assert words in said.detail
    assert body == orjson.loads(BODY)
    assert (await before(at_work, f"{module}:louder"))[0] is None


@pytest.mark.parametrize(
    ("name", "words"), [("bad_body", "an item whose body is list"), ("no_json", "not JSON")]
)
async def test_a_body_that_cannot_be_sent_is_a_failure(
    at_work: JobCode, module: str, name: str, words: str
) -> None:
    """And the body of the item stays what it was."""
    failure, body = await before(at_work, f"{module}:{name}")
    assert failure is not None
    assert (failure.name, words in failure.detail, body) == (
        "hook_failed",
        True,
        orjson.loads(BODY),
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [("no_json_answer", "not JSON"), ("endless", "not JSON"), ("huge", "1000 are allowed")],
)
async def test_a_response_that_cannot_be_stored_is_a_failure(
    at_work: JobCode, module: str, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook's result that is not JSON or too large ends as `hook_failed`, with the reason."""
    monkeypatch.setattr(hook_calls, "HOOK_RESULT_BYTES", 1_000)
    said = await after(at_work, f"{module}:{name}")
    assert isinstance(said, Failure)
    assert (said.name, words in said.detail) == ("hook_failed", True)


async def test_a_traceback_is_logged_once(
    at_work: JobCode, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that raises for every document has its traceback in the log once: a large job does not
    fill the disk."""
    with caplog.at_level(logging.WARNING, logger=job_code.__name__):
        for _ in range(3):
            await before(at_work, f"{module}:raises")
    assert [
        "Traceback" in record.getMessage()
        for record in caplog.records
        if record.name == job_code.__name__
    ] == [True]


@pytest.mark.parametrize("name", ["sticks", "sticks_later", "sticky_awaitable"])
async def test_a_hook_that_hangs_costs_its_item_only(module: str, name: str) -> None:
    """After its time the item fails; threads that hang do not keep others from theirs."""
    at_work = hooks_here(0.05)
    stuck = await asyncio.gather(
        *(before(at_work, f"{module}:{name}") for _ in range(hook_calls.HOOK_THREADS + 1))
    )
    assert {failure.detail for failure, _ in stuck if failure} == {
        f"{module}:{name}: it took longer than 0.05 s"
    }
    assert len([failure for failure, _ in stuck if failure]) == hook_calls.HOOK_THREADS + 1
    assert (await before(hooks_here(), f"{module}:louder"))[0] is None


async def test_waiting_for_a_thread_is_not_held_against_a_hook(module: str) -> None:
    """More items than threads: each has its time from when it starts, and no more run at once than
    there are threads."""
    threads, running, most, lock = (
        hook_calls.HookThreads(RunningCalls(new_file())),
        0,
        0,
        threading.Lock(),
    )
    meet = threading.Barrier(hook_calls.HOOK_THREADS)

    def call() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        meet.wait(10)
        with lock:
            running -= 1
        return 1

    said = await asyncio.gather(
        *(threads.run(1, call, 10) for _ in range(5 * hook_calls.HOOK_THREADS))
    )
    assert (sum(said), most) == (5 * hook_calls.HOOK_THREADS, hook_calls.HOOK_THREADS)
    threads.close()


async def test_a_hook_that_always_hangs_pauses_its_job(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few calls that hang are bad luck, more in a row are a broken hook; nothing further is paid
    for it."""
    monkeypatch.setattr(job_code, "STUCK_MAX", 1)
    at_work = hooks_here(0.05)
    await before(at_work, f"{module}:sticks")
    assert (await before(at_work, f"{module}:louder"))[0] is None
    assert (await before(at_work, f"{module}:sticks"))[0] is not None
    with pytest.raises(HookStuck, match="hook_stuck: the last 2 calls"):
        await before(at_work, f"{module}:sticks")
    monkeypatch.setattr(job_code, "monotonic", lambda: float("inf"))
    assert (await before(at_work, f"{module}:sticks"))[0] is not None


@pytest.mark.parametrize("name", ["sticks", "sticks_later"])
async def test_a_cancelled_item_stops_waiting_for_its_hook(
    at_work: JobCode, module: str, name: str
) -> None:
    """Its lease is lost: the cancellation comes through, as itself."""
    task = asyncio.create_task(before(at_work, f"{module}:{name}"))
    await before(at_work, f"{module}:louder")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await before(at_work, f"{module}:louder"))[0] is None


async def test_a_loop_that_closes_before_a_hook_returns_harms_nobody(module: str) -> None:
    """A thread whose loop has closed drops its answer, and ends."""
    ended = threading.Event()
    gate = threading.Event()

    def stay() -> None:
        gate.wait(10)
        ended.set()

    async def main() -> None:
        threads = hook_calls.HookThreads(RunningCalls(new_file()))
        with pytest.raises(TimeoutError):
            await threads.run(1, stay, 0.01)

    await asyncio.to_thread(asyncio.run, main())
    gate.set()
    assert await asyncio.to_thread(ended.wait, 10)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("no_such_module_here:f", "No module named 'no_such_module_here'"),
        ("hooks_of_test:absent", "absent is not there"),
        ("hooks_of_test:not_callable", "not_callable is int, not a function"),
    ],
)
async def test_a_hook_that_is_missing_is_named(
    at_work: JobCode, module: str, path: str, words: str
) -> None:
    """The error names the hook, and what of it is missing."""
    with pytest.raises(HookMissing, match=rf"hook_missing: {path}") as caught:
        await before(at_work, path)
    assert words in str(caught.value)


async def test_a_missing_postprocess_is_found_before_the_call(at_work: JobCode) -> None:
    """Nothing is paid for an answer that could not be stored."""
    with pytest.raises(HookMissing):
        await at_work.ready(attempt(postprocess="no_such_module_here:f"))


@pytest.mark.parametrize("text", ["raise SystemExit(1)", "import no_such_module_here", "x ="])
async def test_a_module_that_breaks_while_it_is_imported_is_found_when_it_is_mended(
    at_work: JobCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A module that is corrected is imported without a restart of the workers."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_hooks.py").write_text(text)
    with pytest.raises(HookMissing, match="cannot be imported here"):
        await before(at_work, "broken_hooks:f")
    (tmp_path / "broken_hooks.py").write_text(
        "def f(item):\n    return item  # of another length than before\n"
    )
    assert (await before(at_work, "broken_hooks:f"))[0] is None
    sys.modules.pop("broken_hooks")


async def test_hooks_are_found_in_the_folder_of_the_worker(
    at_work: JobCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without installing anything, and never before what is installed."""
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hooks_beside.py").write_text("def f(item):\n    return item\n")
    assert (await before(at_work, "hooks_beside:f"))[0] is None
    assert sys.path[-1] == str(tmp_path)
    sys.modules.pop("hooks_beside")


@pytest.mark.parametrize(
    ("allowed", "path", "works"),
    [
        (["hooks_of_test"], "hooks_of_test:louder", True),
        (["json"], "json.decoder:JSONDecoder", True),
        (["hooks_of"], "hooks_of_test:louder", False),
        ([], "hooks_of_test:louder", False),
    ],
)
async def test_a_worker_may_allow_some_modules_only(
    module: str, allowed: list[str], path: str, works: bool
) -> None:
    """A module and what is inside it; names that only begin alike are others."""
    imports = HookImports(RunningCalls(new_file()), allowed)
    if works:
        assert callable(await imports.get(1, path))
        return
    with pytest.raises(HookMissing, match=f"hook_modules allows {', '.join(allowed) or 'none'}"):
        await imports.get(1, path)


async def test_a_module_is_imported_once_for_all_that_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of items start together; and the functions kept are bounded."""
    names = "".join(f"def f{number}(item): return item\n" for number in range(HOOKS_KEPT + 5))
    (tmp_path / "counted_hooks.py").write_text(COUNTED + names)
    monkeypatch.syspath_prepend(tmp_path)
    imports = HookImports(RunningCalls(new_file()), None)
    found = await asyncio.gather(*(imports.get(1, "counted_hooks:f0") for _ in range(50)))
    assert (len(set(found)), vars(sys)["counted"]) == (1, 1)
    for number in range(HOOKS_KEPT + 5):
        await imports.get(1, "counted_hooks:f0")
        await imports.get(1, f"counted_hooks:f{number}")
    assert (len(imports._found), "counted_hooks:f0" in imports._found) == (HOOKS_KEPT, True)
    sys.modules.pop("counted_hooks")


class NoProcess(Here):
    """A machine on which no process can be started, the first so many times."""

    def __init__(self, times: int) -> None:
        super().__init__(10)
        self.left = times

    async def ask(
        self, call: ImportHook | Preprocess | Postprocess, line: int = 0
    ) -> protocol.ChildReply:
        if self.left:
            self.left -= 1
            raise ChildBroken("no process could be started for hooks and schemas: out of memory")
        return await super().ask(call, line)


async def test_a_paid_answer_waits_for_a_process(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that was paid for is not thrown away, to be paid for again, because no process can
    be started at that moment; only after ten minutes it is. After one of them no other document of
    its job is sent (A1)."""
    monkeypatch.setattr(job_code, "START_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(job_code, "KEPT_ON_S", (0.0, 0.0))
    asked = attempt(postprocess=f"{module}:enrich")
    short: Any = NoProcess(2)
    code = JobCode(short, short, short)
    assert isinstance(await code.accept(asked, REPLY), Reply)
    await code.ready(asked)
    longer: Any = NoProcess(3)
    code = JobCode(longer, longer, longer)
    assert isinstance(await code.accept(asked, REPLY), Reply)
    with pytest.raises(ChildBroken):
        await code.ready(asked)
    gone: Any = NoProcess(99)
    with pytest.raises(ChildBroken):
        await JobCode(gone, gone, gone).accept(asked, REPLY)
    assert gone.left == 94
    unpaid: Any = NoProcess(99)
    with pytest.raises(ChildBroken):
        await JobCode(unpaid, unpaid, unpaid).preprocess(attempt(preprocess=f"{module}:louder"))
    assert unpaid.left == 98, "nothing is lost by pausing before the call"


async def test_a_paid_answer_waits_for_its_hook(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a new process cannot import the hook any more, in the middle of a deployment say, no
    further document is sent, and the answers that are here are checked when it can be imported
    again (A1)."""
    monkeypatch.setattr(job_code, "START_AGAIN_S", (0.0, 0.0))

    class Deploying(Here):
        left = 2

        async def ask(
            self, call: ImportHook | Preprocess | Postprocess, line: int = 0
        ) -> protocol.ChildReply:
            if self.left:
                self.left -= 1
                return protocol.Missing(
                    "hook_missing: hooks_of_test:enrich cannot be imported here"
                )
            return await super().ask(call, line)

    pool: Any = Deploying(10)
    code = JobCode(pool, pool, pool)
    asked = attempt(postprocess=f"{module}:enrich")
    assert isinstance(await code.accept(asked, REPLY), Reply)
    with pytest.raises(HookMissing, match="cannot be imported here"):
        await code.ready(asked)
    monkeypatch.setattr(job_code, "monotonic", lambda: float("inf"))
    await code.ready(asked)


async def test_answers_without_their_hook_leave_half_of_the_slots(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a hook is gone for long, paid answers wait in half of the slots; the others say why and
    let their slot go, so that the job pauses and other jobs go on (A1)."""
    monkeypatch.setattr(job_code, "START_AGAIN_S", (0.0, 0.0))
    monkeypatch.setattr(job_code, "KEPT_ON_S", (0.0,) * 20)

    class Gone(Here):
        missing = True

        async def ask(
            self, call: ImportHook | Preprocess | Postprocess, line: int = 0
        ) -> protocol.ChildReply:
            if self.missing:
                return protocol.Missing(
                    "hook_missing: hooks_of_test:enrich cannot be imported here"
                )
            return await super().ask(call, line)

    pool: Any = Gone(10)
    code = JobCode(pool, pool, pool, slots=Slots(8))
    asked = attempt(postprocess=f"{module}:enrich")
    waiting = [asyncio.create_task(code.accept(asked, REPLY)) for _ in range(8)]
    given_up, kept_on = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(given_up), len(kept_on)) == (4, 4)
    assert all(isinstance(one.exception(), HookMissing) for one in given_up)
    with pytest.raises(HookMissing, match="cannot be imported here"):
        await code.ready(asked)
    pool.missing = False
    kept = await asyncio.gather(*kept_on)
    assert all(isinstance(one, Reply) for one in kept)
    pool.missing = True
    again = await asyncio.gather(
        *(code.accept(asked, REPLY) for _ in range(8)), return_exceptions=True
    )
    assert all(isinstance(one, HookMissing) for one in again), "and none waits for ever"


async def test_a_cut_answer_is_named_as_that_before_its_schema_is() -> None:
    """Half a JSON is not the model's mistake: the failure says that it was cut, where, and what to
    raise."""

    class Checks:
        async def ask(self, call: object, line: int = 0) -> protocol.ChildReply:
            return protocol.Mismatch("the answer is not JSON", "$: it is not JSON")

    pool: Any = Checks()
    code = JobCode(pool, pool, pool)
    asked = attempt(response_schema={"type": "object"})
    cut, whole = [
        await code.accept(asked, msgspec.structs.replace(REPLY, finish_reason=reason))
        for reason in ("length", "stop")
    ]
    assert isinstance(cut, Failure)
    assert isinstance(whole, Failure)
    assert (cut.name, whole.name, cut.refused) == ("answer_cut", "schema_mismatch", None)
    assert whole.refused == ("text", "$: it is not JSON")
    assert cut.detail.startswith(
        "the answer was cut after 2 tokens (finish_reason length): raise max_tokens"
    )
    assert whole.detail == "the answer is not JSON"
