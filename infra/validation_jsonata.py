"""RunSpec's checks as a JSONata expression, for the state machine's first states.

Generated from the same fields (pydantic's JSON schema) and the same `RULES`, so the two can't
drift: a property test holds both verdicts and the reported names against each other.

What the expression takes care of:
- Whatever JSON comes in is answered. Nothing is compared before its type is known, and `? :` is
  used where `and` would do, since only `? :` is sure not to evaluate its other side.
- `a ? b` without an else has no value, and an array leaves out elements that have none.
- A sequence of one element collapses into the element, so lists are wrapped in `[ ]`.
- `$` matches before a trailing newline in some engines, so a newline is refused by itself.
- A number too big for a double (1e400) is infinite: a function that returns it, $lookup too, throws.
- JSONata compares null and a missing value differently: a field counts as given when its name is
  among the input's keys, which `$merge` over the defaults expresses.
"""

import json
from typing import Any, Final

from trainer.run_rules import Rule
from trainer.run_spec import COMMENT, RULES, RunSpec, bounds

# Above this many names the input isn't looked at further: 256 KiB have room for 37,000, and an
# expression that takes longer than a second fails.
MOST_NAMES: Final = 200
# No bound of any field is beyond this. Whole numbers up to it are exact as doubles; an emulator
# that reads JSON integers of any length fails to compare longer ones with a fraction.
MOST_NUMBER: Final = 2**53
# Characters shown of a value, or of an unknown name.
SHOWN_CHARACTERS: Final = 60

_HELPERS: Final = """
  $sane := function($value) { $value <= %(most)d ? $value >= -%(most)d : false };
  $shown := function($value) {(
    $kind := $type($value);
    $kind = "string" ? '"' & $substring($value, 0, %(shown)d) & '"' :
    $kind = "boolean" ? $string($value) :
    $kind = "null" ? "null" :
    $kind = "array" ? "an array" :
    $kind = "object" ? "an object" :
    $sane($value) ? $string($value) : "a number beyond %(most)d"
  )};
  $number := function($in_bounds) { function($value) {
    $type($value) = "number" ? ($sane($value) ? $in_bounds($value) : false) : false
  }};
  $whole := function($in_bounds) { function($value) {
    $number($in_bounds)($value) ? $floor($value) = $value : false
  }};
  $text := function($least, $most, $matches) { function($value) {
    $type($value) != "string" ? false :
    $length($value) < $least ? false :
    $length($value) > $most ? false :
    $contains($value, "\\n") ? false : $matches($value)
  }};
  $pairs := function($most, $good_name, $good_value) { function($value) {
    $type($value) != "object" ? false :
    $count($keys($value)) > $most ? false :
    $count([$each($value, function($text_, $name_) {
      $good_name($name_) ? $good_value($text_) : false
    })][$ = false]) = 0
  }};
  $boolean := function($value) { $type($value) = "boolean" };
  $check := function($name, $value, $good, $wanted) {(
    $not($good($value)) ? {"name": $name, "text": "must be " & $wanted & ", not " & $shown($value)}
  )};
""" % {"shown": SHOWN_CHARACTERS, "most": MOST_NUMBER}  # noqa: UP031  JSONata is full of braces and dollars


def defaults() -> dict[str, Any]:
    """Every run parameter's default, as JSON."""
    return RunSpec.model_validate({}).model_dump(mode="json")


def problems_expression() -> str:
    """JSONata for an array of {"name", "text"}: each parameter that can't be used, and why.

    Reads `$states.input` and the variable `$defaults`. Empty if the input is a valid set of run
    parameters.
    """
    schema = RunSpec.model_json_schema()["properties"]
    checks = ",\n".join(f"    {_check(name, field)}" for name, field in schema.items())
    rules = ",\n".join(f"    {_rule(rule)}" for rule in RULES)
    known = json.dumps([*schema, COMMENT])
    return f"""(
  $names := $type($states.input) = "object" ? [$keys($states.input)];
  $exists($names) = false ? [{{
    "name": "input",
    "text": "must be a JSON object of run parameters, not " & {_kind("$states.input")}
  }}] :
  $count($names) > {MOST_NAMES} ? [{{
    "name": "input",
    "text": "has " & $string($count($names)) & " names; a run has {len(schema)} parameters"
  }}] : (
  $values := $merge([$defaults, $states.input]);
{_HELPERS}
  $bad_fields := [
{checks}
  ];
  $usable := function($names) {{ $count($bad_fields[name in $names]) = 0 }};
  $broken_rules := [
{rules}
  ];
  $known := {known};
  $unknown := [$names[$not($ in $known)]];
  [
    $bad_fields,
    $broken_rules,
    $unknown.{{"name": $substring($, 0, {SHOWN_CHARACTERS}), "text": "no such run parameter"}}
  ]
  )
)"""


