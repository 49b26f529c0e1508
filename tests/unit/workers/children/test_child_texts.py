"""No text of a hook, an exception or a model leaves a call to a child without an answer, whatever
stands in it."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio

from penstock_workers.children.child import TURNS, Child, ChildLimits, ChildLost, LossCause
from penstock_workers.children.child_pool import WIDTHS, CallEndedChild, ChildPool
from penstock_workers.children.protocol import (
    CallFault,
    CallFrame,
    Check,
    ChildCall,
    ChildReply,
    Fine,
    ImportHook,
    Infer,
    Inferred,
    Mismatch,
    Missing,
    Postprocess,
    Refused,
    ReplyFrame,
    RunningCalls,
    TrySchema,
    frame,
    new_file,
    read_call,
    read_reply,
)
from penstock_workers.in_child import hook_imports
from penstock_workers.in_child.hook_calls import HOOK_THREADS

pytestmark = pytest.mark.asyncio(loop_scope="module")

HALF = "\ud83d"
MODULE = '''
import asyncio, json, time
from penstock_workers.hooks import Invalid

HALF = json.loads('"\\\\ud83d"')

class Odd(Exception):
    """An exception whose text is what ``said`` does."""
    def __init__(self, said): self.said = said
    def __str__(self): return self.said()
    __repr__ = __str__

class OddReason:
    def __init__(self, said): self.said = said
    def __str__(self): return self.said()
    __repr__ = __bool__ = __str__

def throw(error):
    raise error

def half(): return HALF
def enormous(): return "x" * 10_000_000
def failing(): raise ValueError("no text")
def leaving(): raise SystemExit(3)
def number(): return 5
def endless(): time.sleep(1000)

TEXTS = {"half": half, "enormous": enormous, "failing": failing, "leaving": leaving, "number": number, "endless": endless}

def raises(item, response): raise Odd(TEXTS[item.doc_id])
async def raises_later(item, response): raise Odd(TEXTS[item.doc_id])
def refuses(item, response): return Invalid(OddReason(TEXTS[item.doc_id]))
def doubts(item, response): return Invalid("why", retry=OddReason(TEXTS[item.doc_id]))
def plain_error(item, response): raise ValueError(f"{HALF} and a NUL \\0 and \\u2028 \\u202e \\ufeff")
def plain_reason(item, response): return Invalid(HALF)
def answers(item, response): return {"text": HALF, HALF: [HALF, "\\0"]}
def sees(item, response): return {"saw": response["text"]}
def own_base(item, response): raise type("Own", (BaseException,), {})(HALF)
def odd_notes(item, response):
    error = ValueError("x")
    error.__notes__ = 5
    raise error
class Hidden(ValueError):
    @property
    def __traceback__(self): raise RuntimeError
def hides_its_trace(item, response): raise Hidden("x")
class OddDict(dict):
    def items(self): raise RuntimeError("no items")
def odd_dict(item, response): return OddDict(a=1)

async def ends_itself(item, response):
    asyncio.current_task().cancel()
    await asyncio.sleep(10)
async def shrugs_off(item, response):
    while True:
        try: await asyncio.sleep(1000)
        except asyncio.CancelledError: pass
'''
LIMIT_S = 1.0
PATIENCE_S = 30.0  # for what hung for ever before


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "hooks_of_odd_texts.py").write_text(MODULE)
    (folder / "odd_import.py").write_text("raise type('Own', (BaseException,), {})('\\ud83d')\n")
    (folder / "cancels_import.py").write_text("import asyncio\nraise asyncio.CancelledError\n")
    (folder / "failing_import.py").write_text(
        "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd\n"
    )
    (folder / "endless_import.py").write_text("import sys\nsys.endless_import.wait()\n")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(modules: Path) -> AsyncIterator[ChildPool]:
    told = {"worker": os.getpid(), "path": [*sys.path, str(modules)], "hook_s": LIMIT_S}
    made = ChildPool(
        partial(Child.start, told, ChildLimits(500_000_000, LIMIT_S, check_s=LIMIT_S)), 1
    )
    yield made
    await made.close()


async def said_by(pool: ChildPool, call: ChildCall) -> ChildReply | CallEndedChild:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await pool.ask(call)
        except CallEndedChild as ended:
            return ended


def after(name: str, text: str = "doc", answer: bytes = b'{"a":1}') -> Postprocess:
    return Postprocess(f"hooks_of_odd_texts:{name}", "job", 1, text, "/v1/x", b"{}", answer)


@pytest.mark.parametrize("text", ["half", "enormous", "failing", "leaving", "number"])
@pytest.mark.parametrize("hook", ["raises", "raises_later", "refuses", "doubts"])
async def test_whatever_text_a_hook_gives_its_call_is_answered(
    pool: ChildPool, hook: str, text: str
) -> None:
    """Its exception or reason has half an emoji, 10 MB, or fails when it is read: the item has its
    failure, in its child (A1)."""
    said = await said_by(pool, after(hook, text))
    assert isinstance(said, CallFault | Refused), said
    words = said.words if isinstance(said, CallFault) else said.reason
    assert 0 < len(words) <= 2_500
    assert words.encode()


@pytest.mark.parametrize("hook", ["raises", "raises_later", "refuses", "doubts"])
async def test_a_text_that_takes_for_ever_costs_its_own_call(pool: ChildPool, hook: str) -> None:
    """The time in which an error or a reason becomes words is the hook's own time (A1)."""
    said = await said_by(pool, after(hook, "endless"))
    assert isinstance(said, CallEndedChild) or (isinstance(said, CallFault) and said.overtime)


