"""Templates in the template process: what exceeds a limit is an error, and the next one is rendered."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from corral.chat.chat_format import ChatFormat
from corral.chat.jinja_template import ChatTemplate
from corral.chat.template import TemplateError, TemplateLimit
from corral.core.errors import CorralError, Unavailable
from corral.link import restart
from corral.link.renderer import LARGE_BYTES, Renderer
from corral.link.rendering import max_cpu_s
from tests.tools.examples import is_quick
from tests.tools.family import FAMILIES, load
from tests.tools.wait import wait_until

MESSAGES = [{"role": "user", "content": "a"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
GROWS = "{% set n = namespace(x='a') %}{% for i in range(99) %}"
NESTED = "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
# Inside one call of the interpreter, which only the system ends, and the process with it.
KILLS = NESTED + "{% set a = n.x %}" + NESTED + "{{ a == n.x }}"


@pytest.fixture(scope="module")
def renderer():
    renderer = Renderer(10.0)
    renderer.start()
    yield renderer
    renderer.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_it_renders_what_the_sandbox_renders(renderer, family):
    here, there = (
        ChatFormat(make(load(family), "<s>", "</s>")) for make in (ChatTemplate, renderer.template)
    )
    assert there.can == here.can


def test_values_arrive_as_they_are(renderer):
    source = "{{ messages }}{{ tools }}{{ x }}{{ add_generation_prompt }}{{ bos_token }}"
    given = (MESSAGES, [{"é\0": [1, 2.5, None, True, {"b": {}}]}], False, {"x": {"z": 1, "a": -(2**63)}})
    assert renderer.template(source, "<s>").render(*given) == ChatTemplate(source, "<s>").render(*given)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 999999999 }}",
        "{{ 'a' | center(999999999) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a\n' | indent(999999999) }}",
        "{{ [1] | batch(999999999, 1) | list }}",
        GROWS + "{% set n.x = n.x ~ n.x %}{% endfor %}",
        GROWS + "{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
    ],
)
def test_memory_is_limited(renderer, source):
    """Also where a template multiplies texts while it is compiled."""
    with pytest.raises(TemplateLimit):
        renderer.template(source).render(MESSAGES)
    assert renderer.template("b").render(MESSAGES) == "b"


@pytest.mark.parametrize(
    "source",
    [
        LOOP,
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
        NESTED + "{{ n.x }}",
        KILLS,
    ],
)
def test_time_is_limited(renderer, source):
    with pytest.raises(TemplateLimit):
        renderer.template(source).render(MESSAGES)
    assert renderer.template("b").render(MESSAGES) == "b"


def test_a_template_that_exceeds_the_limits_is_not_tried_again(renderer):
    with pytest.raises(TemplateLimit):
        ChatFormat(renderer.template("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}"))


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ " + "(" * 9999, "{% for x in [1] %}" * 30 + "{% endfor %}" * 30]
)
def test_what_cannot_be_compiled_is_an_error(renderer, source):
    with pytest.raises(CorralError) as caught:
        renderer.template(source)
    assert not isinstance(caught.value, TemplateError)


def test_a_refusal_has_its_reason(renderer):
    with pytest.raises(TemplateError, match="only two roles"):
        renderer.template("{{ raise_exception('only two roles') }}").render(MESSAGES)


def test_a_lost_process_is_replaced(renderer):
    template = renderer.template("b")
    os.kill(renderer.pid, signal.SIGKILL)
    assert template.render(MESSAGES) == "b"


def test_a_template_that_ends_the_process_fails_no_other(renderer):
    """All models share the process, and wait for its successor."""
    hostile, other = renderer.template(KILLS), renderer.template("b")
    with ThreadPoolExecutor(8) as pool:
        killing = pool.submit(hostile.render, MESSAGES)
        others = [pool.submit(other.render, MESSAGES) for _ in range(20)]
        assert [each.result() for each in others] == ["b"] * len(others)
        assert isinstance(killing.exception(), TemplateLimit)


def test_a_template_that_has_exceeded_a_limit_holds_up_no_other(renderer):
    loop, other = renderer.template(f"{LOOP}{{# again #}}"), renderer.template("b")
    with pytest.raises(TemplateLimit):
        loop.render(MESSAGES)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(loop.render, MESSAGES)
        n_rendered = 0
        while not slow.done():
            assert other.render(MESSAGES) == "b"
            n_rendered += 1
        assert n_rendered > 1


def test_a_process_that_cannot_be_started_is_tried_again(renderer, monkeypatch):
    """Without a rendering: a server that is not ready may get none."""
    template = renderer.template("b")
    monkeypatch.setattr(restart, "_FIRST_S", 0.01)
    pairs = iter([OSError(24, "Too many open files"), RuntimeError("no"), ValueError("no")])
    make = socket.socketpair

    def fail() -> tuple[socket.socket, socket.socket]:
        error = next(pairs, None)
        if error is not None:
            raise error
        return make()

    lost = renderer.pid
    monkeypatch.setattr(socket, "socketpair", fail)
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: renderer.is_ready and renderer.pid not in (None, lost))
    assert next(pairs, None) is None
    assert template.render(MESSAGES) == "b"


def test_a_stopped_process_is_replaced_by_a_rendering():
    renderer = Renderer(1.0)
    try:
        template = renderer.template("b")
        os.kill(renderer.pid, signal.SIGSTOP)
        assert template.render(MESSAGES) == "b"
    finally:
        renderer.close()


def test_a_stopped_process_is_replaced_without_one():
    renderer = Renderer(4.0)
    try:
        renderer.template("b")
        stopped = renderer.pid
        os.kill(stopped, signal.SIGSTOP)
        wait_until(lambda: not renderer.is_ready)
        wait_until(lambda: renderer.is_ready and renderer.pid not in (None, stopped))
    finally:
        renderer.close()


def test_a_resting_process_is_ready(renderer):
    renderer.rest()
    assert renderer.pid is None
    assert renderer.is_ready
    assert renderer.template("b").render(MESSAGES) == "b"


def test_after_the_end_nothing_is_rendered():
    renderer = Renderer(10.0)
    template = renderer.template("b")
    renderer.close()
    with pytest.raises(Unavailable):
        template.render(MESSAGES)


def test_long_conversations_hold_up_no_other(renderer):
    """They have a process of their own."""
    loop = LOOP.replace("99999", "99", 1) if is_quick() else LOOP
    template = renderer.template("{% if messages[0].content | length > 9 %}" + loop + "{% endif %}b")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(template.render, [{"role": "user", "content": "a" * LARGE_BYTES}])
        n_rendered = 0
        while not slow.done():
            assert template.render(MESSAGES) == "b"
            n_rendered += 1
        assert n_rendered > 1
        assert is_quick() or isinstance(slow.exception(), TemplateLimit)


def test_long_conversations_may_take_longer():
    assert max_cpu_s(64 << 20) > 10 * max_cpu_s(1 << 10)