def resolved_expression() -> str:
    """JSONata for the parameters of a valid input, defaults filled in, every field present.

    Whole numbers come out as such: 4.0 is a legal way to write 4, but no legal InstanceCount.
    """
    schema = RunSpec.model_json_schema()["properties"]
    members = ",\n".join(
        f"    {json.dumps(name)}: "
        + (f"$floor($values.{name})" if field["type"] == "integer" else f"$values.{name}")
        for name, field in schema.items()
    )
    return f"""(
  $values := $merge([$defaults, $states.input]);
  {{
{members}
  }}
)"""


def _check(name: str, field: dict[str, Any]) -> str:
    return f"$check({json.dumps(name)}, $values.{name}, {_predicate(field)}, {json.dumps(bounds(name))})"


def _predicate(field: dict[str, Any]) -> str:
    """The JSONata function that says whether a value suits one field."""
    match field["type"]:
        case "boolean":
            return "$boolean"
        case "object":
            refused = f"$not($contains($uppercase($value), /{_slashed(field['refused'])}/))"
            return (
                f"$pairs({field['most']}, "
                f"{_text(1, field['name_characters'], field['name_pattern'], also=refused)}, "
                f"{_text(0, field['value_characters'], field['value_pattern'])})"
            )
        case "string":
            return _text(field.get("minLength", 0), field["maxLength"], field.get("pattern"))
        case "integer" | "number":
            kind = "$whole" if field["type"] == "integer" else "$number"
            return f"{kind}(function($value) {{ {_in_bounds(field)} }})"
    raise TypeError(f"no JSONata check for a run parameter of type {field['type']}")


def _text(least: int, most: int, pattern: str | None, also: str = "true") -> str:
    matches = f"$contains($value, /{_slashed(pattern)}/) ? {also} : false" if pattern else also
    return f"$text({least}, {most}, function($value) {{ {matches} }})"


def _slashed(pattern: str) -> str:
    """JSONata writes a regular expression between slashes, as JavaScript does."""
    return pattern.replace("/", chr(92) + "/")


def _in_bounds(field: dict[str, Any]) -> str:
    comparisons = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    terms = [f"$value {sign} {json.dumps(field[key])}" for key, sign in comparisons.items() if key in field]
    return _all(terms)


def _rule(rule: Rule) -> str:
    """A broken rule as a {"name", "text"}; no value where it holds or can't be asked."""
    is_text = rule.relation in ("empty", "exactly")
    left, right = _product(rule.left), json.dumps(rule.right) if is_text else _product(rule.right)
    holds = {
        "empty": f"{left} = {right}",
        "exactly": f"{left} = {right}",
        "a multiple of": f"{left} % {right} = 0",
        "below": f"{left} < {right}",
        "at most": f"{left} <= {right}",
    }[rule.relation]
    if rule.condition:
        name, text = rule.condition
        asked = f"$values.{name}" if text is None else f"$values.{name} = {json.dumps(text)}"
        holds = f"{asked} ? {holds} : true"
    needs = json.dumps(sorted(rule.fields))
    found = f'{{"name": {json.dumps(rule.subject)}, "text": {_rule_text(rule)}}}'
    return f"$usable({needs}) ? ($not({holds}) ? {found})"


def _rule_text(rule: Rule) -> str:
    """The rule's own words, with `$string(...)` where it shows a value."""
    mark = "\x00"
    words = rule.text({name: f"{mark}{name}{mark}" for name in rule.fields}).split(mark)
    parts = [
        f"$string($values.{part})" if index % 2 else json.dumps(part) for index, part in enumerate(words)
    ]
    return " & ".join(parts)


def _product(side: str) -> str:
    return " * ".join(term if term.isdigit() else f"$values.{term}" for term in Rule.terms(side))


def _all(terms: list[str]) -> str:
    """Conjunction that stops at the first false term."""
    *first, last = terms
    return "".join(f"{term} ? (" for term in first) + last + ") : false" * len(first)


def _kind(expression: str) -> str:
    """Words for the JSON type of what should have been an object."""
    words = {"array": "an array", "string": "a string", "number": "a number", "boolean": "a boolean"}
    found = f"$lookup({json.dumps(words)}, $type({expression}))"
    return f'($exists({found}) ? {found} : "null")'
