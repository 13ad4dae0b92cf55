"""The README's table of run parameters, from RunSpec itself.

python -m runs.parameter_table
"""

import json
from pathlib import Path
from typing import Final

from trainer.run_spec import RULES, RunSpec, bounds

BEGIN: Final = "<!-- run parameters: written by `python -m runs.parameter_table` -->"
END: Final = "<!-- end of run parameters -->"


def table() -> str:
    """Markdown between the two markers: a row a field, then the rules across fields."""
    lines = [BEGIN, "", "| parameter | default | what it is | what it may be |", "|---|---|---|---|"]
    for name, field in RunSpec.model_fields.items():
        default = f"`{json.dumps(field.default) if not isinstance(field.default, str) else field.default}`"
        default = default if field.default != "" else "empty"
        lines.append(f"| `{name}` | {default} | {field.description} | {_escaped(bounds(name))} |")
    lines += ["", "And across parameters:", ""]
    for rule in RULES:
        wanted = f"{rule.relation} `{rule.right}`" if rule.right else rule.relation
        condition = f", with `{rule.when}`" if rule.when else ""
        lines.append(f"- `{rule.left}` must be {wanted}{condition}: {rule.why}.")
    return "\n".join([*lines, "", END])


def _escaped(text: str) -> str:
    return f"{text.replace(' matching ', ', matching `')}`" if " matching " in text else text


def main(readme: Path = Path("README.md")) -> None:
    """Write the table into the README, between its markers."""
    text = readme.read_text()
    before, after = text[: text.index(BEGIN)], text[text.index(END) + len(END) :]
    readme.write_text(before + table() + after)


if __name__ == "__main__":
    main()
