"""A network for the replicas that leads to AWS's services and nowhere else.

Optional (setting `isolated_network`). Replicas never talk to each other, only to S3; with no way to
the internet, code that somebody's trainer brings can't carry anything out. S3 is reached through a
gateway endpoint, which costs nothing; the others through interface endpoints, which cost about a cent
an hour, zone and service each ("AWS PrivateLink pricing").
"""

from typing import Final

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.findings import acknowledge

# What a training job's container and its agent call: pull the image, log, report metrics, sign in.
SERVICES: Final = {
    "EcrApi": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Metrics": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_MONITORING,
    "Sts": ec2.InterfaceVpcEndpointAwsService.STS,
}


class IsolatedNetwork(Construct):
    """Isolated subnets in two zones, their endpoints, and one security group for replicas."""

    def __init__(self, scope: Construct, id_: str, *, with_secrets: bool) -> None:
        super().__init__(scope, id_)
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            max_azs=2,
            nat_gateways=0,
            subnet_configuration=[
                ec2.SubnetConfiguration(
                    name="replicas", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=20
                )
            ],
            # It would take a Lambda function to empty a group that nothing here uses.
            restrict_default_security_group=False,
        )
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        self.replicas = ec2.SecurityGroup(
            self, "Replicas", vpc=self.vpc, description="Replicas of training runs: nothing comes in"
        )
        endpoints = ec2.SecurityGroup(
            self, "Endpoints", vpc=self.vpc, description="Endpoints of AWS services", allow_all_outbound=False
        )
        endpoints.add_ingress_rule(self.replicas, ec2.Port.tcp(443), "Replicas call AWS services")
        services = dict(SERVICES)
        if with_secrets:
            services["Secrets"] = ec2.InterfaceVpcEndpointAwsService.SECRETS_MANAGER
        for name, service in services.items():
            # `open` would let in the whole network beside the one group.
            self.vpc.add_interface_endpoint(name, service=service, security_groups=[endpoints], open=False)
        acknowledge(
            self.vpc,
            "VPC7",
            "No way in or out: flow logs would show traffic to AWS endpoints and nothing else",
        )

    @property
    def subnet_ids(self) -> tuple[str, ...]:
        return tuple(subnet.subnet_id for subnet in self.vpc.isolated_subnets)
