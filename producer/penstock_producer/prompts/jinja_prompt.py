"""Prompts in Jinja: loops and conditions over a record, in a sandbox that ends by itself.

    {% for review in reviews %}- {{ review.text|truncate(200) }}
    {% endfor %}{% if language is defined %}Answer in {{ language }}.{% endif %}

Jinja's ImmutableSandboxedEnvironment with less in it: only the parts of the language that
this file lists, no calls, no attributes but the fields of objects, and filters from a list.
What a template costs is counted in units of work (about characters and steps), not in seconds, so
that a record is rendered or refused alike wherever and whenever it is read.

Counters are put into a prompt before it is compiled. The list says what may be there, not what may
not: whatever a later Jinja adds is refused until it is
added here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from jinja2 import (
    StrictUndefined,
    Template,
    TemplateSyntaxError,
    Undefined,
    UndefinedError,
    meta,
    nodes,
    pass_context,
)
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from penstock_producer.errors import TemplateError, seen
from penstock_producer.prompts.jinja_filters import FILTERS, TESTS, Work, as_text, work_of
from penstock_producer.prompts.template import (
    MissingField,
    RenderFailed,
    TextTooLong,
    is_empty,
)
from penstock_producer.rows import DEFAULT_MAX_BODY_BYTES

__all__ = ["BUDGET", "LOOKED", "MAX_TEMPLATE_CHARS", "SHOWN", "STEPS", "JinjaTemplate", "checked"]

MAX_NODES: Final = 5_000
# Names that no template can spell.
BUDGET: Final = "$work"
STEPS, SHOWN, JOINED, LOOKED = "$steps", "$shown", "$joined", "$looked"

_ALLOWED: Final = (
    nodes.Template,
    nodes.Output,
    nodes.TemplateData,
    nodes.Name,
    nodes.Const,
    nodes.Getattr,
    nodes.Getitem,
    nodes.Slice,
    nodes.If,
    nodes.For,
    nodes.Assign,
    nodes.CondExpr,
    nodes.And,
    nodes.Or,
    nodes.Not,
    nodes.Compare,
    nodes.Operand,
    nodes.Concat,
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Div,
    nodes.Neg,
    nodes.Pos,
    nodes.Filter,
    nodes.Test,
    nodes.List,
    nodes.Tuple,
    nodes.Dict,
    nodes.Pair,
    nodes.Keyword,
)
_SPECIAL: Final = frozenset({"self", "super", "caller", "varargs", "kwargs"})
_LANGUAGE: Final = (
    "a prompt has {{ values }}, {% for %}, {% if %}, {% set %}, filters and tests; docs/prompts.md"
)

# compiling takes time for every character; long texts belong into the system message
MAX_TEMPLATE_CHARS: Final = 64 * 1024
# the whole row, for columns whose names are no words: record["unit price"]
RECORD: Final = "record"
_LOOP = frozenset(
    {
        "index",
        "index0",
        "revindex",
        "revindex0",
        "first",
        "last",
        "length",
        "depth",
        "depth0",
        "previtem",
        "nextitem",
    }
)
_OPERATORS: Final = frozenset({"+", "-", "*", "/"})
_MAX_NUMBER: Final = 2.0**63
_NO_ORDER = re.compile(r"not supported between instances of '(?P<left>\w+)' and '(?P<right>\w+)'")
_KINDS = {
    "str": "a text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "an object",
    "NoneType": "null",
}
_MISSING = re.compile(r"'(?P<name>[^']*)' is undefined|has no attribute '(?P<inner>[^']*)'")


class NodeRefused(Exception):
    def __init__(self, line: int, what: str, fix: str) -> None:
        self.line, self.what, self.fix = line, what, fix
        super().__init__(what)


def checked(tree: nodes.Template) -> nodes.Template:
    """Return the same tree with its counters. Raises NodeRefused."""
    count = 0
    waiting: list[nodes.Node] = [tree]
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MAX_NODES:
            raise NodeRefused(
                node.lineno, "a template of so many parts", f"at most {MAX_NODES} are allowed"
            )
        _check(node)
        waiting += node.iter_child_nodes()
    _Counters().visit(tree)
    return tree


def _check(node: nodes.Node) -> None:
    if isinstance(node, nodes.Call):
        raise NodeRefused(
            node.lineno,
            "a call",
            "use filters, as in {{ text|upper }} and {% for key, value in record|items %}",
        )
    if type(node) not in _ALLOWED:
        raise NodeRefused(node.lineno, f"{type(node).__name__.lower()!r}", _LANGUAGE)
    if isinstance(node, nodes.Name) and node.name in _SPECIAL:
        raise NodeRefused(
            node.lineno,
            f"the name {node.name!r}",
            f'write record["{node.name}"] for a column of this name',
        )
    if isinstance(node, nodes.Filter) and (node.name not in FILTERS or node.node is None):
        raise NodeRefused(
            node.lineno, f"the filter {node.name!r}", f"filters are {', '.join(sorted(FILTERS))}"
        )
    if isinstance(node, nodes.Test) and node.name not in TESTS:
        raise NodeRefused(
            node.lineno, f"the test {node.name!r}", f"tests are {', '.join(sorted(TESTS))}"
        )
    if isinstance(node, nodes.For) and node.recursive:
        raise NodeRefused(node.lineno, "a recursive loop", "write one loop inside the other")


class _Counters(NodeTransformer):
    """Puts a counter into loops, and into whatever is shown, joined, compared or cut."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through(nodes.List(node.nodes, lineno=node.lineno), JOINED)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through(node.iter, STEPS)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        names = [_named(part) for part in node.nodes]
        self.generic_visit(node)
        node.nodes = [
            part
            if isinstance(part, nodes.TemplateData)
            else _through(part, SHOWN, nodes.Const(name))
            for part, name in zip(node.nodes, names, strict=True)
        ]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _through(node.expr, LOOKED)
        return node

    def visit_Operand(self, node: nodes.Operand) -> nodes.Node:
        self.generic_visit(node)
        node.expr = _through(node.expr, LOOKED)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if isinstance(node.arg, nodes.Slice):
            node.node = _through(node.node, LOOKED)
        return node


