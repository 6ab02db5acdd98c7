"""How old the tables of ``results/`` are: which commits have changed the code that a table describes since it was measured.

Commits that change docstrings and comments alone are not counted.

``python benchmarks/ages.py`` lists them; ``--mark`` lets every table that is older than its code say so in its first line.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOLVING = ("solve", "native", "graph")
CODE = {
    r"learn.*|fig\d.*": ("experiments/learn", "transformer", "constructions"),
    r"table2.*|zinc12k.*|csl|molecules.*": ("experiments/molecules", "encoding"),
    r"encoding.*|pretraining": ("encoding", "native"),
    r"explorer": ("apps/explorer",),
    r"networkx_backend": ("integrations", *SOLVING),
    r"forward": ("transformer", "constructions"),
    r"distributed.*": ("solve/distributed", "native"),
    r"dream.*": ("experiments/dream", "constructions"),
    r".*": SOLVING,
}
"""By the name of a table, the folders of ``src/ohmformer`` whose code it describes; the first that fits counts."""
OLDER = "Measured on an earlier commit"
"""How the first line of a table begins that is older than its code."""
COMMAND = re.compile(r"`((?:python benchmarks/|ohmformer )[^`]*)`")
COMMIT = re.compile(r"\bcommit ([0-9a-f]{7,40})\b")
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b")


def missing(text: str) -> list[str]:
    """What a table does not say of command, commit and date, above its first row."""
    head = text.partition("\n|")[0]
    asked = {"command": COMMAND, "commit": COMMIT, "date": DATE}
    return [name for name, pattern in asked.items() if not pattern.search(head)]


def changes(path: Path, root: Path = ROOT) -> list[str]:
    """The commits of ``root`` that have changed the code of a table since the last commit named above its first row."""
    named = COMMIT.findall(path.read_text(encoding="utf-8").partition("\n|")[0])
    if not named:
        raise ValueError(f"expected the commit that {path.name} was measured at above its first row, got none")
    folders = next(found for pattern, found in CODE.items() if re.fullmatch(pattern, path.stem))
    paths = [f"src/ohmformer/{folder}" for folder in folders]
    try:
        commits = _git(root, "log", "--format=%h", f"{named[-1]}..HEAD", "--", *paths).split()
    except subprocess.CalledProcessError as error:
        message = f"expected a checkout with its whole history, got one without commit {named[-1]} of {path.name}"
        raise ValueError(message) from error
    return [commit for commit in commits if _changes_code(root, commit, tuple(paths))]


@cache
def _changes_code(root: Path, commit: str, paths: tuple[str, ...]) -> bool:
    """Tell whether a commit changes more than docstrings and comments of files in some folders."""
    listed = _git(root, "show", "--format=", "--name-status", "--no-renames", commit, "--", *paths).splitlines()
    for status, name in (line.split("\t") for line in listed):
        if status != "M" or not name.endswith((".py", ".c", ".h")):
            return True
        before, after = (code_of(name, _git(root, "show", f"{at}:{name}")) for at in (f"{commit}^", commit))
        if before != after:
            return True
    return False


def code_of(name: str, text: str) -> str:
    """Return a source in Python or C without its docstrings and comments, in a form that can be compared."""
    if not name.endswith(".py"):
        return re.sub(r"/\*.*?\*/|//[^\n]*|\s+", " ", text, flags=re.DOTALL)
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            words = [x for x in body if isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant)]
            node.body = [x for x in body if x not in words]  # pyright: ignore[reportAttributeAccessIssue]
    return ast.dump(tree)


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


def mark(path: Path, since: list[str]) -> bool:
    """Let a table say in its first line that it is older than its code, unless it does; whether it was changed."""
    title, _, rest = path.read_text(encoding="utf-8").partition("\n")
    if not since or rest.lstrip().startswith(OLDER):
        return False
    count = "one commit has" if len(since) == 1 else f"{len(since)} commits have"
    path.write_text(f"{title}\n\n{OLDER}: {count} changed the code it describes since, the last {since[0]}.\n{rest}")
    return True


def main() -> None:
    """List the tables, and mark them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mark", action="store_true", help="write into the tables what is listed")
    marking = parser.parse_args().mark
    for path in sorted((ROOT / "results").glob("*.md")):
        try:
            since = changes(path)
        except ValueError as error:
            print(error)
            continue
        marked = " (marked)" if marking and mark(path, since) else ""
        print(f"{path.name:30} {len(since):4d} commits since{marked}")


if __name__ == "__main__":
    main()
