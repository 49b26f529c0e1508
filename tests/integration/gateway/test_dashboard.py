"""The dashboard in a real browser: seen, read without scripts, used by keyboard, and harmless
whatever documents say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from axe_playwright_python.sync_playwright import Axe
from dashboard_ledger import HOSTILE, Seeded, chromium, seed
from doors import Answer, asked, door, door_settings, new_key
from playwright.sync_api import Browser, BrowserContext, Page
from servers import RedisServer

from penstock_ledger import (
    ApiKeyStore,
    Database,
    DeadLetter,
    ItemKey,
    JobState,
    JobStore,
    OutcomeStore,
    Result,
    ScheduleStore,
    open_database,
)
from penstock_ledger.reasons import by_hand

PHONE = 375


class House(NamedTuple):
    url: str
    ids: Seeded
    database: Database


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("dashboard")
    _shared_redis.flush()
    settings = door_settings(folder, _shared_redis.url)
    database = open_database(settings.database_url)
    database.migrate()
    ids = seed(database, folder, _shared_redis.client())
    with door(settings) as url:
        yield House(url, ids, database)
    database.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def told() -> list[str]:
    """What the browser complained of."""
    return []


@pytest.fixture
def context(browser: Browser, told: list[str]) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.on("console", lambda message: told.append(message.text))
    context.on("weberror", lambda error: told.append(str(error.error)))
    yield context
    context.close()


def places(ids: Seeded) -> list[str]:
    """Each page once."""
    return [
        "/ui/jobs",
        f"/ui/jobs/{ids.running}",
        f"/ui/jobs/{ids.paused}",
        f"/ui/jobs/{ids.running}/letters",
        f"/ui/jobs/{ids.hostile}/letter?doc=doc-letter",
        f"/ui/jobs/{ids.done}/answers",
        f"/ui/jobs/{ids.running}/limit",
        f"/ui/jobs/{ids.left}",
        "/ui/new",
        "/ui/schedules",
        f"/ui/schedules/{ids.nightly}",
        "/ui/workers",
        "/ui/quotas",
        "/ui/spending?period=all",
        "/ui/login",
    ]


def test_every_page_can_be_used_by_everyone(house: House, context: BrowserContext) -> None:
    """No page breaks a rule of WCAG that axe knows, in light; nor one of contrast in dark."""
    page, axe = context.new_page(), Axe()
    rules = {
        "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
        "resultTypes": ["violations"],
    }
    for place in places(house.ids):
        page.emulate_media(color_scheme="light")
        page.goto(house.url + place)
        found = axe.run(page, options=rules)
        assert not found.violations_count, f"{place}\n{found.generate_report()}"
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate("axe.run({runOnly: ['color-contrast'], resultTypes: ['violations']})")
        assert not dark["violations"], f"{place} in dark: {dark['violations']}"


def test_the_preview_of_a_job_can_be_used_by_everyone(
    house: House, context: BrowserContext, told: list[str]
) -> None:
    """The page that no address opens breaks no rule of WCAG that axe knows, and fits a phone, with
    a hostile row on it."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/new")
    page.get_by_label("Prompt").fill("Summarise: {text}")
    page.get_by_label("Model").fill("gpt-5-mini")
    rows = [{"id": "<b>1</b>", "text": HOSTILE.replace("\x00", "") * 9}, {"id": "2"}]
    rows += [{"id": str(number), "text": "late"} for number in range(3, 300)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    page.get_by_label("File").set_input_files(
        {"name": "<i>x.jsonl", "mimeType": "text/plain", "buffer": text.encode()}
    )
    page.get_by_role("button", name="Upload and preview").click()
    assert "cannot be used would be dead letters" in read(page)
    assert "<i>x.jsonl" in read(page)
    assert page.locator("main script, main img, main i").count() == 0
    found = Axe().run(page, options={"resultTypes": ["violations"]})
    assert not found.violations_count, found.generate_report()
    page.set_viewport_size({"width": PHONE, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    assert not told, "the browser had to refuse something"


def test_every_page_fits_a_phone(house: House, browser: Browser) -> None:
    """At 375 px nothing is wider than the screen, hostile texts included."""
    with browser.new_context(viewport={"width": PHONE, "height": 700}) as context:
        page = context.new_page()
        for place in [
            *places(house.ids),
            f"/ui/jobs/{house.ids.hostile}",
            f"/ui/jobs/{house.ids.hostile}/answers",
        ]:
            page.goto(house.url + place)
            assert page.evaluate("document.documentElement.scrollWidth") <= PHONE, place


def test_all_that_only_shows_is_there_without_scripts(house: House, browser: Browser) -> None:
    """A browser without JavaScript sees figures, the chart and long texts, and pauses and resumes a
    job."""
    ids = house.ids
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{house.url}/ui/jobs?state=running")
        page.get_by_role("link", name="tickets-2026-11").click()
        assert "924" in page.inner_text("main")
        assert page.get_by_role("img", name="Documents per second over").count() == 1
        assert page.get_by_role("link", name="doc-000899").count() == 1, "one of the latest answers"
        page.get_by_role("link", name="Pause").click()
        assert JobStore(house.database).get(ids.running).state == "running", (
            "a link changes nothing"
        )
        page.get_by_role("button", name="Pause the job").click()
        assert "The job is paused" in page.inner_text("main")
        assert JobStore(house.database).get(ids.running).state == "paused"
        page.get_by_role("link", name="Resume").click()
        page.get_by_role("button", name="Resume the job").click()
        assert JobStore(house.database).get(ids.running).state == "running"


def test_the_dashboard_is_used_by_keyboard(house: House, context: BrowserContext) -> None:
    """The skip link comes first, `/` goes to the search, and a search and a job are reached without
    a mouse."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/jobs")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("contracts")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/jobs?q=contracts")
    link = page.get_by_role("link", name="contracts-nightly")
    for _ in range(25):
        page.keyboard.press("Tab")
        if link.evaluate("one => one === document.activeElement"):
            break
    width = link.evaluate("one => getComputedStyle(one).outlineWidth")
    assert width == "2px", "the focus cannot be seen"
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/ui/jobs/{house.ids.paused}")


def test_hostile_texts_are_shown_and_do_nothing(
    house: House, context: BrowserContext, told: list[str]
) -> None:
    """Scripts, ends of elements, escapes of terminals and reordered lines of documents are text:
    none acts, none hides."""
    page = context.new_page()
    job = f"{house.url}/ui/jobs/{house.ids.hostile}"
    odd = "/letter?doc=%3Cb%3Edoc%3C%2Fb%3E%20%26%20%E2%80%AEcod"
    for place in (
        "",
        "/letters",
        "/answers",
        "/answers?doc=doc-hostile",
        "/letter?doc=doc-letter",
        odd,
        "/cancel",
    ):
        page.goto(job + place)
        assert "owned" not in page.title() or "<script>" in page.title(), place
        assert page.locator("main script, main img, main b:has-text('doc')").count() == 0, place
        text = page.inner_text("main")
        assert not set(text) & set("\x00\x1b\u202e\u202c"), place
        assert "49" not in text.split("{{ 7 * 7 }}")[0][-5:], place
    page.goto(f"{house.url}/ui/jobs/{house.ids.hostile}/answers?doc=doc-hostile")
    assert "<script>document.title='owned'</script>" in page.inner_text("main")
    assert "\\x1b[31mred" in page.inner_text("main")
    assert "\\u202e" in page.inner_text("main")
    assert not told, "the browser had to refuse something"


def test_no_page_needs_what_its_policy_forbids(
    house: House, context: BrowserContext, told: list[str]
) -> None:
    """Every page comes with a policy that runs and loads our own files only, and no browser has to
    refuse anything."""
    page = context.new_page()
    for place in places(house.ids)[:-1]:
        answer = page.goto(house.url + place)
        assert answer is not None
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert (answer.headers["cache-control"], answer.headers["x-frame-options"]) == (
            "no-store",
            "DENY",
        )
    assert not told


def test_what_is_live_is_drawn_again(house: House, context: BrowserContext) -> None:
    """A job's figures change on an open page, without a reload."""
    page = context.new_page()
    page.clock.install()
    page.goto(f"{house.url}/ui/jobs/{house.ids.paused}")
    page.evaluate("window.stays = true")
    assert page.get_by_role("link", name="Resume").count() == 1
    jobs = JobStore(house.database)
    jobs.set_state(house.ids.paused, JobState.RUNNING, expect=[JobState.PAUSED])
    page.clock.run_for(3_500)
    page.get_by_text("Paused: provider openai").wait_for(state="detached")
    assert page.get_by_role("link", name="Pause").count() == 1, "what is said above it, too"
    assert page.evaluate("window.stays") is True
    jobs.set_state(
        house.ids.paused,
        JobState.PAUSED,
        why=by_hand("provider openai: again"),
        expect=[JobState.RUNNING],
    )


def test_answers_stream_in(house: House, context: BrowserContext, told: list[str]) -> None:
    """The latest twenty stand on the page of their job as they come, newest first and cut, and what
    is open stays open. Nothing moves under a reader with a keyboard, and screen readers say how far
    the job is at most twice a minute."""
    store, job = OutcomeStore(house.database, "api"), house.ids.left

    def settle(number: int, said: str) -> None:
        body = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        key = ItemKey(job, 1, f"new-{number:03d}")
        store.settle([Result(key, 200, body, None, "m", "stop", 9, 9, 5, 1_400, 1, 1)], [])

    page = context.new_page()
    page.clock.install()
    page.goto(f"{house.url}/ui/jobs/{job}")
    rows = page.get_by_role("region", name="Latest answers").locator("li")
    assert rows.count() == 20
    assert rows.nth(5).is_hidden()
    page.get_by_text("15 before these").click()
    assert rows.nth(5).is_visible()
    settle(1, HOSTILE)
    settle(2, "word " * 9_000)
    settle(3, "x" * 100_000)
    page.clock.run_for(3_500)
    page.get_by_role("link", name="new-003").wait_for()
    assert (rows.count(), rows.nth(5).is_visible()) == (20, True)
    assert "(a long answer)" in rows.nth(0).inner_text()
    assert 200 < len(rows.nth(1).inner_text()) < 300
    assert "<script>document.title='owned'</script>" in rows.nth(2).inner_text()
    marked = page.eval_on_selector_all(".came", "them => them.map(one => one.dataset.doc)")
    assert marked == ["new-003", "new-002", "new-001"]
    status = page.locator("main > [role=status]")
    assert status.text_content() == ""
    rows.nth(0).get_by_role("link").focus()
    page.keyboard.press("Shift+Tab")
    settle(4, "later")
    page.clock.run_for(3_500)
    page.get_by_text("Held while you read it").wait_for()
    page.evaluate("document.activeElement.blur()")
    page.clock.run_for(30_000)
    page.get_by_role("link", name="new-004").wait_for()
    assert "124 of 500 documents have ended, 0 of them failed" in (status.text_content() or "")
    assert not told


def test_colours_are_chosen_and_kept(house: House, context: BrowserContext) -> None:
    """The switch goes from the system's colours to dark and light, on every page from then on."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/workers")
    paper = "getComputedStyle(document.body).backgroundColor"
    bright = page.evaluate(paper)
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate(paper) != bright
    page.goto(f"{house.url}/ui/jobs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_dead_letter_is_corrected_and_sent_again(house: House, context: BrowserContext) -> None:
    """What is typed into the form is what the replay sends; a request that is not JSON comes back
    with the reason."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/jobs/{house.ids.running}/letters?reason=bad_request")
    page.get_by_role("link", name="doc-000900").first.click()
    field = page.get_by_label("The request, as JSON")
    corrected = json.loads(field.input_value()) | {"max_tokens": 900}
    field.fill("{")
    page.get_by_role("button", name="Replay this document").click()
    assert "not valid JSON" in page.inner_text("main")
    page.get_by_label("The request, as JSON").fill(json.dumps(corrected))
    page.get_by_role("button", name="Replay this document").click()
    assert "sent again" in page.inner_text("main")
    feed = JobStore(house.database).feeds(house.ids.running)[-1]
    assert feed.overrides == {"body": corrected}
    store = OutcomeStore(house.database)
    assert store.get(house.ids.running, "doc-000900") is None
    assert [
        letter.key.doc_id for letter in store.replayable(house.ids.running, feed.generation)
    ] == ["doc-000900"]


def test_a_group_of_dead_letters_is_sent_again(house: House, context: BrowserContext) -> None:
    """All whose errors are alike go together, with another model, and no others."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/jobs/{house.ids.running}/letters")
    page.get_by_role("row").filter(has_text="no answer within").get_by_role(
        "link", name="replay all"
    ).click()
    page.get_by_label("Another model").fill("gpt-5")
    page.get_by_role("button", name="Replay").click()
    assert "sent again" in page.inner_text("main")
    feed = JobStore(house.database).feeds(house.ids.running)[-1]
    sent = list(OutcomeStore(house.database).replayable(house.ids.running, feed.generation))
    assert feed.overrides == {"set": {"model": "gpt-5"}}
    assert {letter.reason for letter in sent} == {"timeout"}
    assert len(sent) == 8
    left = OutcomeStore(house.database).dead_letters(house.ids.running)
    assert not [letter for letter in left if letter.reason == "timeout"]


def test_forms_of_other_sites_are_refused(house: House, context: BrowserContext) -> None:
    """A form counts with this session's token and from our own page only: nothing is cancelled by
    another."""
    url = f"{house.url}/ui/jobs/{house.ids.running}/cancel"
    page = context.new_page()
    page.goto(url)
    token = page.input_value("input[name=token] >> nth=-1")
    cookie = "; ".join(f"{one.get('name')}={one.get('value')}" for one in context.cookies())
    form = {"content_type": "application/x-www-form-urlencoded"}
    body = f"token={token}".encode()
    assert asked(url, body, origin="https://evil.example", cookie=cookie, **form).status == 403
    assert asked(url, body, cookie=cookie, **form).status == 403, "without an origin"
    assert asked(url, body, origin=house.url, **form).status == 403, "of another session"
    assert asked(url, b"token=", origin=house.url, cookie=cookie, **form).status == 403
    assert (
        asked(url, body, origin=house.url, cookie=cookie, content_type="text/plain").status == 415
    )
    assert JobStore(house.database).get(house.ids.running).state == "running"
    assert all(one.get("httpOnly") and one.get("sameSite") == "Strict" for one in context.cookies())


def test_what_no_list_of_jobs_would_say_stands_in_it(house: House, context: BrowserContext) -> None:
    """Calls that wait are one row, batches without a job come with their reason, and a job that
    everyone has left is called interrupted, with how it goes on."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/jobs")
    rows = page.get_by_role("row")
    calls = rows.filter(has_text="Calls that wait for their answers").inner_text()
    assert ("1 job," in calls, "41 answered" in calls, "running" in calls) == (True,) * 3
    assert page.get_by_role("link", name="direct/").count() == 0
    refused = rows.filter(has_text=house.ids.refused).inner_text()
    assert "line 7: Invalid value for 'model': the batch has requests of <b>two</b> mod" in refused
    assert "(and 1 more)" in refused
    assert "interrupted" in rows.filter(has_text="reviews-of-autumn").inner_text()
    page.get_by_role("link", name="Calls that wait").click()
    page.get_by_role("link", name="direct/").click()
    page.wait_for_url(f"**/ui/jobs/{house.ids.calls}")
    page.goto(f"{house.url}/ui/jobs/{house.ids.left}")
    said = read(page)
    assert "Interrupted: no process works on this job now, and what has ended is kept" in said
    assert "the command that began it, given again, goes on where it stopped" in said
    page.goto(f"{house.url}/ui/jobs?state=paused")
    assert house.ids.refused not in read(page)


def test_results_are_downloaded_from_the_page(house: House, context: BrowserContext) -> None:
    """A job's page and its answers give all outcomes as a table or as lines, named after the
    job."""
    page = context.new_page()
    for place in ("", "/answers"):
        page.goto(f"{house.url}/ui/jobs/{house.ids.done}{place}")
        with page.expect_download() as begun:
            page.get_by_role("link", name="CSV").click()
        assert begun.value.suggested_filename == "mails-of-monday.csv"
        text = begun.value.path().read_text()
        assert len(text.splitlines()) == 31, "a head and 30 documents"
    answers = {
        form: asked(f"{house.url}/ui/jobs/{house.ids.done}/results?form={form}")
        for form in ("jsonl", "parquet", "xlsx")
    }
    assert len(answers["jsonl"].body.splitlines()) == 30
    assert answers["parquet"].body[:4] == b"PAR1"
    assert "mails-of-monday.parquet" in answers["parquet"].headers["content-disposition"]
    assert answers["xlsx"].status == 400
    assert asked(f"{house.url}/ui/jobs/nothing/results").status == 404


def test_a_job_begins_with_a_file_without_scripts(
    house: House, browser: Browser, tmp_path: Path
) -> None:
    """A CSV is uploaded, its first requests and its cost are shown, and the job is there once,
    also where it is submitted twice; what cannot be sent comes back with the reason."""
    table = tmp_path / "Mails of March.csv"
    table.write_text("nr,text\n" + "".join(f"m{n},order {n} is <b>late</b>\n" for n in range(40)))
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{house.url}/ui/jobs")
        page.get_by_role("link", name="New job").click()
        page.get_by_label("Prompt").fill("Summarise: {txt}")
        page.get_by_label("Model").fill("gpt-5-mini")
        page.get_by_label("Column of ids").fill("nr")
        page.get_by_label("File").set_input_files(table)
        page.get_by_role("button", name="Upload and preview").click()
        assert "txt" in read(page), "it says which column there is not"
        assert page.get_by_role("button", name="Submit the job").count() == 0
        page.get_by_label("Prompt").fill("Summarise: {text}")
        page.get_by_role("button", name="Preview again").click()
        said = read(page)
        assert "order 0 is <b>late</b>" in said
        assert "m2" in said
        assert "m3" not in said, "the first three"
        assert page.get_by_role("definition").first.inner_text().startswith("40")
        names = ("token", "file", "prompt", "model", "id_field", "name")
        form: dict[str, Any] = {one: page.input_value(f"main [name={one}]") for one in names}
        page.get_by_role("button", name="Submit the job").click()
        page.wait_for_url("**/ui/jobs/job_*")
        assert "The job is submitted" in read(page)
        job_id = page.url.rpartition("/")[2].partition("?")[0]
        submit, own = f"{house.url}/ui/new/submit", {"origin": house.url}
        again = page.request.post(submit, form=form, headers=own)
        assert again.url.endswith(f"/ui/jobs/{job_id}?done=submit")
        other = page.request.post(submit, form=form | {"prompt": "Say {text}"}, headers=own)
        assert other.status == 409, "another job under its name"
        gone = page.request.post(submit, form=form | {"file": "file-1"}, headers=own)
        assert gone.status == 404
    job = JobStore(house.database).get(job_id)
    assert job.total == 40
    assert job.job_key.startswith("Mails-of-March-")
    spec = (job.spec["prompt"], job.spec["model"], job.spec["id_field"])
    assert spec == ("Summarise: {text}", "gpt-5-mini", "nr")


def test_a_messy_file_becomes_a_job_too(
    house: House, context: BrowserContext, tmp_path: Path
) -> None:
    """What is wrong is said by the file's name and the form's own words: rows without a text are
    dead letters where the form allows them, and a spreadsheet's encoding is named."""
    table = tmp_path / "Tickets.csv"
    rows = "".join(f'{n};"{"" if n % 3 else "late"}";x\n' for n in range(30))
    table.write_text("Nr;Text;Käufer\n" + rows, encoding="cp1252")
    page = context.new_page()
    page.goto(f"{house.url}/ui/new")
    page.get_by_label("Prompt").fill("Summarise: {Text}")
    page.get_by_label("Model").fill("gpt-5-mini")
    page.get_by_label("File").set_input_files(table)
    page.get_by_role("button", name="Upload and preview").click()
    fault = page.get_by_role("alert")
    assert "it is not utf-8; name the encoding (“Encoding”: cp1252)" in fault.inner_text()
    page.get_by_label("Encoding").fill("cp1252")
    page.get_by_role("button", name="Preview again").click()
    assert "Tickets.csv has no column 'id'; name the id column (“Column of ids”)" in (
        fault.inner_text()
    )
    page.get_by_label("Column of ids").fill("Nr")
    page.get_by_role("button", name="Preview again").click()
    said = fault.inner_text()
    assert "20 rows of Tickets.csv are unusable, and “Rows that may be unusable” allows 1:" in said
    assert said.count("missing_field") == 1
    allowed = page.get_by_label("Rows that may be unusable")
    for typed, refused in (("many", True), ("25", False), ("70%", False)):
        allowed.fill(typed)
        page.get_by_role("button", name="Preview again").click()
        assert (fault.count() == 1) is refused, typed
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url("**/ui/jobs/job_*")
    job = JobStore(house.database).get(page.url.rpartition("/")[2].partition("?")[0])
    assert (job.total, job.spec["max_bad_rows"]) == (30, "70%")
    assert job.spec["encoding"] == "cp1252"
    assert OutcomeStore(house.database).counts(job.job_id).dead == 20


def test_rules_and_limits_of_a_job_are_given_in_the_form(
    house: House, context: BrowserContext, tmp_path: Path
) -> None:
    """What most jobs leave empty is folded up; what is refused says so at its field, and the job
    has what was typed."""
    table = tmp_path / "rules.csv"
    table.write_text(
        "id,text,lang\n" + "".join(f"{n},x,{'de' if n % 2 else 'en'}\n" for n in range(9))
    )
    page = context.new_page()
    page.goto(f"{house.url}/ui/new")
    assert not page.get_by_label("Routes").is_visible()
    page.get_by_label("Prompt").fill("Summarise: {text}")
    page.get_by_label("Model").fill("gpt-5-mini")
    page.get_by_text("More options").click()
    page.get_by_label("Routes").fill("lang=de -> model=gpt-5\n")
    page.get_by_label("Degrade").fill("model=gpt-5-nano at 80% of deadline")
    page.get_by_label("Escalate").fill("score under 3 -> model=gpt-5")
    page.get_by_label("Provider's cache").select_option("auto")
    page.get_by_label("File").set_input_files(table)
    page.get_by_role("button", name="Upload and preview").click()
    assert "the job has no deadline" in page.locator("#e-degrade").inner_text()
    assert "'score under 3'" in page.locator("#e-escalate").inner_text()
    assert page.locator("#e-routes").count() == 0
    assert page.get_by_label("Degrade").get_attribute("aria-invalid") == "true"
    assert not Axe().run(page, options={"resultTypes": ["violations"]}).violations_count
    page.get_by_label("Escalate").fill("score<0.5 -> model=gpt-5")
    page.get_by_label("Deadline").fill("soon")
    page.get_by_role("button", name="Preview again").click()
    assert "is not a duration" in page.locator("#e-deadline_s").inner_text()
    page.get_by_label("Deadline").fill("6h")
    page.get_by_role("button", name="Preview again").click()
    assert page.get_by_role("alert").count() == 0
    page.get_by_role("button", name="Submit the job").click()
    page.wait_for_url("**/ui/jobs/job_*")
    job = JobStore(house.database).get(page.url.rpartition("/")[2].partition("?")[0])
    assert job.spec["routes"] == ["lang=de -> model=gpt-5"]
    assert job.spec["escalate"] == "score<0.5 -> model=gpt-5"
    assert job.spec["degrade"] == ["model=gpt-5-nano at 80% of deadline"]
    assert (job.spec["deadline_s"], job.spec["prompt_cache"]) == (21_600.0, "auto")


def test_schedules_are_paused_and_resumed(house: House, browser: Browser) -> None:
    """The list says when the next job starts; a schedule is paused and resumed there and on its own
    page, without scripts, and by no form of another site."""
    store, name = ScheduleStore(house.database), "nightly"
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{house.url}/ui/schedules")
        assert "0 2 * * * (UTC)" in read(page)
        page.get_by_role("button", name="Pause nightly").click()
        assert "not while it is paused" in read(page)
        assert store.get(name).paused
        page.get_by_role("link", name="nightly").click()
        assert "None of its times has come yet" in read(page)
        assert "Summarise: {text}" in read(page)
        assert "max attempts" not in read(page), "an option that is as usual"
        page.get_by_role("button", name="Resume nightly").click()
        assert "goes on with its next time" in read(page)
        assert not store.get(name).paused
    url = f"{house.url}/ui/schedules/{house.ids.nightly}/pause"
    form = "application/x-www-form-urlencoded"
    evil = asked(url, b"token=", origin="https://evil.example", content_type=form)
    assert evil.status == 403
    assert asked(url, b"token=", origin=house.url, content_type=form).status == 403
    assert not store.get(name).paused
    assert asked(f"{house.url}/ui/schedules/sched_{'0' * 20}").status == 404


def test_no_stranger_uploads_from_a_page(house: House, context: BrowserContext) -> None:
    """A form of another site, or without this session's token, leaves no file; nor does one
    without a file, which comes back with what was typed."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/new")
    token = page.input_value("main input[name=token]")
    cookie = "; ".join(f"{one.get('name')}={one.get('value')}" for one in context.cookies())

    def sent(given: str, filename: str = "a.jsonl", **headers: str) -> Answer:
        parts = {"token": given, "prompt": "Say {x}", "model": "gpt-5-mini"}
        body = "".join(
            f'--B\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in parts.items()
        )
        body += f'--B\r\ncontent-disposition: form-data; name="file"; filename="{filename}"\r\n'
        body += '\r\n{"id": "a", "x": 1}\r\n--B--\r\n'
        kind = "multipart/form-data; boundary=B"
        url = f"{house.url}/ui/new/file"
        return asked(url, body.encode(), cookie=cookie, content_type=kind, **headers)

    before = asked(f"{house.url}/v1/files").content["data"]
    assert sent(token, origin="https://evil.example").status == 403
    assert sent(token).status == 403, "without an origin"
    assert sent("", origin=house.url).status == 403
    nothing = sent(token, "", origin=house.url)
    assert nothing.status == 400
    assert "Choose a file first" in nothing.body.decode()
    assert "Say {x}" in nothing.body.decode()
    assert asked(f"{house.url}/v1/files").content["data"] == before
    assert sent(token, origin=house.url).status == 200


def test_limits_of_a_job_are_changed(house: House, context: BrowserContext) -> None:
    """A budget and a deadline are set by a form; what is no sum comes back with the reason."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/jobs/{house.ids.running}/limit")
    page.get_by_label("Budget in US dollars").fill("much")
    page.get_by_role("button", name="Set the limits").click()
    assert "is no sum of US dollars" in page.inner_text("main")
    page.get_by_label("Budget in US dollars").fill("20")
    page.get_by_label("Deadline").fill("6h")
    page.get_by_role("button", name="Set the limits").click()
    assert "The limits are changed" in page.inner_text("main")
    spec = JobStore(house.database).get(house.ids.running).spec
    assert (spec["budget_usd"], spec["deadline_s"]) == (20.0, 21_600.0)