def _through(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _named(node: nodes.Node) -> str:
    """Return what an error calls a value that is shown: its column, as far as it is one."""
    match node:
        case nodes.Name():
            return str(node.name)
        case nodes.Getattr():
            return f"{_named(node.node)}.{node.attr}"
        case nodes.Getitem(arg=nodes.Const() as key):
            return f"{_named(node.node)}.{key.value}"
        case nodes.Filter(node=nodes.Expr() as inner):
            return _named(inner)
        case _:
            return "a value"


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox in which attributes are fields of objects.

    Sums are of numbers or of texts, and no larger than a request may be.
    """

    # so none is reckoned beforehand
    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if isinstance(obj, LoopContext) and attribute in _LOOP:
            return getattr(obj, attribute)
        return self.undefined(obj=obj, name=attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(obj, list | str) and type(argument) is int:
            return (
                obj[argument]
                if -len(obj) <= argument < len(obj)
                else self.undefined(obj=obj, name=str(argument))
            )
        return self.getattr(obj, argument if isinstance(argument, str) else str(argument))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        work = work_of(context)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            return work.text([left, right])
        if operator not in _OPERATORS or not (_is_small(left) and _is_small(right)):
            raise RenderFailed(
                f"{seen(left)} {operator} {seen(right)}: only numbers are reckoned with, and texts "
                "joined with ~"
            )
        return self.binop_table[operator](left, right)


def _is_small(value: Any) -> bool:
    """Return whether this is a number as JSON has them."""
    return type(value) in (int, float) and abs(value) < _MAX_NUMBER


@pass_context
def _steps(context: Context, value: Any) -> Iterator[Any]:
    """Yield what a loop goes over, each step counted."""
    if not isinstance(value, list | tuple | Mapping):
        if isinstance(value, Undefined):
            raise UndefinedError(value._undefined_message)
        raise RenderFailed(f"a loop goes over a list or an object, not {seen(value)}")
    work = work_of(context)
    for one in value:
        work.step()
        yield one


@pass_context
def _shown(context: Context, value: Any, name: str) -> str:
    """Return a value as text: text as it is, all else as JSON, as in simple prompts."""
    if value is None or isinstance(value, Undefined):
        raise MissingField(name, empty=value is None)
    text = as_text(value)
    work_of(context).spend(len(text))
    return text


@pass_context
def _joined(context: Context, values: list[Any]) -> str:
    for value in values:
        if value is None or isinstance(value, Undefined):
            raise RenderFailed(
                "a value on one side of ~ is absent or null; give it a text with |default"
            )
    return work_of(context).text([as_text(value) for value in values])


@pass_context
def _looked(context: Context, value: Any) -> Any:
    """Return a value that is about to be looked through (compared, or cut), and count it."""
    work_of(context).look(value)
    return value


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    made = _Environment(
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        # else constants were reckoned while the template is compiled, without any bound
        optimized=False,
        cache_size=0,
    )
    made.globals = {}
    made.policies = {**made.policies, "truncate.leeway": 0}  # truncate(200) means 200
    made.filters = {**FILTERS, STEPS: _steps, SHOWN: _shown, JOINED: _joined, LOOKED: _looked}
    made.tests = dict(TESTS)
    return made


class JinjaTemplate:
    """A compiled prompt. Raises TemplateError where ``text`` is not one that may run."""

    required: tuple[str, ...] = ()  # conditions decide which columns a row must have

    def __init__(self, text: str) -> None:
        names, self._template = _compiled(text)
        self.fields = tuple(sorted(names - {RECORD}))
        self.whole_row = RECORD in names

    def render(self, record: Mapping[str, Any], max_chars: int = DEFAULT_MAX_BODY_BYTES) -> str:
        """Return the text for one record. Raises MissingField, TextTooLong and RenderFailed."""
        work = Work(max_chars)
        # an empty cell is null here, too
        cells = {name: None if is_empty(value) else value for name, value in record.items()}
        context = self._template.new_context({RECORD: record, **cells, BUDGET: work}, shared=True)
        parts: list[str] = []
        try:
            for part in self._template.root_render_func(context):
                work.show(len(part))
                parts.append(part)
        except UndefinedError as error:
            raise _missing(str(error)) from None
        except (MissingField, TextTooLong, RenderFailed):
            raise
        except TypeError as error:
            raise _not_in_order(str(error)) from None
        except Exception as error:  # of filters and operators, which a template may give anything
            raise RenderFailed(f"{type(error).__name__}: {str(error)[:200]}") from None
        return "".join(parts)


@lru_cache(maxsize=32)
def _compiled(text: str) -> tuple[frozenset[str], Template]:
    if len(text) > MAX_TEMPLATE_CHARS:
        fix = (
            f"a Jinja prompt has at most {MAX_TEMPLATE_CHARS}; put what is the same for all into "
            "the system message"
        )
        raise TemplateError(f"{seen(text)} has {len(text)} characters", fix)
    environment = _environment()
    try:
        # before all else: looking for names already reckons constants
        tree = checked(environment.parse(text))
        names = frozenset(meta.find_undeclared_variables(tree))
        code = environment.compile(tree)
        return names, Template.from_code(environment, code, environment.globals)
    except TemplateSyntaxError as error:
        why = f"line {error.lineno}: {(error.message or str(error)).rstrip('.')}"
        raise TemplateError(why, "docs/prompts.md lists what a prompt may have") from None
    except NodeRefused as refused:
        raise TemplateError(
            f"line {refused.line}: {refused.what} is refused", refused.fix
        ) from None
    # the last is Python's parser, at its own depth
    except (RecursionError, SyntaxError, MemoryError):
        fix = "write it with fewer loops and parentheses"
        raise TemplateError(f"{seen(text)}: parts lie too deep inside one another", fix) from None


def _not_in_order(message: str) -> RenderFailed:
    """Return what to say about two values of which Python knows no order.

    Such are a text of CSV and a number.
    """
    found = _NO_ORDER.search(message)
    if found is None:
        return RenderFailed(f"TypeError: {message[:200]}")
    left, right = (_KINDS.get(found[side], found[side]) for side in ("left", "right"))
    return RenderFailed(
        f"{left} and {right} cannot be compared or sorted together; a column of CSV is text, and "
        "{{ column|float }} makes a number of it"
    )


def _missing(message: str) -> Exception:
    found = _MISSING.search(message)
    if found is None:
        return RenderFailed(message[:200])
    return MissingField(found["name"] or found["inner"] or "", empty=False)
