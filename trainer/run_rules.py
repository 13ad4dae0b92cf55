"""Rules across run parameters, as data.

A rule compares two sides; a side is a field name, a number, or a product of two. That is all
the rules need, and little enough that the same tuple is evaluated here and rendered to JSONata
for the state machine, so the two checks can't drift apart.
"""

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Relation = Literal["a multiple of", "below", "at most", "empty", "exactly"]

_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {  # of products of numbers
    "a multiple of": lambda left, right: left % right == 0,
    "below": operator.lt,
    "at most": operator.le,
}


@dataclass(frozen=True)
class Rule:
    """`left` must be `relation` `right`; asked only where the field `when` is true, or above 0.

    A `when` like "field=text" asks where that field is that text. "empty" is of a text, and has no right
    side; "exactly" is of a text, and the right side is the text itself.
    """

    left: str
    relation: Relation
    right: str
    why: str
    when: str | None = None

    @property
    def subject(self) -> str:
        """The field a broken rule is reported under: the first of the left side."""
        return self.terms(self.left)[0]

    @property
    def fields(self) -> set[str]:
        """Every field the rule reads. It is asked only when all of them are valid by themselves."""
        right = [] if self.relation == "exactly" else self.terms(self.right)
        sides = self.terms(self.left) + right + ([self.condition[0]] if self.condition else [])
        return {term for term in sides if term and not term.isdigit()}

    @property
    def condition(self) -> tuple[str, str | None] | None:
        """The field of `when`, and the text it must be; None for that text where the field is a boolean."""
        if self.when is None:
            return None
        name, equals, text = self.when.partition("=")
        return name, text if equals else None

    @staticmethod
    def terms(side: str) -> list[str]:
        """The factors of a side: field names and whole numbers."""
        return re.split(r"\s*\*\s*", side)

    def holds(self, values: Mapping[str, Any]) -> bool:
        if self.condition is not None:
            name, text = self.condition
            if (values[name] != text) if text is not None else not values[name]:
                return True
        if self.relation in ("empty", "exactly"):
            return bool(values[self.left] == self.right)
        return _HOLDS[self.relation](_product(self.left, values), _product(self.right, values))

    def text(self, values: Mapping[str, Any]) -> str:
        """The rule in words, with the values that break it."""
        condition = f" with {self.when}" if self.when else ""
        asked = {self.condition[0]} if self.condition else set()
        shown = ", ".join(f"{name}={values[name]}" for name in sorted(self.fields - asked))
        left = "" if self.left == self.subject else f"{self.left} "
        wanted = " ".join(filter(None, (self.relation, self.right)))
        return f"{left}must be {wanted}{condition} ({shown}): {self.why}"


def _product(side: str, values: Mapping[str, Any]) -> Any:
    result = 1
    for term in Rule.terms(side):
        result = result * (int(term) if term.isdigit() else values[term])
    return result
