"""The chat page in Debian's Chromium: against the real server, and against awkward answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.web
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

AWKWARD = """# Title
- one
- two

```python
print("<b>")
```

| a | b |
|---|---|
| 1 | 2 |

<script>window.broken = 1</script><img src="https://example.org/x.png" onerror="window.broken = 1">
[link](javascript:window.broken=1) **bold**"""


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    if CHROMIUM is None:
        pytest.fail("chromium is not installed; install Debian's package")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=[(1200, 800), (390, 780)], ids=["desk", "phone"])
def page(request, browser, slow_server) -> Iterator[object]:
    width, height = request.param
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    problems: list[str] = []
    foreign: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda r: foreign.append(r.url) if not r.url.startswith(slow_server.url) else None,
    )
    page.goto(slow_server.url)
    page.wait_for_selector("#lamp.ok")
    yield page
    assert problems == []
    assert [url for url in foreign if not url.startswith(("data:", "blob:"))] == []
    context.close()


def canned(page, text: str, *, status: int = 200) -> list[dict]:
    """Answer the next requests with ``text``; return the bodies that come."""
    bodies: list[dict] = []

    def answer(route) -> None:
        bodies.append(json.loads(route.request.post_data))
        chunks = [{"choices": [{"delta": {"reasoning": "Let me see."}}]}]
        chunks += [
            {"choices": [{"delta": {"content": text[i : i + 7]}}]} for i in range(0, len(text), 7)
        ]
        chunks += [
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": 42}},
        ]
        stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        error = json.dumps({"error": {"message": "the context is full"}})
        route.fulfill(
            status=status,
            content_type="text/event-stream" if status == 200 else "application/json",
            body=stream if status == 200 else error,
        )

    page.route("**/v1/chat/completions", answer)
    return bodies


def say(page, text: str) -> None:
    page.fill("#composer-text", text)
    page.press("#composer-text", "Enter")
    page.wait_for_selector("#stop", state="hidden", timeout=60_000)


def set_sampling(page, **values: float) -> None:
    page.click("#open-settings")
    for name, value in values.items():
        page.fill(f"#s-{name}", str(value))
        page.press(f"#s-{name}", "Tab")
    page.press("#api-key", "Escape")


def test_a_real_answer_streams_and_is_kept(page) -> None:
    set_sampling(page, max_tokens=40, temperature=0, seed=1)
    say(page, "Hello")
    assert page.text_content(".message.user .content") == "Hello"
    under = page.text_content(".message.assistant .speed")
    assert "tok/s" in under or "tokens" in under
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert page.text_content(".message.user .content") == "Hello"


def test_stop_ends_the_answer(page) -> None:
    def go_on(route) -> None:  # random weights may say the end at once
        body = json.loads(route.request.post_data) | {"ignore_eos": True}
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions", go_on)
    set_sampling(page, max_tokens=480, temperature=1)
    page.fill("#composer-text", "Go on")
    page.press("#composer-text", "Enter")
    sync_api.expect(page.locator(".message.assistant .content")).not_to_be_empty(timeout=20_000)
    page.keyboard.press("Escape")
    page.wait_for_selector("#stop", state="hidden", timeout=10_000)
    assert "stopped" in page.text_content(".message.assistant .speed")


def test_markdown_is_shown_and_nothing_of_it_runs(page) -> None:
    canned(page, AWKWARD)
    say(page, "Show")
    content = page.locator(".message.assistant .content")
    assert content.locator("h1").text_content() == "Title"
    assert content.locator("li").all_text_contents() == ["one", "two"]
    assert content.locator("pre code").text_content().strip() == 'print("<b>")'
    assert content.locator("td").all_text_contents() == ["1", "2"]
    assert content.locator("strong").text_content() == "bold"
    assert content.locator("script, img").count() == 0
    assert content.locator("a[href^=javascript]").count() == 0
    assert page.evaluate("window.broken") is None
    assert page.text_content(".message.assistant .reasoning .body") == "Let me see."
    assert "42 tokens" in page.text_content(".message.assistant .speed")


def test_retry_and_edit_send_what_came_before(page) -> None:
    bodies = canned(page, "Answer")
    say(page, "One")
    say(page, "Two")
    page.locator(".message.assistant").last.get_by_role("button", name="Retry").click()
    page.wait_for_selector("#stop", state="hidden")
    page.locator(".message.user").first.get_by_role("button", name="Edit").click()
    field = page.get_by_label("Edit the message")
    field.fill("Changed")
    field.press("Enter")
    page.wait_for_selector("#stop", state="hidden")
    sync_api.expect(page.locator(".message")).to_have_count(2)
    sent = [[(m["role"], m["content"]) for m in body["messages"]] for body in bodies]
    first = [("user", "One")]
    second = [*first, ("assistant", "Answer"), ("user", "Two")]
    assert sent == [first, second, second, [("user", "Changed")]]


def test_system_prompt_settings_and_conversations(page) -> None:
    bodies = canned(page, "Yes")
    page.click("#open-settings")
    page.fill("#system", "Be brief.")
    page.press("#system", "Tab")
    page.fill("#s-temperature", "0.5")
    page.press("#s-temperature", "Tab")
    page.press("#api-key", "Escape")
    say(page, "First")
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert bodies[0]["temperature"] == 0.5
    page.keyboard.press("Alt+n")
    say(page, "Second")
    assert bodies[1]["messages"] == [{"role": "user", "content": "Second"}]
    if page.locator("#show-sidebar").is_visible():
        page.click("#show-sidebar")
    names = page.locator("#chat-list .chat").all_text_contents()
    assert names == ["Second", "First"]
    page.get_by_role("button", name="First", exact=True).click()
    assert page.text_content(".message.user .content") == "First"


def test_an_error_is_shown_and_can_be_retried(page) -> None:
    canned(page, "", status=400)
    say(page, "Too long")
    assert page.text_content(".message.assistant .error") == "the context is full"
    page.unroute("**/v1/chat/completions")
    canned(page, "Now it works")
    page.get_by_role("button", name="Retry").click()
    page.wait_for_selector("#stop", state="hidden")
    assert page.text_content(".message.assistant .content").strip() == "Now it works"


def test_the_theme_is_chosen_and_remembered(page) -> None:
    def color() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    before = color()
    page.click("#theme")
    after = color()
    assert after != before
    page.reload()
    assert color() == after


def test_no_wider_than_the_window(page) -> None:
    canned(page, "`" + "x" * 400 + "`\n\n| " + "wide " * 80 + "|\n|---|\n| a |")
    say(page, "y" * 300)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
