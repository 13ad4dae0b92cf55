"""The stacks of one deployment, wired: what app.py synthesises and tests look into."""

from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam

from infra.monitoring_stack import MonitoringStack
from infra.runs_stack import RunsStack
from infra.settings import Settings
from infra.storage_stack import StorageStack
from infra.trainer_image import ROOT


@dataclass(frozen=True)
class Application:
    """`storage` keeps data and hardly changes; `runs` changes with every version;
    `monitoring` watches, and can go and come back."""

    storage: StorageStack
    runs: RunsStack
    monitoring: MonitoringStack


def build(app: cdk.App, settings: Settings, *, root: Path = ROOT) -> Application:
    """`root` is the folder whose `trainer/` and `container/` make the image."""
    storage = StorageStack(app, f"{settings.prefix}-storage", settings=settings)
    runs = RunsStack(
        app,
        f"{settings.prefix}-runs",
        settings=settings,
        bucket=storage.run_bucket.bucket,
        repository=storage.repository,
        root=root,
    )
    monitoring = MonitoringStack(
        app, f"{settings.prefix}-monitoring", settings=settings, state_machine=runs.state_machine
    )
    if settings.permissions_boundary:
        for stack in (storage, runs, monitoring):
            iam.PermissionsBoundary.of(stack).apply(
                iam.ManagedPolicy.from_managed_policy_name(stack, "Boundary", settings.permissions_boundary)
            )
    cdk.Tags.of(app).add("application", settings.prefix)
    return Application(storage, runs, monitoring)
