"""Text with columns: decoded, split at a separator, and read line by line, so that errors can name the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SEPARATORS = {"tab": "\t", "space": None}
"""Separators by name; None is any white space."""
SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", None: "white space"}
SAMPLE = 20
"""Number of lines that are examined to detect a wrong separator."""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table in Markdown."""
    first, *others = (f"| {' | '.join(cells)} |" for cells in (header, *rows))
    return "\n".join([first, f"|{'---|' * len(header)}", *others])


@dataclass(frozen=True)
class Row:
    """The cells of a line."""

    line: int
    cells: list[str]


def separator(sep: str) -> str | None:
    """Convert ``,``, ``;``, ``tab``, ``space`` or any single character to a separator; None is any white space."""
    if sep in SEPARATORS:
        return SEPARATORS[sep]
    if len(sep) != 1 or sep in '"\r\n':
        raise ValueError(f"expected --sep to be tab, space or a single character such as ';', got {sep!r}")
    return None if sep == " " else sep


def decode(data: bytes, name: str) -> str:
    """Decode UTF-8, or raise a ValueError that names the encoding problem and the line."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise ValueError(f"expected UTF-8 text in {name}, line 1 begins as UTF-16 does; save it as UTF-8")
    zero = data.find(b"\0")
    if zero >= 0:
        line = data.count(b"\n", 0, zero) + 1
        raise ValueError(f"expected an edge list as text in {name}, line {line} has a zero byte: it is not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"expected UTF-8 text in {name}, line {line} has the byte 0x{error.object[error.start]:02x}, "
            "as files in Latin-1 (ISO 8859-1, Windows-1252) have; save it as UTF-8"
        ) from None


def guess_separator(lines: Iterable[str]) -> str | None:
    """Guess the separator of text without a suffix: a character that occurs equally often in all lines, or white space."""
    sample = _sample(lines)
    for other in ("\t", ";", ","):
        if sample and len(counts := {line.count(other) for line in sample}) == 1 and 0 not in counts:
            return other
    return None


def find_separator(lines: Iterable[str], name: str, delimiter: str | None) -> str | None:
    """Return the suffix's separator, or another that all of the first lines have, if some of them lack the suffix's.

    Raise a ValueError if both are plausible, as for ``a;b;1,5`` in a .csv file.
    """
    sample = _sample(lines)
    own = {len(line.split()) - 1 if delimiter is None else line.count(delimiter) for line in sample}
    for other in (";", "\t", ","):
        counts = {line.count(other) for line in sample}
        if not sample or other == delimiter or 0 in counts or (len(counts) > 1 and own != {0}):
            continue
        if 0 in own and len(counts) == 1:  # a line without the suffix's separator
            return other
        if delimiter == "\t" and len(own) == 1 and own != {0}:
            continue
        if delimiter is None and other == "\t" and all(_cells(line, other) == line.split() for line in sample):
            continue
        first = next(iter(_content(lines, 1)))[0]
        raise ValueError(
            f"expected {SEPARATOR_NAMES[delimiter]} between columns, {name} seems to have {SEPARATOR_NAMES[other]} from "
            f"line {first} on; --sep {_flag(other)} takes those, --sep {_flag(delimiter)} insists"
        )
    return delimiter


def read_rows(lines: Iterable[str], name: str, delimiter: str | None) -> list[Row]:
    """Split lines into stripped cells; empty lines and lines that begin with # are skipped."""
    content = list(_content(lines))
    if delimiter is None:
        return [Row(i, line.split()) for i, line in content if line.strip()]
    reader = csv.reader((line for _, line in content), delimiter=delimiter, skipinitialspace=True, strict=True)
    rows, done = [], 0
    try:
        for cells in reader:
            if reader.line_num > done + 1:
                raise csv.Error("a quote is not closed")
            rows.append(Row(content[done][0], [cell.strip() for cell in cells]))
            done = reader.line_num
    except csv.Error as error:
        line = content[min(done, len(content) - 1)][0]
        raise ValueError(f"expected cells with closed quotes in line {line} of {name}: {error}") from None
    return rows


def is_number(cell: str) -> bool:
    """Tell whether a cell is a number; unlike in Python, underscores are not allowed."""
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _content(lines: Iterable[str], most: int | None = None) -> Iterable[tuple[int, str]]:
    """Yield numbered lines, without empty lines and comments."""
    found = 0
    for i, line in enumerate(lines, 1):
        if line.strip(" \r\n") and not line.lstrip().startswith("#"):
            yield i, line
            found += 1
            if found == most:
                return


def _sample(lines: Iterable[str]) -> list[str]:
    """Return the first lines, with quoted cells removed."""
    return [re.sub(r'"[^"]*"', "", line.rstrip("\r\n")) for _, line in _content(lines, SAMPLE)]


def _cells(line: str, delimiter: str) -> list[str]:
    return [cell.strip() for cell in line.split(delimiter)]


def _flag(delimiter: str | None) -> str:
    return {"\t": "tab", None: "space"}.get(delimiter) or f"'{delimiter}'"
