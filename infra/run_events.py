"""Messages that a run has ended or that a job has failed, from the events that AWS sends anyway.

"Step Functions execution status change" and "SageMaker training job state change" (EventBridge
event reference).
"""

from typing import Final

from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

EVENTS_NAMESPACE: Final = "AWS/Events"
JOB_FAILED_METRIC: Final = "MatchedEvents"


def tell_of_runs(scope: Construct, state_machine: sfn.IStateMachine, topic: sns.ITopic) -> events.Rule:
    """Put both rules on `topic`; return the one of failed jobs, whose matches the dashboard counts."""
    run_ended = events.Rule(
        scope,
        "RunEnded",
        description="A run has ended, well or not",
        event_pattern=events.EventPattern(
            source=["aws.states"],
            detail_type=["Step Functions Execution Status Change"],
            detail={
                "stateMachineArn": [state_machine.state_machine_arn],
                "status": ["SUCCEEDED", "FAILED", "TIMED_OUT", "ABORTED"],
            },
        ),
    )
    job_failed = events.Rule(
        scope,
        "JobFailed",
        description="A replica's training job has failed; it may be relaunched",
        event_pattern=events.EventPattern(
            source=["aws.sagemaker"],
            detail_type=["SageMaker Training Job State Change"],
            detail={
                "TrainingJobStatus": ["Failed"],
                # Jobs of other people in the account have no such tag.
                "Tags": {"diloco:run": [{"exists": True}]},
            },
        ),
    )
    name, status = (
        events.EventField.from_path("$.detail.name"),
        events.EventField.from_path("$.detail.status"),
    )
    run_ended.add_target(
        targets.SnsTopic(topic, message=events.RuleTargetInput.from_text(f"Run {name}: {status}"))
    )
    job, reason = (
        events.EventField.from_path("$.detail.TrainingJobName"),
        events.EventField.from_path("$.detail.FailureReason"),
    )
    job_failed.add_target(
        targets.SnsTopic(topic, message=events.RuleTargetInput.from_text(f"Job {job} failed: {reason}"))
    )
    return job_failed