@pytest.mark.parametrize(
    ("hook", "expected"),
    [
        ("plain_error", "ValueError: \ufffd and a NUL"),
        ("own_base", "hooks_of_odd_texts.Own: \ufffd"),
        ("plain_reason", "\ufffd"),
        ("odd_notes", "ValueError: x"),
        ("hides_its_trace", ""),
        ("ends_itself", "asyncio.exceptions.CancelledError"),
    ],
)
async def test_what_cannot_be_encoded_is_replaced_and_nothing_else(
    pool: ChildPool, hook: str, expected: str
) -> None:
    """Half an emoji is U+FFFD; all other characters come as they are (A1)."""
    said = await said_by(pool, after(hook))
    assert isinstance(said, CallFault | Refused), said
    assert (said.words if isinstance(said, CallFault) else said.reason).startswith(expected)


async def test_half_an_emoji_in_a_result_of_a_hook_is_stored_as_a_replacement(
    pool: ChildPool,
) -> None:
    """The answer is paid for, so it becomes no dead letter for a character that UTF-8 cannot hold
    (A1)."""
    assert await said_by(pool, after("answers")) == Fine(
        b'{"text":"\xef\xbf\xbd","\xef\xbf\xbd":["\xef\xbf\xbd","\\u0000"]}'
    )
    assert isinstance(await said_by(pool, after("odd_dict")), Fine | CallFault)


async def test_a_hook_sees_half_an_emoji_of_an_answer_as_a_replacement(pool: ChildPool) -> None:
    """Its provider's bytes stay as they are; the value that a hook gets is one that it can write
    again (A1)."""
    assert await said_by(pool, after("sees", answer=b'{"text":"half \\ud83d of it"}')) == Fine(
        b'{"saw":"half \xef\xbf\xbd of it"}'
    )


async def test_a_hook_that_shrugs_off_its_time_limit_is_answered_for(pool: ChildPool) -> None:
    """It catches the cancel and goes on: its call fails, and its child ends, since nothing else
    could end the hook (A1)."""
    said = await said_by(pool, after("shrugs_off"))
    assert said == CallFault("it took longer than 1 s", overtime=True, hangs=True)
    assert isinstance(await said_by(pool, after("plain_reason")), Refused)


@pytest.mark.parametrize("module", ["odd_import", "cancels_import", "failing_import"])
async def test_whatever_an_import_raises_is_a_missing_hook(pool: ChildPool, module: str) -> None:
    """Also what is no Exception, and what has no words (A1)."""
    said = await said_by(pool, ImportHook(f"{module}:f"))
    assert isinstance(said, Missing)
    assert said.words.startswith(f"hook_missing: {module}:f cannot be imported here")


