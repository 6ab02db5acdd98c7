"""Run-time types of the tests: shapes by jaxtyping where a function names one, and beartype alone where it does not.

jaxtyping checks the arguments of every call twice and notes all of them for error messages, whether they have shapes or not.
"""

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

import jaxtyping

with_shapes = jaxtyping.jaxtyped
"""jaxtyping's own decorator."""
SHAPED = re.compile(r"jaxtyping|ParamSpec")
"""What only jaxtyping deals with: its own types, and arguments that another function declares."""


def has_no_shapes(function: FunctionType) -> bool:
    """Whether all annotations of a function are known when it is defined, and none of them is made with jaxtyping."""
    try:
        known = [eval(a, function.__globals__) if isinstance(a, str) else a for a in function.__annotations__.values()]
    except (NameError, AttributeError, TypeError):  # a name of a later line, or imported for the type checker only
        return False
    return not any(SHAPED.search(f"{type(annotation)} {annotation!r}") for annotation in known)


def checked(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the decorator that jaxtyping's import hook puts on every function and class."""

    def decorate(found: Any) -> Any:
        # beartype holds on to the function it has decorated last, and so to what a closure holds on to
        plain = isinstance(found, FunctionType) and found.__closure__ is None and has_no_shapes(found)
        return typechecker(found) if plain else with_shapes(found, typechecker=typechecker)

    return decorate


def install() -> None:
    """Let the import hook use :func:`checked`."""
    jaxtyping.jaxtyped = checked