def test_letters_that_are_gone_are_not_found(house: House) -> None:
    """Pages of what is not there are one page, with 404; a place in the list that makes no sense
    begins it."""
    for place in (
        "/ui/jobs/nothing",
        f"/ui/jobs/{house.ids.done}/letter?doc=mail-000",
        "/ui/jobs/a/b/c",
        "/ui/static/x.css",
    ):
        assert asked(house.url + place).status == 404, place
    for place in (
        "/ui/jobs?before=x",
        "/ui/jobs?after=~~&state=odd",
        f"/ui/jobs/{house.ids.running}/letters?after=x",
    ):
        assert asked(house.url + place).status == 200, place
    assert isinstance(OutcomeStore(house.database).get(house.ids.done, "mail-029"), DeadLetter)


def test_styles_are_kept_for_ever_under_names_of_their_content(
    house: House, context: BrowserContext
) -> None:
    """A browser fetches the style once: its name changes when it does."""
    page = context.new_page()
    page.goto(f"{house.url}/ui/jobs")
    style = page.get_attribute("link[rel=stylesheet]", "href")
    answer = asked(f"{house.url}{style}")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].startswith("text/css")
    assert (
        page.evaluate("document.querySelectorAll('[style], style, script:not([src])').length") == 0
    )


def read(page: Page) -> str:
    return page.inner_text("main")


