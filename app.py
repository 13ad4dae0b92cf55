"""The CDK app: settings come in here, two stacks go out.

Account and region are left to the credentials of whoever deploys, so one synthesised template
suits all of them, and synthesis never calls AWS.
"""

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from infra.runs_stack import RunsStack
from infra.settings import Settings
from infra.storage_stack import StorageStack

app = cdk.App()
settings = Settings.from_context(app.node)

storage = StorageStack(app, f"{settings.prefix}-storage", settings=settings)
RunsStack(
    app,
    f"{settings.prefix}-runs",
    settings=settings,
    bucket=storage.run_bucket.bucket,
    repository=storage.repository,
)
# Security rules of the AWS Solutions library; a finding nobody has given a reason for ends synthesis.
cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
cdk.Tags.of(app).add("application", settings.prefix)

app.synth()
