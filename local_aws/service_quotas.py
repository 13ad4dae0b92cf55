"""Service Quotas of SageMaker training, as a new account may have them.

A run asks for these before it starts, and CreateTrainingJob enforces them. `--quotas FILE.json` maps names to
values over the defaults: {"ml.m5.xlarge for training job usage": 2}; null takes a name from the applied
values, which on AWS too may lack what only the defaults list. An instance type without an entry has a
quota of 0, which is what AWS gives for most accelerators until one asks.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from local_aws import json_service
from local_aws.iam import Caller
from local_aws.json_service import ApiError
from local_aws.settings import ACCOUNT, REGION

SERVICE_CODE = "sagemaker"

_ON_DEMAND = "{} for training job usage"
_SPOT = "{} for spot training job usage"
_WARM_POOL = "{} for training warm pool usage"

_INSTANCES = {
    "ml.m5.large": 30,
    "ml.m5.xlarge": 30,
    "ml.m5.2xlarge": 30,
    "ml.m5.4xlarge": 10,
    "ml.c5.xlarge": 30,
    "ml.c5.2xlarge": 30,
    "ml.g5.xlarge": 2,
    "ml.g5.2xlarge": 2,
}

_DEFAULTS: dict[str, float] = {
    **{_ON_DEMAND.format(name): count for name, count in _INSTANCES.items()},
    **{_SPOT.format(name): count for name, count in _INSTANCES.items()},
    **{_WARM_POOL.format(name): 0 for name in _INSTANCES},
}

DEFAULT_PAGE = 100  # as the API


class Quotas:
    """The applied values by name."""

    def __init__(self, overrides_file: str | None) -> None:
        overrides = json.loads(Path(overrides_file).read_text()) if overrides_file else {}
        merged = {**_DEFAULTS, **overrides}
        self._applied: dict[str, float] = {name: value for name, value in merged.items() if value is not None}

    def instances(self, instance_type: str, *, spot: bool) -> tuple[str, float]:
        """The name and value of the quota for training jobs on `instance_type`."""
        name = (_SPOT if spot else _ON_DEMAND).format(instance_type)
        return name, self._applied.get(name, 0)

    def install(self) -> None:
        json_service.install(
            "servicequotas",
            "ServiceQuotasV20190624",
            {
                "ListServiceQuotas": self._listing("servicequotas:ListServiceQuotas", self._applied),
                "ListAWSDefaultServiceQuotas": self._listing(
                    "servicequotas:ListAWSDefaultServiceQuotas", _DEFAULTS
                ),
            },
        )

    def _listing(
        self, action: str, values: dict[str, float]
    ) -> Callable[[dict[str, Any], Caller], dict[str, Any]]:
        def list_quotas(request: dict[str, Any], caller: Caller) -> dict[str, Any]:
            caller.require(action, "*")
            if request.get("ServiceCode") != SERVICE_CODE:
                raise ApiError("NoSuchResourceException", f"no quotas of {request.get('ServiceCode')!r} here")
            names = sorted(values)
            begin = int(request.get("NextToken", 0))
            end = begin + request.get("MaxResults", DEFAULT_PAGE)
            page: dict[str, Any] = {
                "Quotas": [_quota(n, names.index(n), values[n]) for n in names[begin:end]]
            }
            return page | ({"NextToken": str(end)} if end < len(names) else {})

        return list_quotas


def _quota(name: str, index: int, value: float) -> dict[str, Any]:
    code = f"L-{index:08X}"
    return {
        "ServiceCode": SERVICE_CODE,
        "ServiceName": "Amazon SageMaker",
        "QuotaArn": f"arn:aws:servicequotas:{REGION}:{ACCOUNT}:{SERVICE_CODE}/{code}",
        "QuotaCode": code,
        "QuotaName": name,
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