async def test_an_import_that_never_ends_is_given_up(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a missing hook after a while, at once for all that wait behind it, and its process is
    not used again (A1)."""
    monkeypatch.setattr(hook_imports, "IMPORT_S", 0.05)
    monkeypatch.setattr(sys, "path", [*sys.path, str(modules)])
    end = threading.Event()
    monkeypatch.setattr(sys, "endless_import", end, raising=False)
    imports = hook_imports.HookImports(RunningCalls(new_file()), None)
    came = await asyncio.gather(
        *(imports.get(number, "endless_import:f") for number in range(3)), return_exceptions=True
    )
    end.set()
    assert [type(error) for error in came] == [hook_imports.ImportHangs] * 3
    assert str(came[0]).startswith(
        "hook_missing: endless_import:f cannot be imported here: its import took longer than"
    )


async def test_a_schema_is_checked_with_half_an_emoji_in_the_answer(pool: ChildPool) -> None:
    """Structured output may escape one: it is JSON, and fulfils its schema (A1)."""
    schema = b'{"type":"object","properties":{"t":{"const":"whole"}}}'
    assert await said_by(pool, Check(b'{"type":"object"}', '{"t":"\\ud83d"}')) == Fine()
    assert await said_by(pool, Check(b'{"type":"object"}', f'{{"t":"{HALF}"}}')) == Fine()
    assert isinstance(await said_by(pool, Check(schema, f'{{"t":"{HALF}"}}')), Mismatch)
    assert await said_by(pool, TrySchema(b'{"title":"\\ud83d"}')) == Fine()


@pytest.mark.parametrize(
    "reply",
    [
        CallFault(HALF, HALF),
        Refused(HALF, True),
        Missing(HALF),
        Mismatch(HALF, HALF),
        Inferred(1, 200, {HALF: HALF}, b"\xff", HALF, HALF),
    ],
)
async def test_every_message_can_be_encoded(reply: ChildReply) -> None:
    """Whatever its texts are, in both directions: an answer that cannot be sent would be no answer
    (A1)."""
    came = read_reply(frame(ReplyFrame(7, reply))[4:])
    assert came.number == 7
    assert repr(came.what).count("\ufffd") == repr(reply).count(repr(HALF)[1:-1])
    asked = read_call(frame(CallFrame(7, Check(b"\xff", HALF)))[4:])
    assert asked.what == Check(b"\xff", "\ufffd")


async def test_a_child_that_answers_pings_alone_meets_a_limit() -> None:
    """Every call has a bound, also one that its child has forgotten while it is alive; the others
    are made again (A1)."""
    process: Any = SimpleNamespace(pid=2**30, returncode=None)  # there is no such process
    limits = ChildLimits(500_000_000, LIMIT_S, check_s=LIMIT_S)
    child = Child(process, RunningCalls(new_file()), limits)
    child._writer = cast(
        asyncio.StreamWriter,
        SimpleNamespace(is_closing=lambda: False, write=lambda data: None, close=lambda: None),
    )
    child._hello.set_result(None)
    forgotten = asyncio.create_task(child.ask(after("sees")))
    inferring = asyncio.create_task(child.ask(Infer("doc", b"", timeout_s=10_000.0)))
    await asyncio.sleep(0)
    begun = child._signs._heard_at
    limit_s = limits.answer_s(after("sees"))
    for late_s in (limit_s - 1.0, limit_s + 1.0):
        assert not forgotten.done()
        child._signs._heard_at = begun + late_s  # it has answered a ping
        child._look(begun + late_s)
        await asyncio.sleep(0)
    with pytest.raises(ChildLost) as lost:
        await forgotten
    assert (lost.value.cause, lost.value.involvement.value) == (LossCause.STUCK, "this")
    with pytest.raises(ChildLost) as beside:
        await inferring
    assert beside.value.involvement.value == "other"


async def test_the_limit_leaves_time_for_all_that_may_stand_before_a_call() -> None:
    """A full child makes a plain hook wait for its thread; that is not held against it (A13)."""
    assert WIDTHS[0] / HOOK_THREADS + 1 <= TURNS
