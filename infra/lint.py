"""`python -m infra.lint`: synthesise, and put every checker over what comes out.

Synthesis itself runs cdk-nag (app.py). What it leaves is checked as CloudFormation, and its state
machines as what they are: a template holds a definition as a string joined from pieces, which no
checker looks into, so each also gets the joined one. Prints the findings; exits 1 if there are any.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from infra.definition import STATE_MACHINE, definitions

ROOT: Final = Path(__file__).parent.parent
NODE_TOOLS: Final = ROOT / "node_modules" / ".bin"
LINT_TOOLS: Final = ROOT / ".venv-lint" / "bin"  # requirements-lint.txt
_LINT_PYTHON: Final = str(LINT_TOOLS / "python")
PYTHON_TOOLS: Final = Path(sys.executable).parent  # of this environment, whether on the PATH or not

# statelint knows JSONata, but wants a plain number where a Wait's Seconds may be an expression
# (Amazon States Language: "Wait state"; its other checkers accept it).
STATELINT_IS_WRONG: Final = '.Seconds is "{% '

_HEADLINE: Final = (" error:", " errors:")  # before statelint's findings

CFN_LINT: Final = (
    str(PYTHON_TOOLS / "cfn-lint"),
    "--format=parseable",
    "--ignore-checks",
    "W3005",  # CDK writes dependencies out that follow from references already
    "W6001",  # the runs stack repeats the bucket's name among its outputs, so that users find both there
    "--",
)


CHECKOV_SKIPS: Final = {
    "CKV_AWS_18": "access logs would double the requests of every exchange (cdk-nag: S1)",
    "CKV_AWS_21": "no versions: entries of the log are never replaced, and payloads expire (run_bucket.py)",
    "CKV_AWS_26": "no topic holds data: a line that a run has ended; e-mail leaves AWS in any case",
    "CKV_AWS_115": "a function that CloudFormation calls once a deployment needs no limit",
    "CKV_AWS_116": "nor a dead letter queue: CloudFormation waits for its answer",
    "CKV_AWS_117": "nor a network: it calls AWS's services and CloudFormation's own URL",
    "CKV_AWS_136": "the setting customer_key is for those who want a key of their own",
    "CKV_AWS_158": "CloudWatch Logs encrypts; a key of one's own would be the whole account's choice",
}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="lint-") as folder:
        assembly = Path(folder) / "cdk.out"
        # Its own message names what cdk-nag has found.
        app = f"{sys.executable} app.py"
        synth = [_node_tool("cdk"), "synth", "--quiet", "--app", app, "--output", str(assembly)]
        if subprocess.run(synth, cwd=ROOT, check=False).returncode:
            return 1
        templates = [str(path) for path in sorted(assembly.glob("*.template.json"))]
        findings = [*_findings([_LINT_PYTHON, "-m", "infra.policy_lint", *templates]), *_checkov(templates)]
        for path in sorted(assembly.glob("*.template.json")):
            template = json.loads(path.read_text())
            findings += _findings([*CFN_LINT, str(path)])
            for logical_id, definition in definitions(template).items():
                findings += check_definition(Path(folder), logical_id, definition)
    print("\n".join(findings) or "infra: no findings")
    return 1 if findings else 0


def check_definition(folder: Path, logical_id: str, definition: dict[str, Any]) -> list[str]:
    """What three checkers say about one state machine."""
    plain = folder / f"{logical_id}.asl.json"
    plain.write_text(json.dumps(definition))
    template = folder / f"{logical_id}.template.json"
    template.write_text(json.dumps(_template_of(definition)))
    statelint = _findings([str(PYTHON_TOOLS / "statelint"), str(plain)])
    return [
        *_findings([_node_tool("asl-validator"), "--json-path", str(plain)]),
        *_findings([*CFN_LINT, str(template)]),
        *[line for line in statelint if STATELINT_IS_WRONG not in line and not line.endswith(_HEADLINE)],
    ]


def _checkov(templates: list[str]) -> list[str]:
    files = [argument for template in templates for argument in ("--file", template)]
    skipped = ["--skip-check", ",".join(CHECKOV_SKIPS)]
    command = [str(LINT_TOOLS / "checkov"), *files, "--framework", "cloudformation", *skipped]
    return _findings([*command, "--skip-download", "--quiet", "--compact"])


def _template_of(definition: dict[str, Any]) -> dict[str, Any]:
    role = {"Fn::Sub": "arn:${AWS::Partition}:iam::${AWS::AccountId}:role/placeholder"}
    machine = {
        "Type": STATE_MACHINE,
        "Properties": {"RoleArn": role, "DefinitionString": json.dumps(definition)},
    }
    return {"Resources": {"StateMachine": machine}}


def _findings(command: list[str]) -> list[str]:
    """A checker's lines, if it ended with anything but 0."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return [f"{Path(command[0]).name}: {line}" for line in lines] if done.returncode else []


def _node_tool(name: str) -> str:
    """A tool of package.json, which `npm ci` puts beside the app."""
    found = shutil.which(name, path=str(NODE_TOOLS))
    if found is None:
        raise SystemExit(f"infra.lint: {name} is not installed. Run `npm ci` first.")
    return found


if __name__ == "__main__":
    sys.exit(main())
