"""Tools that run: the question before each call, the loop and its limit, MCP servers, hostile results."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.chat_page import ChatPage
from tests.system.process import CorralProcess
from tests.tools import mcp_server
from tests.tools.mcp_server import HOSTILE, McpHttpServer

SCRIPT = str(Path(mcp_server.__file__))
ELSEWHERE = "https://mcp.example.com"


@pytest.fixture(scope="module")
def far():
    with McpHttpServer() as server:
        yield server


@pytest.fixture(scope="module")
def corral(models, far, tmp_path_factory):
    config = tmp_path_factory.mktemp("mcp") / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"small": {"command": sys.executable, "args": [SCRIPT]}}}))
    options = ("--mcp-servers-config", config, "--ui-mcp-origins", f"{far.origin},{ELSEWHERE}")
    with CorralProcess("-m", models / "llama-bpe.gguf", "-c", 4096, "-np", 2, *options) as server:
        yield server


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def force(page: Page, *rounds: tuple[str, dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Have the model make these calls, then answer. Returns the messages of each request."""
    sent: list[list[dict[str, Any]]] = []

    def change(route: Route) -> None:
        body = route.request.post_data_json
        sent.append(body["messages"])
        done = sum(message["role"] == "tool" for message in body["messages"])
        body["max_tokens"] = 4 if done >= len(rounds) else 200
        body["tool_choice"] = "none"
        if done < len(rounds):
            name, given = rounds[done]
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
            for tool in body["tools"]:
                if tool["function"]["name"] == name:
                    tool["function"]["parameters"] = exactly(given)
        route.continue_(post_data=json.dumps(body))

    page.route("**/v1/chat/completions*", change)
    return sent


def exactly(given: dict[str, Any]) -> dict[str, Any]:
    properties = {name: {"const": value} for name, value in given.items()}
    return {"type": "object", "properties": properties, "required": [*given], "additionalProperties": False}


def turn_on(chat: ChatPage, *titles: str, always: bool = False) -> None:
    chat.page.get_by_role("button", name="Tools", exact=True).click()
    dialog = chat.page.get_by_role("dialog")
    for title in titles:
        dialog.locator("li", has_text=title).get_by_role("checkbox").check()
        if always:
            dialog.get_by_label(f"Calls to {title}").select_option("always")
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_have_count(0)


def press(chat: ChatPage, name: str) -> None:
    chat.last.get_by_role("button", name=name, exact=True).click()


def result(chat: ChatPage):
    return chat.page.locator("article.tool .tool-result")


def finish(chat: ChatPage, n_results: int) -> None:
    """Wait for the answer after the last result."""
    expect(result(chat)).to_have_count(n_results)
    chat.wait_for_end()


def test_a_call_runs_when_it_is_allowed(chat, page):
    sent = force(page, ("calculator", {"expression": "6 * 7"}))
    turn_on(chat, "Calculator")
    chat.say("What is six times seven?")
    expect(chat.last.locator(".call pre")).to_contain_text("6 * 7")
    press(chat, "Allow once")
    expect(result(chat)).to_have_text("42")
    expect(page.locator("article.tool .result")).to_contain_text(" ms")
    finish(chat, 1)
    assert sent[1][-1]["content"] == "42"
    assert sent[1][-1]["tool_call_id"] == sent[1][-2]["tool_calls"][0]["id"]


def test_a_question_survives_a_reload_and_can_be_declined(chat, page):
    sent = force(page, ("calculator", {"expression": "1 / 0"}))
    turn_on(chat, "Calculator")
    chat.say("Divide.")
    expect(chat.last.get_by_role("button", name="Allow once")).to_be_visible()
    page.reload()
    chat.wait_until_ready()
    press(chat, "Do not allow")
    finish(chat, 1)
    assert "not allow" in sent[-1][-1]["content"]
    expect(page.locator("article.tool .result")).to_contain_text("Failed")


