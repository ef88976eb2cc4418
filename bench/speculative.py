"""What drafts from the prompt give: an answer that repeats most of it, and one that does not.

A model this small cannot be trusted with an edit, so a grammar dictates the answer, or a control token in
place of any: every token is drawn from the model, and the answer is what a larger one would write.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from bench.client import Answer, complete, post
from bench.process import Corral
from bench.section import Section, repeat
from bench.setup import AS_GIVEN, Setup
from bench.speed import OFF
from tests.tools.quantize import to_q4_0

FILE = '''\
"""Orders of a small shop."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True)
class Item:
    name: str
    price: Decimal
    quantity: int = 1

    def total(self) -> Decimal:
        return self.price * self.quantity


@dataclass
class Order:
    customer: str
    items: list[Item] = field(default_factory=list)
    is_paid: bool = False

    def add(self, item: Item) -> None:
        if item.quantity < 1:
            raise ValueError("quantity must be positive")
        self.items.append(item)

    def total(self) -> Decimal:
        return sum((item.total() for item in self.items), Decimal(0))

    def pay(self, amount: Decimal) -> Decimal:
        if self.is_paid:
            raise ValueError("the order is paid already")
        if amount < self.total():
            raise ValueError("the amount is too small")
        self.is_paid = True
        return amount - self.total()


def load_orders(lines: list[str]) -> list[Order]:
    orders: dict[str, Order] = {}
    for line in lines:
        customer, name, price, quantity = line.split(",")
        order = orders.setdefault(customer, Order(customer))
        order.add(Item(name, Decimal(price), int(quantity)))
    return list(orders.values())


def print_orders(orders: list[Order]) -> None:
    for order in orders:
        state = "paid" if order.is_paid else "open"
        print(f"{order.customer}: {order.total()} ({state})")


def main() -> None:
    print_orders(load_orders(open("orders.csv").read().splitlines()))
'''
EDITED = (
    FILE.replace("load_orders", "read_orders")
    .replace('"quantity must be positive"', '"at least one item is needed"')
    .replace("    is_paid: bool = False\n", '    is_paid: bool = False\n    note: str = ""\n')
)
_ASK = "Rename load_orders to read_orders, add a note to orders, and write a better message for the quantity."
_EDIT = f"<|im_start|>user\n{_ASK}\n\n```python\n{FILE}```<|im_end|>\n<|im_start|>assistant\n```python\n"
_FREE = "<|im_start|>user\nTell me a long story about a ship.<|im_end|>\n<|im_start|>assistant\n"
N_FREE = 256
_GREEDY: dict[str, Any] = {"temperature": 0}
_UNLIKELY = 7  # a control token


async def measure_speculative(setup: Setup, section: Section) -> None:
    """With drafts over without: in an encoding for which this CPU gains from batches, and as it is given."""
    fast = fast_model(setup.model)
    servers: tuple[tuple[str, str, float, tuple[str, ...]], ...] = (
        ("Q4_0", fast, 1.6, ()),
        ("Q4_0, inexact", fast, 1.6, ("--no-draft-exact",)),
        ("as given", setup.model, 1.0, ()),
    )
    for name, path, least, options in servers:
        with closing(Corral(path, *AS_GIVEN, "-c", 4096, *options)) as corral:
            for text, speed, target in (("an edit", edit_speed, least), ("a story", story_speed, 0.98)):
                drafts, plain = await repeat(
                    setup.rounds, partial(speed, corral.url), partial(speed, corral.url, **OFF)
                )
                details = {"tok/s": drafts, "plain": plain}
                section.at_least(f"{text} with drafts, {name}", drafts / plain, target, "x", details)


def fast_model(model: str) -> str:
    """The same in Q4_0."""
    path = Path(__file__).parent / "out" / "q4_0.gguf"
    path.parent.mkdir(exist_ok=True)
    return str(to_q4_0(Path(model), path))


async def edit_speed(url: str, **options: Any) -> float:
    """Tokens per second of a 60-line file that is written again with a few changes."""
    answer = await complete(
        url,
        prompt=_EDIT,
        grammar=await _dictation(url, EDITED),
        n_predict=900,
        cache_prompt=False,
        **_GREEDY,
        **options,
    )
    return _speed(answer)


async def story_speed(url: str, **options: Any) -> float:
    """Tokens per second of a story."""
    answer = await complete(
        url, prompt=_FREE, n_predict=N_FREE, ignore_eos=True, seed=7, cache_prompt=False, **options
    )
    return _speed(answer)


def _speed(answer: Answer) -> float:
    timings = answer.last["timings"]
    return 1e3 * float(timings["predicted_n"] - 1) / float(timings["predicted_ms"])


async def _dictation(url: str, text: str) -> str:
    """A grammar that leaves no choice but an unlikely one: nothing is forced, everything is drawn."""
    tokens = (await post(url, "/tokenize", {"content": text}))["tokens"]
    return "root ::= " + " ".join(f"(<[{token}]> | <[{_UNLIKELY}]>)" for token in tokens)