def test_each_tenant_sees_its_own(tmp_path: Path, browser: Browser) -> None:
    """A key opens its tenant's jobs and no others; signing out, or revoking the key, ends that."""
    settings = door_settings(tmp_path)
    database = open_database(settings.database_url)
    database.migrate()
    ids = seed(database, tmp_path, small=True)
    reader = new_key(settings, "acme", "read")
    with door(settings) as url, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{url}/ui/jobs/{ids.running}")
        assert page.url.startswith(f"{url}/ui/login?next=")
        page.get_by_label("API key").fill("sk-penstock-wrong")
        page.get_by_role("button", name="Sign in").click()
        assert "Incorrect API key" in read(page)
        page.get_by_label("API key").fill(reader)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/ui/jobs/{ids.running}")
        assert page.get_by_role("link", name="Cancel").count() == 0, "a key that reads only"
        page.goto(f"{url}/ui/jobs")
        assert "tickets-2026-11" in read(page)
        assert "contracts-nightly" not in read(page)
        assert "Calls that wait" not in read(page), "they are of another tenant"
        assert ids.refused in read(page)
        unknown = page.goto(f"{url}/ui/jobs/job9999x")
        assert unknown is not None
        words = read(page).replace("job9999x", "ID").rpartition("·")[0]
        other = page.goto(f"{url}/ui/jobs/{ids.paused}")
        assert other is not None
        assert (other.status, read(page).replace(ids.paused, "ID").rpartition("·")[0]) == (
            unknown.status,
            words,
        )
        for place in (
            "/ui/workers",
            "/ui/quotas",
            f"/ui/jobs/{ids.paused}?part=1",
            f"/ui/jobs/{ids.paused}/results",
        ):
            answer = page.goto(url + place)
            assert answer is not None
            assert answer.status == 404, place
        page.goto(f"{url}/ui/spending?period=all")
        assert "acme" in read(page)
        assert "research" not in read(page)
        cancelled = page.goto(f"{url}/ui/jobs/{ids.running}/cancel")
        assert cancelled is not None
        assert cancelled.status == 403
        page.goto(f"{url}/ui/jobs")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url(f"{url}/ui/login")
        page.goto(f"{url}/ui/jobs")
        assert page.url.startswith(f"{url}/ui/login")
        page.get_by_label("API key").fill(reader)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{url}/ui/jobs")
        store = ApiKeyStore(database)
        store.revoke(store.list()[0].key_id)
        for _ in range(40):  # a key is remembered for two seconds
            page.goto(f"{url}/ui/jobs")
            if page.url.startswith(f"{url}/ui/login"):
                break
            page.wait_for_timeout(200)
        assert page.url.startswith(f"{url}/ui/login")
    database.close()
