"""The CDK app: settings come in here, the stacks go out.

Account and region are left to the credentials of whoever deploys, so one synthesised template
suits all of them, and synthesis never calls AWS.
"""

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from infra.application import build
from infra.settings import Settings

app = cdk.App()
build(app, Settings.from_context(app.node))
# Security rules of the AWS Solutions library; a finding nobody has given a reason for ends synthesis.
cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))

app.synth()
