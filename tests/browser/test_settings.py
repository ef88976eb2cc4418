"""Settings of the chat page: the server's defaults, presets, and what it says of schemas and grammars."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage, redraw
from tests.system.process import CorralProcess

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}


@pytest.fixture
def chat(page, corral) -> ChatPage:
    return ChatPage(page, corral.url).open()


def test_defaults_are_the_servers(page, models):
    model = models / "llama-bpe.gguf"
    with CorralProcess("-m", model, "-c", 512, "--temp", 0.25, "--top-k", 7, "--seed", 42) as server:
        panel = ChatPage(page, server.url).open().open_settings()
        expect(panel.get_by_label("Temperature", exact=True)).to_have_value("0.25")
        expect(panel.get_by_label("Top K", exact=True)).to_have_value("7")
        expect(panel.get_by_label("Seed", exact=True)).to_have_value("42")


def test_every_sampling_parameter_of_the_server_can_be_set(chat, corral):
    params = corral.get("/props").json()["default_generation_settings"]["params"]
    not_sampling = {
        *(
            "n_predict",
            "stream",
            "timings_per_token",
            "logit_bias",
            "lora",
            "priority",
            "max_queue_ms",
            "max_repeats",
        ),
        *(
            "cfg_scale",
            "post_sampling_probs",
            "penalize_nl",
            "penalty_prompt_tokens",
            "use_penalty_prompt_tokens",
        ),
        *("grammar_lazy", "grammar_triggers", "preserved_tokens", "chat_format", "reasoning_format"),
        *("reasoning_in_content", "generation_prompt", "backend_sampling"),
        *("adaptive_target", "adaptive_decay", "speculative.n_max", "speculative.n_min", "speculative.p_min"),
    }
    chat.open_settings()
    for name in params.keys() - not_sampling:
        assert chat.page.locator(f"#setting-{name}").count() == 1, name


def test_only_what_was_changed_is_sent(chat, page):
    bodies = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if "chat/completions" in r.url else None)
    chat.set("Max tokens", 3)
    chat.set("Temperature", 0.3)
    chat.ask("Hello")
    always = {"messages", "stream", "stream_options", "timings_per_token", "return_progress", "durable"}
    sent = set(bodies[0]) - always
    assert sent == {"max_tokens", "temperature"}
    chat.page.get_by_role("button", name="Reset Temperature to its default").click()
    chat.ask("Hello again")
    assert "temperature" not in bodies[1]


def test_what_is_typed_stays_when_the_page_is_drawn_again(chat, page):
    field = chat.open_settings().get_by_label("Max tokens", exact=True)
    field.fill("7")
    redraw(page)
    expect(field).to_have_value("7")
    chat.page.get_by_label("System prompt", exact=True).focus()
    expect(page.get_by_role("button", name="Reset Max tokens to its default")).to_be_visible()
    expect(field).to_have_value("7")


def test_presets(chat, page):
    panel = chat.open_settings()
    preset = panel.get_by_label("Preset", exact=True)
    preset.select_option("Precise")
    expect(panel.get_by_label("Temperature", exact=True)).to_have_value("0.1")
    chat.set("Top K", 3)
    page.once("dialog", lambda dialog: dialog.accept("Mine"))
    panel.get_by_role("button", name="Save as preset").click()
    expect(preset).to_have_value("Mine")
    preset.select_option("Server defaults")
    expect(panel.get_by_label("Top K", exact=True)).to_have_value("40")
    page.reload()
    chat.wait_until_ready()
    panel = chat.open_settings()
    panel.get_by_label("Preset", exact=True).select_option("Mine")
    expect(panel.get_by_label("Top K", exact=True)).to_have_value("3")
    panel.get_by_role("button", name="Delete this preset").click()
    expect(panel.get_by_label("Preset", exact=True)).to_have_value("")


def test_an_answer_of_a_schema(chat):
    chat.set("JSON schema", json.dumps(SCHEMA))
    chat.set("Temperature", 0)
    answer = json.loads(chat.ask("Give me a number."))
    assert isinstance(answer["n"], int)


@pytest.mark.parametrize(
    ("label", "text", "says"),
    [
        ("Grammar", 'root ::= ("a"', "line 1"),
        ("Grammar", "root ::= missing", "'missing' is not defined"),
        ("JSON schema", '{"type": "nonsense"}', "nonsense"),
        ("JSON schema", '{"type": ', "Invalid JSON"),
    ],
)
def test_what_is_wrong_is_said_under_the_field(chat, problems, label, text, says):
    problems.allow("400")
    field = chat.set(label, text)
    error = chat.page.locator(f"#{field.get_attribute('id')}-error")
    expect(error).to_contain_text(says)
    expect(field).to_have_attribute("aria-invalid", "true")
    chat.set(label, "")
    expect(error).to_have_count(0)


def test_an_error_of_an_answer_opens_the_settings(chat, page, problems):
    """Somebody may send before the field has been checked."""
    problems.allow("400")
    page.route("**/completion", lambda route: route.fulfill(json={}))
    chat.set("Grammar", "root ::= (")
    page.get_by_role("button", name="Close the settings").click()
    chat.say("Hello")
    expect(page.locator("#setting-grammar-error")).to_contain_text("line 1")
    expect(chat.last.get_by_role("alert")).to_contain_text("Failed to parse grammar")
    chat.force("fine")
    chat.do("Try again")
    expect(chat.last.locator(".markdown")).to_have_text("fine")


def test_settings_belong_to_their_chat_and_the_page_says_how_many_there_are(chat, page):
    chat.force("yes")
    chat.set("Max tokens", 4)
    sign = page.locator(".head").get_by_role("button", name="Settings: 2 are this chat's own")
    expect(sign).to_be_visible()
    chat.ask("Hello")
    page.get_by_role("button", name="New chat", exact=True).click()
    expect(sign).to_have_count(0)
    expect(chat.open_settings().get_by_label("Max tokens", exact=True)).to_have_value("-1")
    page.get_by_role("link", name="Hello").click()
    expect(sign).to_be_visible()


def test_new_chats_begin_with_the_settings_that_were_kept_for_them(chat, page):
    chat.force("yes")
    chat.use_for_new_chats()
    chat.ask("Hello")
    page.get_by_role("button", name="New chat", exact=True).click()
    assert chat.ask("Hello again") == "yes"
    page.reload()
    chat.wait_until_ready()
    page.get_by_role("button", name="New chat", exact=True).click()
    assert chat.ask("And again") == "yes"
    chat.open_settings().get_by_role("button", name="New chats as the server says").click()
    page.get_by_role("button", name="New chat", exact=True).click()
    expect(page.get_by_text("This chat uses the server's settings.")).to_be_visible()


def test_settings_of_a_chat_without_messages_survive_a_reload(chat, page):
    chat.set("Temperature", 0.3)
    chat.set("System prompt", "Be brief.")
    chat.box.fill("half a question")
    page.reload()
    chat.wait_until_ready()
    panel = chat.open_settings()
    expect(panel.get_by_label("Temperature", exact=True)).to_have_value("0.3")
    expect(panel.get_by_label("System prompt", exact=True)).to_have_value("Be brief.")
    expect(chat.box).to_have_value("half a question")


@pytest.mark.parametrize(("label", "typed", "shown"), [("Temperature", 99, "5"), ("Top K", -3, "0")])
def test_numbers_stay_within_their_limits(chat, label, typed, shown):
    expect(chat.set(label, typed)).to_have_value(shown)


def test_a_slider_sets_its_number(chat):
    panel = chat.open_settings()
    panel.get_by_label("Temperature, slider").fill("1.5")
    expect(panel.get_by_label("Temperature", exact=True)).to_have_value("1.5")


def test_a_group_stays_open_when_its_last_setting_is_reset(chat, page):
    field = chat.set("Repeat penalty", 1.2)
    page.get_by_role("button", name="Reset Repeat penalty to its default").click()
    expect(field).to_have_value("1")
    expect(field).to_be_visible()


def test_the_servers_own_settings_for_the_page(page, models):
    config = json.dumps({"temperature": 0.05, "system": "Be brief."})
    model = models / "llama-bpe.gguf"
    with CorralProcess("-m", model, "-c", 512, "--ui-config", config) as server:
        panel = ChatPage(page, server.url).open().open_settings()
        expect(panel.get_by_label("Temperature", exact=True)).to_have_value("0.05")
        expect(panel.get_by_label("System prompt")).to_have_value("Be brief.")
