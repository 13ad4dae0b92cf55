"""The synthesised templates, and JSONata as the state machine evaluates it."""

import hashlib
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonata
import pytest

# Before jsii starts its Node process: CDK warns of every Node release near its end of life.
os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "1")

import aws_cdk as cdk

from infra.application import build
from infra.definition import definitions
from infra.settings import Settings
from trainer.run_spec import RunSpec

ROOT = Path(__file__).parent.parent.parent


def synthesise(root: Path = ROOT, outdir: Path | None = None, **context: Any) -> dict[str, dict[str, Any]]:
    """All templates, by the end of the stack's name, as app.py makes them (nag apart).

    Assets are staged in `outdir`, or in a temporary folder.
    """
    flags = json.loads((ROOT / "cdk.json").read_text())["context"]
    app = cdk.App(context={**flags, **context}, outdir=str(outdir) if outdir else None)
    settings = Settings.from_context(app.node)
    build(app, settings, root=root)
    assembly = app.synth()
    return {stack.stack_name.removeprefix("diloco-"): stack.template for stack in assembly.stacks}


@pytest.fixture(scope="session")
def synth() -> Callable[..., dict[str, dict[str, Any]]]:
    return synthesise


@pytest.fixture(scope="session")
def templates() -> dict[str, dict[str, Any]]:
    return synthesise()


@pytest.fixture(scope="session")
def definition(templates: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (found,) = definitions(templates["runs"]).values()
    return found


@pytest.fixture(scope="session")
def states(definition: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Every state by name, those inside Maps too."""
    return all_states(definition)


def all_states(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = dict(part["States"])
    for state in part["States"].values():
        if "ItemProcessor" in state:
            inner = all_states(state["ItemProcessor"])
            assert not inner.keys() & found.keys()
            found |= inner
    return found


@pytest.fixture(scope="session")
def evaluate() -> Callable[..., Any]:
    """Evaluate a state's field, expressions inside objects and arrays included."""
    return _evaluate


@pytest.fixture(scope="session")
def job_request() -> Callable[[dict[str, dict[str, Any]]], dict[str, Any]]:
    """What a state machine's TrainReplica asks of SageMaker for rank 1 of a run of the defaults."""

    def of(states: dict[str, dict[str, Any]]) -> dict[str, Any]:
        parameters = RunSpec.model_validate({}).model_dump()
        run = {"bucket": "bucket", "run_id": "run", "rank": 1, "job_name": "job"}
        instance = {"instance_type": parameters["instance_type"], "parameters": parameters}
        found: dict[str, Any] = _evaluate(states["TrainReplica"]["Arguments"], **run, **instance)
        return found

    return of


def _evaluate(
    field: Any,
    *,
    input_: Any = None,
    result: Any = None,
    error: Any = None,
    context: Any = None,
    **variables: Any,
) -> Any:
    if isinstance(field, dict):
        return {
            name: _evaluate(value, input_=input_, result=result, error=error, context=context, **variables)
            for name, value in field.items()
        }
    if isinstance(field, list):
        return [
            _evaluate(value, input_=input_, result=result, error=error, context=context, **variables)
            for value in field
        ]
    if not (isinstance(field, str) and field.startswith("{%")):
        return field
    expression = _parsed(field)
    states = {"input": input_, "result": result, "errorOutput": error, "context": context}
    return expression.evaluate(None, {**variables, "states": states})


_PARSED: dict[str, jsonata.Jsonata] = {}


def _parsed(field: str) -> jsonata.Jsonata:
    """JSONata with the functions that Step Functions adds and this state machine uses."""
    if field not in _PARSED:
        expression = jsonata.Jsonata.jsonata(field.removeprefix("{%").removesuffix("%}").strip())
        expression.register_lambda("hash", _hash)
        expression.register_lambda("parse", json.loads)
        expression.register_lambda("random", random.Random(0).random)
        _PARSED[field] = expression
    return _PARSED[field]


def _hash(text: str, algorithm: str) -> str:
    assert algorithm == "SHA-256"
    return hashlib.sha256(text.encode()).hexdigest()