def test_what_is_always_allowed_runs_up_to_the_limit(chat, page):
    sent = force(page, *[("calculator", {"expression": f"{i} + 1"}) for i in range(4)])
    turn_on(chat, "Calculator", always=True)
    page.evaluate(
        """() => {
          const config = JSON.parse(localStorage.getItem("corral.tools"));
          localStorage.setItem("corral.tools", JSON.stringify({ ...config, maxSteps: 2 }));
        }"""
    )
    page.reload()
    chat.wait_until_ready()
    chat.say("Count.")
    expect(page.get_by_text("Nothing more runs without your yes.")).to_be_visible()
    expect(result(chat)).to_have_text(["1", "2"])
    assert len(sent) == 3
    press(chat, "Allow once")
    expect(result(chat)).to_have_count(3)
    expect(chat.last.get_by_role("button", name="Allow once")).to_be_visible()


def test_a_tool_that_has_changed_asks_again(chat, page):
    force(page, ("calculator", {"expression": "1 + 1"}))
    turn_on(chat, "Calculator", always=True)
    page.evaluate(
        """() => {
          const config = JSON.parse(localStorage.getItem("corral.tools"));
          config.always["page/calculator"] = config.always["page/calculator"].replace("arithmetic", "other");
          localStorage.setItem("corral.tools", JSON.stringify(config));
        }"""
    )
    page.reload()
    chat.wait_until_ready()
    chat.say("Add.")
    expect(chat.last.get_by_role("button", name="Always allow")).to_be_visible()


def test_a_tool_of_the_server_with_a_hostile_result(page, corral):
    page.add_init_script("window.hack = () => { window.isHacked = true; }")
    chat = ChatPage(page, corral.url).open()
    sent = force(page, ("small_hostile", {}))
    turn_on(chat, "small_hostile", always=True)
    chat.say("Do harm.")
    finish(chat, 1)
    assert result(chat).text_content() == HOSTILE
    assert page.locator(".result img, .result script, .result a").count() == 0
    assert sent[1][-1]["content"] == HOSTILE
    assert page.evaluate("window.isHacked") is None


def test_a_failing_tool_and_a_long_result(chat, page, problems):
    problems.allow("status of 400")  # even so it may be too long for a model with few words
    sent = force(page, ("small_fail", {}), ("small_big", {"n": 100_000}))
    turn_on(chat, "small_fail", "small_big", always=True)
    chat.say("Try.")
    finish(chat, 2)
    assert sent[1][-1]["content"] == "it went wrong"
    assert len(sent[2][-1]["content"]) < 2200
    assert "100000 characters" in sent[2][-1]["content"]
    expect(page.locator("article.tool .result").first).to_contain_text("Failed")


def test_a_running_tool_can_be_stopped(chat, page):
    force(page, ("small_slow", {"seconds": 600}))
    turn_on(chat, "small_slow", always=True)
    chat.say("Wait.")
    expect(chat.last.get_by_text("Running…")).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(chat.last.get_by_role("button", name="Allow once")).to_be_visible()


def test_an_mcp_server_that_the_page_calls(chat, page, far):
    policy = page.request.get(chat.url).headers["content-security-policy"]
    assert f"connect-src 'self' {far.origin} {ELSEWHERE}" in policy
    page.get_by_role("button", name="Tools", exact=True).click()
    dialog = page.get_by_role("dialog")
    for name, url in (("Evil", "https://evil.test/mcp"), ("Far", far.url)):
        dialog.get_by_role("textbox", name="Name").fill(name)
        dialog.get_by_role("textbox", name="Address").fill(url)
        dialog.get_by_label("Token").fill("a-token")
        dialog.get_by_role("button", name="Add").click()
        if name == "Evil":
            expect(dialog.get_by_role("alert")).to_contain_text(far.origin)
    far_tools = dialog.get_by_role("region", name="Far", exact=True)
    far_tools.locator("li", has_text="echo").get_by_role("checkbox").check()
    dialog.get_by_role("button", name="Close").click()
    sent = force(page, ("Far_echo", {"text": "hello"}))
    chat.say("Say hello.")
    press(chat, "Always allow")
    finish(chat, 1)
    assert sent[1][-1]["content"] == "hello"
    assert far.headers[-1]["authorization"] == "Bearer a-token"
    assert far.headers[-1]["mcp-session-id"] == "s1"


