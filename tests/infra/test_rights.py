"""Who may do what: the statements of both roles, all of them, as they stand in the template."""

from tests.support.templates import Template, arn, of_type, statements

Templates = dict[str, Template]


def test_a_replica_may_add_to_runs_and_delete_its_checkpoints_alone(templates: Templates) -> None:
    group = "arn:<AWS::Partition>:logs:<AWS::Region>:<AWS::AccountId>:log-group:/aws/sagemaker/TrainingJobs"
    assert statements(templates["runs"], "a replica") == [
        {
            "Sid": "AddToRuns",
            "Effect": "Allow",
            "Action": ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
            "Resource": [f"BUCKET/diloco-{name}/*" for name in ("ckpt", "data", "out", "rdv")],
        },
        {
            "Sid": "ReadInputs",
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": ["BUCKET/diloco-in/*"],
        },
        {
            "Sid": "ReplaceCheckpoints",
            "Effect": "Allow",
            "Action": ["s3:DeleteObject"],
            "Resource": ["BUCKET/diloco-ckpt/*"],
        },
        {
            "Sid": "ListRuns",
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": ["BUCKET"],
            "Condition": {
                "StringLike": {"s3:prefix": [f"diloco-{n}/*" for n in ("rdv", "data", "ckpt", "out", "in")]}
            },
        },
        {
            "Sid": "WriteLogs",
            "Effect": "Allow",
            "Action": [
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
            ],
            "Resource": [group, f"{group}:*"],
        },
        {
            "Sid": "WriteMetrics",
            "Effect": "Allow",
            "Action": ["cloudwatch:PutMetricData"],
            "Resource": ["*"],
            "Condition": {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/TrainingJobs"}},
        },
        {
            "Sid": "PullTrainerImage",
            "Effect": "Allow",
            "Action": ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
            "Resource": ["REPOSITORY"],
        },
        {
            "Sid": "SignInToRegistry",
            "Effect": "Allow",
            "Action": ["ecr:GetAuthorizationToken"],
            "Resource": ["*"],
        },
    ]


def test_the_replicas_role_is_for_training_jobs_of_this_account(templates: Templates) -> None:
    (role,) = [
        r["Properties"]
        for r in of_type(templates["runs"], "AWS::IAM::Role")
        if "a replica" in r["Properties"].get("Description", "")
    ]
    (statement,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
    assert arn(statement["Condition"]["ArnLike"]["aws:SourceArn"]) == (
        "arn:<AWS::Partition>:sagemaker:<AWS::Region>:<AWS::AccountId>:training-job/*"
    )
    assert "ManagedPolicyArns" not in role


def test_the_state_machine_may_run_replicas_and_steer_runs_and_no_more(templates: Templates) -> None:
    here = "<AWS::Region>:<AWS::AccountId>"
    ours = [s for s in statements(templates["runs"], "the state machine") if "Sid" in s]
    assert ours == [
        {
            "Sid": "RunReplicas",
            "Effect": "Allow",
            "Action": [
                "sagemaker:AddTags",
                "sagemaker:CreateTrainingJob",
                "sagemaker:DescribeTrainingJob",
                "sagemaker:StopTrainingJob",
            ],
            "Resource": [f"arn:<AWS::Partition>:sagemaker:{here}:training-job/*"],
        },
        {
            "Sid": "HandOverReplicaRole",
            "Effect": "Allow",
            "Action": ["iam:PassRole"],
            "Resource": ["REPLICA_ROLE"],
            "Condition": {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
        },
        {
            "Sid": "HearOfJobsEnding",
            "Effect": "Allow",
            "Action": ["events:DescribeRule", "events:PutRule", "events:PutTargets"],
            "Resource": [
                f"arn:<AWS::Partition>:events:{here}:rule/StepFunctionsGetEventsForSageMakerTrainingJobsRule"
            ],
        },
        {
            "Sid": "ReadQuotas",
            "Effect": "Allow",
            "Action": ["servicequotas:ListAWSDefaultServiceQuotas", "servicequotas:ListServiceQuotas"],
            "Resource": ["*"],
        },
        {
            "Sid": "SteerRuns",
            "Effect": "Allow",
            "Action": ["s3:PutObject"],
            "Resource": [
                "BUCKET/diloco-rdv/*/abort.json",
                "BUCKET/diloco-rdv/*/progress/rank_*.json",
                "BUCKET/diloco-rdv/*/run.json",
            ],
        },
        {
            "Sid": "ReadResults",
            "Effect": "Allow",
            "Action": ["s3:GetObject"],
            "Resource": ["BUCKET/diloco-rdv/*/results/rank_*.json"],
        },
    ]
    # What CDK adds for logging ALL and for X-Ray.
    theirs = [s for s in statements(templates["runs"], "the state machine") if "Sid" not in s]
    assert {action.split(":")[0] for s in theirs for action in s["Action"]} == {"logs", "xray"}
