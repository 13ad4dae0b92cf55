"""The README's table of run parameters, from RunSpec itself.

python -m runs.parameter_table
"""

from pathlib import Path
from typing import Final

from trainer.run_spec import RULES, RunSpec, bounds

BEGIN: Final = "<!-- run parameters: written by `python -m runs.parameter_table` -->"
END: Final = "<!-- end of run parameters -->"


def table() -> str:
    """Markdown between the two markers: a row a field, then the rules across fields."""
    lines = [BEGIN, "", "| parameter | default | what it is | what it may be |", "|---|---|---|---|"]
    for name, field in RunSpec.model_fields.items():
        default = f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"
        lines.append(f"| `{name}` | {default} | {field.description} | {_escaped(bounds(name))} |")
    lines += ["", "And across parameters:", ""]
    for rule in RULES:
        condition = f", with `{rule.when}`" if rule.when else ""
        lines.append(f"- `{rule.left}` must be {rule.relation} `{rule.right}`{condition}: {rule.why}.")
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