def test_an_mcp_server_that_cannot_be_reached(chat, page, problems):
    problems.allow("mcp.example.com")
    page.route(f"{ELSEWHERE}/**", lambda route: route.abort())
    page.get_by_role("button", name="Tools", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("Lost")
    dialog.get_by_role("textbox", name="Address").fill(f"{ELSEWHERE}/mcp")
    dialog.get_by_role("button", name="Add").click()
    expect(dialog.get_by_role("region", name="Lost", exact=True).get_by_role("alert")).to_be_visible()
    dialog.get_by_role("button", name="Remove Lost").click()
    expect(dialog.get_by_role("region", name="Lost", exact=True)).to_have_count(0)
    assert page.evaluate("localStorage.getItem('corral.tools')") is None


EXPRESSIONS = {
    "1 + 2 * 3": "7",
    "-2 ^ 2": "-4",
    "2 ^ 3 ^ 2": "512",
    "2 ^ -1": "0.5",
    "2 ** 10 % 1000": "24",
    "(1 + 2) * -3": "-9",
    "0.1 + 0.2": "0.3",
    "1.5e3 / .5": "3000",
    "sqrt(16) + max(1, 2, 3) - abs(-1)": "6",
    "log(1000) + ln(e) + log(8, 2)": "7",
    "round(sin(pi / 2))": "1",
    "1 / 0": "Infinity",
}
WRONG = ["", "1 +", "(1", "1 2", "alert(1)", "constructor", "__proto__", "1; 2", "a.b", "1" * 1001, "(" * 200]


def test_the_calculator(page, corral):
    page.goto(corral.url + "/js/tools/calculator.js")
    script = """async (texts) => {
      const { evaluate, shown } = await import("/js/tools/calculator.js");
      const outcome = (text) => { try { return shown(evaluate(text)); } catch { return "Error"; } };
      return texts.map(outcome);
    }"""
    assert page.evaluate(script, list(EXPRESSIONS)) == list(EXPRESSIONS.values())
    assert page.evaluate(script, WRONG) == ["Error"] * len(WRONG)


def tools_of(page: Page) -> list[list[str]]:
    """Collect the tools that each request offers."""
    offered: list[list[str]] = []

    def note(route: Route) -> None:
        body = route.request.post_data_json
        offered.append([tool["function"]["name"] for tool in body.get("tools", [])])
        route.continue_(post_data=json.dumps({**body, "max_tokens": 4, "tool_choice": "none"}))

    page.route("**/v1/chat/completions*", note)
    return offered


def test_a_chat_has_tools_of_its_own(chat, page):
    offered = tools_of(page)
    button = page.get_by_role("button", name="Tools", exact=True)
    turn_on(chat, "Calculator")
    chat.ask("In all chats.")
    button.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Only for this chat").check()
    dialog.locator("li", has_text="Calculator").get_by_role("checkbox").uncheck()
    dialog.get_by_role("checkbox", name="On this server", exact=True).check()
    dialog.get_by_role("button", name="Close").click()
    chat.ask("Only here.")
    page.reload()
    chat.wait_until_ready()
    chat.ask("Still only here.")
    page.get_by_role("button", name="New chat", exact=True).click()
    chat.ask("Elsewhere.")
    page.locator(".entry a", has_text="In all chats").click()
    button.click()
    dialog.get_by_label("Only for this chat").uncheck()
    dialog.get_by_role("button", name="Close").click()
    chat.ask("As in all chats again.")
    small = [f"small_{tool['name']}" for tool in mcp_server.TOOLS]
    assert offered == [["calculator"], small, small, ["calculator"], ["calculator"]]


def test_a_chat_without_tools(chat, page):
    offered = tools_of(page)
    turn_on(chat, "Calculator", always=True)
    button = page.get_by_role("button", name="Tools", exact=True)
    expect(button).to_have_attribute("aria-pressed", "true")
    button.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Only for this chat").check()
    dialog.locator("li", has_text="Calculator").get_by_role("checkbox").uncheck()
    dialog.get_by_role("button", name="Close").click()
    expect(button).to_have_attribute("aria-pressed", "false")
    chat.ask("Without.")
    assert offered == [[]]
    config = json.loads(page.evaluate("localStorage.getItem('corral.tools')"))
    assert config["on"] == ["page/calculator"], "others keep theirs"
