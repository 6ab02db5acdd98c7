"""The picture of the house in docs/architecture.md is the house."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def pictured() -> set[str]:
    """Modules of the picture, as paths below ``src``."""
    text = (ROOT / "docs/architecture.md").read_text()
    lines = text.split("```text\n", 1)[1].split("```", 1)[0].splitlines()
    found, folders = set(), []
    for line in lines[lines.index("src/ohmformer/") + 1 :]:
        match = re.match(r"( *)([\w/]+\.py|\w+/)(\s|$)", line)
        if match and not match[1] and match[2].startswith("src/"):
            found.add(match[2].removeprefix("src/"))
        elif match and match[1]:
            folders = folders[: len(match[1]) // 2 - 1]
            if match[2].endswith("/"):
                folders.append(match[2].removesuffix("/"))
            else:
                found.add("/".join(["ohmformer", *folders, match[2]]))
    return found


def test_every_module_stands_in_the_picture_and_every_module_of_the_picture_exists():
    there = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    there = {path for path in there if not path.endswith(("__init__.py", "__main__.py"))}
    assert pictured() == there


def test_the_top_level_is_small_and_no_module_is_long():
    top = {path.name for path in (ROOT / "src/ohmformer").iterdir() if not path.name.startswith("__")} - {"py.typed"}
    assert len(top) <= 12
    long = {path: n for path in (ROOT / "src").rglob("*.py") if (n := len(path.read_text().splitlines())) > 400}
    assert not long


def test_every_container_of_the_table_exists():
    from importlib import import_module

    text = (
        (ROOT / "docs/architecture.md").read_text().split("## Containers of graphs side by side", 1)[1].split("\n## ", 1)[0]
    )
    names = re.findall(r"^\| `([\w.]+)` \|", text, re.M)
    assert len(names) == 12
    for name in names:
        module, _, container = name.rpartition(".")
        assert hasattr(import_module(f"ohmformer.{module}"), container)


def imports() -> dict[str, set[str]]:
    """The modules that every module imports, at the top or later, but not for types alone."""
    source = ROOT / "src"
    paths = {path: ".".join(path.relative_to(source).with_suffix("").parts) for path in source.rglob("*.py")}
    names = {name.removesuffix(".__init__"): path for path, name in paths.items()}
    found = {}
    for name, path in names.items():
        nodes: list[ast.AST] = [ast.parse(path.read_text())]
        found[name] = set()
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.ImportFrom) and node.module:
                found[name] |= {full if (full := f"{node.module}.{x.name}") in names else node.module for x in node.names}
            if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
                nodes += ast.iter_child_nodes(node)
        found[name] &= names.keys() - {name}
    return found


def test_no_import_closes_a_circle_not_even_a_late_one():
    left = imports()
    while free := {name for name, needed in left.items() if not needed & left.keys()}:
        left = {name: needed for name, needed in left.items() if name not in free}
    assert not left
