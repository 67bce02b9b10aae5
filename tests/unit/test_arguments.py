"""An argument that a function looks at twice must not be an Iterable: a generator is empty then."""

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "dbt"
# What is in a loop is looked at again and again.
LOOP = 2


def uses(name: str, node: ast.AST) -> int:
    """Return how often a name is read, at most, when a node is run."""
    match node:
        case ast.Name():
            return int(node.id == name and isinstance(node.ctx, ast.Load))
        case ast.Call(func=ast.Name(id="isinstance")):
            return 0
        case ast.If():
            return uses(name, node.test) + max(rest(name, node.body), rest(name, node.orelse))
        case ast.IfExp():
            return uses(name, node.test) + max(uses(name, node.body), uses(name, node.orelse))
        case ast.For():
            return uses(name, node.iter) + LOOP * rest(name, node.body)
        case ast.While():
            return LOOP * (uses(name, node.test) + rest(name, node.body))
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            first, *others = node.generators
            again = [n for n in ast.iter_child_nodes(node) if n is not first] + first.ifs
            return uses(name, first.iter) + LOOP * rest(name, again)
        case ast.FunctionDef() | ast.Lambda():
            return LOOP * rest(name, ast.iter_child_nodes(node))
    return rest(name, ast.iter_child_nodes(node))


def rest(name: str, nodes: Iterable[ast.AST]) -> int:
    """Return how often nodes that follow each other read a name; a return ends them."""
    total = 0
    for node in nodes:
        total += uses(name, node)
        if isinstance(node, ast.Return | ast.Raise):
            break
    return total


def read_twice(source: str) -> list[str]:
    """Return the functions' arguments that are Iterables and looked at twice, as they came."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    return [
        f"{function.name}({argument.arg})"
        for function in functions
        for argument in (*function.args.args, *function.args.kwonlyargs)
        if is_iterable(argument) and not is_replaced(function, argument.arg)
        if rest(argument.arg, function.body) > 1
    ]


def is_iterable(argument: ast.arg) -> bool:
    """Return whether an argument may be a generator, and its name does not say so."""
    kind = argument.annotation
    kind = kind.value if isinstance(kind, ast.Subscript) else kind
    return isinstance(kind, ast.Name) and kind.id == "Iterable"


def is_replaced(function: ast.FunctionDef, name: str) -> bool:
    """Return whether a function keeps an argument in a collection of the same name."""
    names = (n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name)
    return any(isinstance(n.ctx, ast.Store) for n in names)


def test_no_function_looks_twice_at_what_may_be_a_generator() -> None:
    """`Collection` says that more than one look is needed, and mypy finds other callers."""
    files: Sequence[Path] = sorted(PACKAGE.rglob("*.py"))
    found = {str(path.relative_to(PACKAGE)): read_twice(path.read_text()) for path in files}
    assert {path: arguments for path, arguments in found.items() if arguments} == {}


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("return sum(a)", False),
        ("return sum(a), max(a)", True),
        ("if b:\n  return sum(a)\n else:\n  return max(a)", False),
        ("if b:\n  b = sum(a)\n return max(a)", True),
        ("a = list(a)\n return sum(a), max(a)", False),
        ("return [x for x in b if x in a]", True),
        ("return [x for x in a]", False),
        ("return [(x, y) for x in b for y in a]", True),
        ("for x in b:\n  print(sum(a))", True),
        ("def f():\n  return sum(a)\n return map(f, b)", True),
        ("return (sum(a) if b else max(a))", False),
        ("return sum(a)\n return sum(a)", False),
    ],
)
def test_second_looks_are_found(body: str, is_found: bool) -> None:
    """In branches that exclude each other, one look each is allowed; in loops, none."""
    source = f"def g(a: Iterable[int], b: int):\n {body}"
    assert read_twice(source) == (["g(a)"] if is_found else [])
