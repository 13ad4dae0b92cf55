"""Resources of CloudFormation that have no effect here, and so are only kept by name.

ministack refuses a whole template for one type it doesn't know. A saved query, a budget, an alarm on an
expression and a rule of a network that isn't there do nothing that a run could notice; that they were asked
for as AWS wants them is for the template's own tests. Alarms on one metric are ministack's, and work.
"""

from typing import Any

from ministack.services.cloudformation import provisioners

TYPES = ("AWS::Budgets::Budget", "AWS::EC2::SecurityGroupIngress", "AWS::Logs::QueryDefinition")


def install() -> None:
    handler = {"create": _create, "update": _update, "delete": lambda *_: None}
    handlers = provisioners._RESOURCE_HANDLERS
    handlers.update(dict.fromkeys(TYPES, handler))
    alarm = handlers["AWS::CloudWatch::Alarm"]
    create, update, delete = alarm["create"], alarm["update"], alarm["delete"]

    def create_alarm(logical_id: str, properties: dict[str, Any], stack_name: str) -> Any:
        make = _create if "Metrics" in properties else create
        return make(logical_id, properties, stack_name)

    def update_alarm(
        physical_id: str, old: dict[str, Any], new: dict[str, Any], stack_name: str, logical_id: str
    ) -> Any:
        if "Metrics" in new:
            return physical_id, {}
        return update(physical_id, old, new, stack_name, logical_id=logical_id)

    def delete_alarm(physical_id: str, properties: dict[str, Any]) -> None:
        if "Metrics" not in properties:
            delete(physical_id, properties)

    alarm |= {"create": create_alarm, "update": update_alarm, "delete": delete_alarm}
    handlers["AWS::CloudWatch::Alarm"] = alarm


def _create(logical_id: str, _properties: dict[str, Any], stack_name: str) -> tuple[str, dict[str, Any]]:
    return f"{stack_name}-{logical_id}", {}


def _update(physical_id: str, *_: Any) -> tuple[str, dict[str, Any]]:
    return physical_id, {}
