"""Resources of CloudFormation that have no effect here, and so are only kept by name.

ministack refuses a whole template for one type it doesn't know. A saved query and a budget do nothing
that a run could notice; that they were asked for as AWS wants them is for the template's own tests.
"""

from typing import Any

from ministack.services.cloudformation import provisioners

TYPES = ("AWS::Budgets::Budget", "AWS::Logs::QueryDefinition")


def install() -> None:
    handler = {"create": _create, "update": _update, "delete": lambda *_: None}
    provisioners._RESOURCE_HANDLERS.update(dict.fromkeys(TYPES, handler))


def _create(logical_id: str, _properties: dict[str, Any], stack_name: str) -> tuple[str, dict[str, Any]]:
    return f"{stack_name}-{logical_id}", {}


def _update(physical_id: str, *_: Any) -> tuple[str, dict[str, Any]]:
    return physical_id, {}
