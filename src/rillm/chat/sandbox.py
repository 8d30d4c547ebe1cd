"""Jinja's immutable sandbox on a budget: templates come from model files, and are untrusted code.

The sandbox keeps a template from Python's insides but lets it run and grow without end. Here each
loop round, call, filter, operator and output is charged for the text it makes: beforehand wherever
little code can make much ('x' * 10**10, a list put into itself thirty times).
"""

import functools
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

_CHARS = 4 << 20  # what any template may make in all
_CHARS_PER_INPUT_CHAR = 64  # and what long messages add
_STEP_CHARS = 32  # what a loop round, a call, or an element of a list counts
_SECONDS = 0.5  # of this thread's own time
_DEPTH = 64  # calls within calls

# Filters by what they do to their first argument; all others may put the whole of it into text.
_PICKING = {"first", "last", "map", "max", "min", "reject", "rejectattr", "select", "selectattr"}
_CHEAP = {"attr", "charged", "count", "d", "default", "float", "int", "items", "length", "truncate"}
_PER_ELEMENT = {"dictsort", "groupby", "list", "reverse", "sort", "sum", "unique"}
_GROWING_METHODS = {"format", "join", "replace"}
# Methods that pad, which no chat template needs.
_PADDING_METHODS = {
    "center",
    "encode",
    "expandtabs",
    "format_map",
    "ljust",
    "rjust",
    "to_bytes",
    "translate",
    "zfill",
}
_COMPUTED_WIDTH = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")


class OverBudget(TemplateError):
    """The template would run too long or make too much."""


class Budget:
    """What one rendering may still use."""

    def __init__(self, *inputs: Any):
        self.room = _CHARS + _CHARS_PER_INPUT_CHAR * _len_of_text(inputs)
        self.deadline = time.thread_time() + _SECONDS
        self.depth = 0

    def step(self) -> None:
        self.spend(_STEP_CHARS)
        if time.thread_time() > self.deadline:
            raise OverBudget(f"it runs for more than {_SECONDS} s")

    def check(self, n_chars: int) -> None:
        if n_chars > self.room:
            raise OverBudget(f"it makes more than {_CHARS} characters beyond its input")

    def spend(self, n_chars: int) -> None:
        self.check(n_chars)
        self.room -= n_chars

    def len_of_text(self, value: Any) -> int:
        return _len_of_text(value, self.room)

    def spend_result(self, value: Any) -> Any:
        if isinstance(value, str):
            self.spend(len(value))
        elif isinstance(value, int):
            self.spend(value.bit_length() // 3)
        elif isinstance(value, (list, tuple, dict, set)):
            self.spend(_STEP_CHARS * len(value))
        return value


budget: ContextVar[Budget] = ContextVar("budget")  # set while a template compiles or renders


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any):
        super().__init__(finalize=self._output, **options)
        del self.globals["lipsum"]
        self.filters["charged"] = lambda value: value
        for name, function in self.filters.items():
            self.set_filter(name, function)

    def set_filter(self, name: str, function: Callable[..., Any]) -> None:
        at = 1 if hasattr(function, "jinja_pass_arg") else 0  # the environment or context is first

        @functools.wraps(function)
        def charged(*args: Any, **options: Any) -> Any:
            left = budget.get()
            left.step()
            value, rest = args[at], [*args[at + 1 :], *options.values()]
            if name in _PER_ELEMENT:
                left.check(_STEP_CHARS * len(value) if isinstance(value, Collection) else 0)
                if name == "sum" and any(isinstance(arg, (list, tuple)) for arg in rest):
                    raise OverBudget("it adds up lists")
            elif name not in _PICKING | _CHEAP:
                if isinstance(value, Iterator):
                    value = list(value)
                    args = (*args[:at], value, *args[at + 1 :])
                left.check(left.len_of_text(value) * _growth(rest, widths=name != "format"))
                left.check(_widths(str(value)) if name == "format" else 0)
            return left.spend_result(function(*args, **options))

        self.filters[name] = charged

    def call(self, context: Any, function: Any, /, *args: Any, **options: Any) -> Any:
        left = budget.get()
        left.step()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        text = getattr(method, "__self__", None)
        if isinstance(text, str) and method.__name__ in _GROWING_METHODS:
            args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
            left.check(max(len(text), 1) * _growth((*args, *options.values()), widths=False))
            left.check(_widths(text) if method.__name__ == "format" else 0)
        left.depth += 1
        if left.depth > _DEPTH:
            raise OverBudget(f"it calls itself more than {_DEPTH} deep")
        result = super().call(context, function, *args, **options)
        left.depth -= 1
        if isinstance(text, str):
            left.spend(left.len_of_text(result))  # what a split cut off is new text too
        return left.spend_result(result)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        used = budget.get()
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, (str, list, tuple)) and isinstance(count, int):
                    unit = 1 if isinstance(value, str) else _STEP_CHARS
                    used.check(unit * len(value) * max(count, 0))
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            used.check(left.bit_length() * max(right, 0) // 3)
        elif operator == "%" and isinstance(left, str):
            used.check(len(left) * _growth([right], widths=False))
            used.check(_widths(left))
        elif operator == "+" and isinstance(left, (list, tuple)):
            used.spend(used.len_of_text(right))
        return used.spend_result(super().call_binop(context, operator, left, right))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _PADDING_METHODS and super().is_safe_attribute(obj, attr, value)

    def concat(self, pieces: Iterable[str]) -> str:
        left, kept = budget.get(), []
        for piece in pieces:
            left.spend(len(piece))
            kept.append(piece)
        return "".join(kept)

    def step(self) -> None:
        """What a loop calls in each round: `call` does the charging."""

    def _output(self, value: Any) -> Any:
        left = budget.get()
        left.spend(_STEP_CHARS + left.len_of_text(value))
        return value

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Charging().visit(super()._parse(source, name, filename))


class _Charging(NodeTransformer):
    """Leads what Jinja compiles to plain Python through calls and filters, which are charged."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        step = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes, lineno=node.lineno), "join")

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filter(node, "charged") if isinstance(node.arg, nodes.Slice) else node


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks for training what the assistant says."""

    tags = frozenset({"generation"})

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), True), lineno=line)


def _filter(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _len_of_text(value: Any, enough: float = float("inf")) -> int:
    """About how long str(value) is, elements counted wherever they come; stops past `enough`."""
    total, stack = 0, [value]
    while stack and total <= enough:
        item = stack.pop()
        if isinstance(item, str):
            total += len(item)
            continue
        total += _STEP_CHARS
        if isinstance(item, int):
            total += item.bit_length() // 3
        elif isinstance(item, Mapping):
            stack += [*item.keys(), *item.values()]
        elif isinstance(item, Namespace):
            stack.append(item._Namespace__attrs)
        elif isinstance(item, Collection):
            stack += item
    return total


def _growth(args: Iterable[Any], widths: bool) -> int:
    """How many times longer arguments can make a text; numbers count in full as `widths`."""
    total = 0
    for arg in args:
        if isinstance(arg, int):
            total += abs(arg) if widths else arg.bit_length() // 3
        elif isinstance(arg, (str, Collection)):
            total += budget.get().len_of_text(arg)
    return max(total, 1)


def _widths(text: str) -> int:
    """The sum of the numbers in a format string: paddings are among them."""
    if _COMPUTED_WIDTH.search(text):
        raise OverBudget("it computes the width of a format")
    return sum(int(digits[:12]) for digits in re.findall(r"\d+", text))
