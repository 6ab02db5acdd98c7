"""Power grids from MATPOWER's case files (.m): tables of numbers, and the few sums that such files do with them.

No code is executed: a statement that changes a table must have a form like ``mpc.bus(:, PD) = mpc.bus(:, PD) * pf`` with
arithmetic on numbers; any other is rejected with its line.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Float

COLUMNS = {
    "bus": ["BUS_I", "BUS_TYPE", "PD", "QD", "GS", "BS", "BUS_AREA", "VM", "VA", "BASE_KV"],
    "gen": ["GEN_BUS", "PG", "QG", "QMAX", "QMIN", "VG", "MBASE", "GEN_STATUS"],
    "branch": ["F_BUS", "T_BUS", "BR_R", "BR_X", "BR_B", "RATE_A", "RATE_B", "RATE_C", "TAP", "SHIFT", "BR_STATUS"],
    "dcline": ["F_BUS", "T_BUS", "BR_STATUS", "PF", "PT", *["-"] * 10, "LOSS0", "LOSS1"],
}
"""MATPOWER's column names, up to the last column that is read."""
REQUIRED = ("bus", "branch")
USED = {name for names in COLUMNS.values() for name in names} - {"QMAX", "QMIN"}
ISOLATED, REFERENCE = 4, 3
"""Bus types: out of service, and reference (angle given, generators balance the power)."""

_ASSIGNS = re.compile(r"\s*mpc\.(\w+)\s*(\([^=]*\))?\s*=(?!=)\s*(.*)")
_SCALAR = re.compile(r"\s*([A-Za-z]\w*)\s*=(?!=)\s*([^;]*)")
_ENTRY = re.compile(r"mpc\.(\w+)\(\s*(\d+)\s*,\s*(\w+)\s*\)")
_SCALED = re.compile(r"mpc\.(\w+)\(:,\s*(.*?)\)\s*([*/].*?);?\s*$")


@dataclass(frozen=True, eq=False)
class Case:
    """A power grid as read from its file: all rows, in service or not, with MATPOWER's columns and units."""

    name: str
    base_mva: float
    """The base power in megawatts."""
    bus: Float[np.ndarray, "buses bus_columns"]
    gen: Float[np.ndarray, "generators gen_columns"]
    branch: Float[np.ndarray, "branches branch_columns"]
    dcline: Float[np.ndarray, "lines line_columns"]
    lines: dict[str, list[int]] = field(default_factory=dict, repr=False)
    """For each table, the line of the file that holds each row."""

    def place(self, table: str, row: int) -> str:
        """Return the name of a row for messages, counted from 1."""
        line = f", line {self.lines[table][row]}" if table in self.lines else ""
        return f"row {row + 1} of mpc.{table}{line}"

    def column(self, table: str, name: str) -> Float[np.ndarray, " rows"]:
        """Return a column of a table by its MATPOWER name."""
        return getattr(self, table)[:, COLUMNS[table].index(name)]


def read_case(path: Path) -> Case:
    """Read a case file of version 2."""
    if not path.is_file():
        raise ValueError(f"expected a MATPOWER case file, there is no file {path}")
    return parse_case(path.read_bytes().decode("utf-8", "replace"), path.name)


def parse_case(text: str, name: str) -> Case:
    """Parse the text of a case file; ``name`` is its name in errors."""
    tables: dict[str, np.ndarray] = {}
    places: dict[str, list[int]] = {}
    numbers: dict[str, float] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        statement = line.partition("%")[0]
        assigned = _ASSIGNS.match(statement)
        where = f"line {number} of {name}"
        if not assigned:
            if (scalar := _SCALAR.match(statement)) and not statement.lstrip().startswith("function"):
                try:
                    numbers[scalar[1]] = _arithmetic(scalar[2], numbers, tables)
                except ValueError:
                    numbers.pop(scalar[1], None)  # forget it; a statement that needs it will fail
            continue
        target, part, value = assigned.groups()
        if part is not None:
            _change(tables, numbers, target, part, value, where)
        elif value.startswith("{"):
            _skip_cells(value, lines)
        elif value.startswith("["):
            found = _table(value[1:], number, lines, name, target in COLUMNS)
            if found is not None:
                tables[target], places[target] = found
        elif target == "baseMVA":
            numbers["mpc.baseMVA"] = _number(value.rstrip("; \t"), where)
    return _checked(name, tables, places, numbers, len(text.splitlines()))


def _checked(
    name: str, tables: dict[str, np.ndarray], places: dict[str, list[int]], numbers: dict[str, float], last: int
) -> Case:
    """Build the case after checking that its tables are complete and its buses and branches consistent."""
    for table, columns in COLUMNS.items():
        found = tables.get(table)
        if found is None and table in REQUIRED:
            raise ValueError(f"expected a table mpc.{table} in {name}, it has none up to line {last}, its last")
        if found is None or not len(found):
            tables[table] = np.zeros((0, len(columns)))
        elif found.shape[1] < len(columns):
            where = f"line {places[table][0]} of {name}"
            raise ValueError(f"expected at least {len(columns)} columns of mpc.{table} in {where}, got {found.shape[1]}")
    base = numbers.get("mpc.baseMVA", 0.0)
    if not (base > 0 and math.isfinite(base)):
        raise ValueError(f"expected a positive mpc.baseMVA in {name}, got {base:g} up to line {last}, its last")
    case = Case(name, base, **{table: tables[table] for table in COLUMNS}, lines=places)
    buses = case.column("bus", "BUS_I")
    if len(np.unique(buses)) != len(buses):
        again = np.setdiff1d(np.arange(len(buses)), np.unique(buses, return_index=True)[1])[0]
        raise ValueError(
            f"expected every bus of {name} once, bus {buses[again]:g} is there again in {case.place('bus', int(again))}"
        )
    for table, names in (("gen", ["GEN_BUS"]), ("branch", ["F_BUS", "T_BUS"]), ("dcline", ["F_BUS", "T_BUS"])):
        for column in names:
            unknown = np.nonzero(~np.isin(case.column(table, column), buses))[0]
            if len(unknown):
                row = unknown[0]
                bus = case.column(table, column)[row]
                raise ValueError(f"expected buses of mpc.bus in {case.place(table, int(row))} of {name}, got {bus:g}")
    return case


