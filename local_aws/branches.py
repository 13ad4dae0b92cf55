"""Ends the rest of an execution when one part of it has failed, or when it was stopped.

In Step Functions an uncaught error in one iteration of a Map, or one branch of a Parallel, ends its siblings
at once and cancels the jobs they wait for; so does StopExecution ("Map workflow state" and "Run a Job
(.sync)", developer guide). ministack's interpreter lets them run on to their end. Here an execution, a Map or
a Parallel is a Branch, found through a context variable, which threads of the interpreter inherit. What
waits (a task for its job, a retry for its time) asks its branch whether it is over.
"""

import contextvars
import threading
import time
from collections.abc import Callable
from typing import Any

from ministack.services import stepfunctions

from local_aws.iam import CannotAssumeRole, Session, assume_service_role
from local_aws.settings import Settings

SERVICE_PRINCIPAL = "states.amazonaws.com"

# How soon an ended branch is noticed; a stopped execution sets no event that one could wait for.
POLL_S = 0.1


class BranchOver(BaseException):
    """Unwinds a branch that is over.

    No Exception: the interpreter would take it for the state's own error and offer it to Retry and Catch.
    """


class Branch:
    """A part of an execution whose members end together."""

    def __init__(self, execution: dict[str, Any], settings: Settings, parent: "Branch | None" = None) -> None:
        self._execution = execution
        self._settings = settings
        self._parent = parent
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.error: Exception | None = None  # the first uncaught one of its members

    def child(self) -> "Branch":
        return Branch(self._execution, self._settings, self)

    def fail(self, error: Exception) -> None:
        with self._lock:
            self.error = self.error or error

    def is_over(self) -> bool:
        if self.error is not None or self._execution["status"] != "RUNNING":
            return True
        return self._parent is not None and self._parent.is_over()

    def check(self) -> None:
        if self.is_over():
            raise BranchOver

    def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond the branch's end."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, POLL_S))

    def session(self) -> Session:
        """The state machine's role, assumed once an execution. Raises the interpreter's error."""
        if self._parent is not None:
            return self._parent.session()
        with self._lock:
            if self._session is None:
                machine = stepfunctions._state_machines[self._execution["stateMachineArn"]]
                self._session = assume_states_role(
                    machine["roleArn"], machine["stateMachineArn"], self._settings
                )
            return self._session


def assume_states_role(role_arn: str, machine_arn: str, settings: Settings) -> Session:
    """Raises the interpreter's error, States.Permissions, where the role doesn't let Step Functions in."""
    try:
        return assume_service_role(
            role_arn,
            service=SERVICE_PRINCIPAL,
            session_name="StepFunctions",
            source_arn=machine_arn,
            endpoint_url=settings.endpoint_url,
        )
    except CannotAssumeRole as error:
        raise stepfunctions._ExecutionError(
            "States.Permissions", f"{SERVICE_PRINCIPAL} is not authorized to assume the role: {error}"
        ) from error


_current: contextvars.ContextVar[Branch] = contextvars.ContextVar("local_aws_branch")


def current() -> Branch:
    """The innermost branch of the state that asks."""
    return _current.get()


def install(settings: Settings) -> None:
    """Wrap the interpreter's functions; it looks all of them up by name at each call."""
    run_execution, fail_execution = stepfunctions._run_execution, stepfunctions._fail_execution
    run_sub_machine, execute_task = stepfunctions._run_sub_machine, stepfunctions._execute_task
    scaled_sleep = stepfunctions._scaled_sleep

    def run_in_branch(execution_arn: str) -> None:
        _current.set(Branch(stepfunctions._executions[execution_arn], settings))
        try:
            run_execution(execution_arn)
        except BranchOver:
            return  # StopExecution has written the outcome already

    def fail_if_running(execution: dict[str, Any], error: str, cause: str) -> None:
        if execution["status"] == "RUNNING":  # a stopped execution stays ABORTED, whatever its states raise
            fail_execution(execution, error, cause)

    def run_member(*args: Any) -> Any:
        try:
            return run_sub_machine(*args)
        except Exception as error:
            current().fail(error)
            raise

    def execute_task_in_branch(*args: Any) -> Any:
        current().check()
        return execute_task(*args)

    def sleep_in_branch(seconds: float) -> None:
        branch = _current.get(None)
        if branch is None:
            scaled_sleep(seconds)  # TestState runs a state without an execution
        else:
            branch.sleep(seconds * stepfunctions._SFN_WAIT_SCALE)

    stepfunctions._run_execution = run_in_branch
    stepfunctions._fail_execution = fail_if_running
    stepfunctions._run_sub_machine = run_member
    stepfunctions._execute_task = execute_task_in_branch
    stepfunctions._scaled_sleep = sleep_in_branch
    stepfunctions._run_map_items = _with_members(stepfunctions._run_map_items)
    stepfunctions._run_parallel_branches = _with_members(stepfunctions._run_parallel_branches)


def _with_members(run: Callable[..., Any]) -> Callable[..., Any]:
    """`run`, a Map or Parallel, as a branch that ends with its first uncaught error and raises that one."""

    def run_as_branch(*args: Any) -> Any:
        outer = current()
        branch = outer.child()
        token = _current.set(branch)
        try:
            result = run(*args)
        except Exception:
            if branch.error is not None:
                raise branch.error from None  # ministack's choice is the first by index, not by time
            raise
        finally:
            _current.reset(token)
        outer.check()  # members of an ended execution return nothing, and nothing may be made of it
        return result

    return run_as_branch
