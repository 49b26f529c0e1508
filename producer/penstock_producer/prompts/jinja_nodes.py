"""Which parts of Jinja a prompt may use, and the counters that it gets before it is compiled.

A list of what may be there, not of what may not: whatever a later Jinja adds is refused until it is
added here.
"""

from __future__ import annotations

from typing import Final

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from penstock_producer.prompts.jinja_filters import FILTERS, TESTS

__all__ = ["BUDGET", "JOINED", "LOOKED", "SHOWN", "STEPS", "NodeRefused", "checked"]

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