def _table(
    first: str, number: int, lines: Iterator[tuple[int, str]], name: str, wanted: bool
) -> tuple[np.ndarray, list[int]] | None:
    """Read the rows up to the closing bracket, separated by semicolons or line ends, and their line numbers."""
    rows: list[str] = []
    places: list[int] = []
    line, begin = first, number
    while True:
        body, closed, _ = line.partition("%")[0].partition("]")
        if wanted:
            for row in body.split(";"):
                if row and not row.isspace():
                    rows.append(row)
                    places.append(number)
        if closed:
            break
        number, line = next(lines, (0, ""))
        if not number:
            raise ValueError(f"expected a ] after the table that begins in line {begin} of {name}, the file ends")
    if not wanted:
        return None
    cells = [row.replace(",", " ").split() for row in rows]
    width = len(cells[0]) if cells else 0
    for place, row in zip(places, cells, strict=True):
        if len(row) != width:
            raise ValueError(f"expected {width} numbers in line {place} of {name}, as above, got {len(row)}")
    try:
        return np.array(cells, dtype=np.float64).reshape(len(cells), width), places
    except ValueError:
        made = [[_number(cell, f"line {place} of {name}") for cell in row] for place, row in zip(places, cells, strict=True)]
        return np.array(made), places


def _skip_cells(value: str, lines: Iterator[tuple[int, str]]) -> None:
    """Skip to the end of a cell array of strings, such as bus names."""
    while not re.search(r"\}\s*;?\s*(%.*)?$", value):
        _, value = next(lines, (0, "}"))


def _change(
    tables: dict[str, np.ndarray], numbers: dict[str, float], target: str, part: str, value: str, where: str
) -> None:
    """Apply a statement that scales columns of a table; reject all others unless they only concern unused columns."""
    columns = re.findall(r"\w+", part.partition(",")[2])
    if target not in COLUMNS or not USED.intersection(columns):
        return
    source = _SCALED.match(value)
    try:
        if not re.match(r"\(\s*:\s*,", part) or not source or source[1] != target:
            raise ValueError
        read = re.findall(r"\w+", source[2])
        factor = _arithmetic(f"1 {source[3]}", numbers, tables)
        to, source_columns = ([COLUMNS[target].index(c) for c in names] for names in (columns, read))
        tables[target][:, to] = tables[target][:, source_columns] * factor
    except (ValueError, LookupError):
        raise ValueError(
            f"expected columns of mpc.{target} multiplied or divided by a number in {where}, got a statement that is not: "
            "save the case with MATPOWER's savecase, which writes plain numbers"
        ) from None


def _number(cell: str, where: str) -> float:
    try:
        return _arithmetic(cell, {}, {})
    except ValueError:
        raise ValueError(f"expected a number in {where}, got {cell!r}") from None


_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_FUNCTIONS = {"sqrt": math.sqrt, "sin": math.sin, "cos": math.cos, "acos": math.acos}
_NAMES = {"inf": math.inf, "nan": math.nan, "pi": math.pi}


def _arithmetic(text: str, numbers: dict[str, float], tables: dict[str, np.ndarray]) -> float:
    """Evaluate arithmetic on numbers, named numbers and single table entries."""

    def value(node: ast.expr) -> float:
        match node:
            case ast.Constant(value=int() | float() as constant):
                return float(constant)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -value(inner)
            case ast.UnaryOp(op=ast.UAdd(), operand=inner):
                return value(inner)
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return math.pow(value(left), value(right))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
                return _OPERATIONS[type(op)](value(left), value(right))
            case ast.Call(func=ast.Name(id=name), args=[inner], keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](value(inner))
            case ast.Name(id=name) if name in numbers:
                return numbers[name]
            case ast.Name(id=name) if name.lower() in _NAMES:
                return _NAMES[name.lower()]
            case ast.Attribute(value=ast.Name(id="mpc"), attr="baseMVA") if "mpc.baseMVA" in numbers:
                return numbers["mpc.baseMVA"]
        raise ValueError("not arithmetic")

    def entry(found: re.Match[str]) -> str:
        table, row, column = found.groups()
        return repr(float(tables[table][int(row) - 1, COLUMNS[table].index(column)]))

    try:
        return value(ast.parse(_ENTRY.sub(entry, text).replace("^", "**").strip(), mode="eval").body)
    except (SyntaxError, LookupError, ArithmeticError, RecursionError, MemoryError):
        raise ValueError("not arithmetic") from None
