"""run.json: the one object that tells a replica what its run is.

Written once, before any replica starts, by whoever launches the run: the state machine, or
trainer.local. Replicas are given its URI, since a job's arguments are too short for the
parameters themselves (256 characters each).
"""

import hashlib
import json
import uuid
from dataclasses import dataclass

from trainer.layout import RENDEZVOUS_PREFIX, RUN_FILE, RunLayout
from trainer.rendezvous.errors import AbsentObject
from trainer.rendezvous.object_store import ObjectStore, open_store
from trainer.rendezvous.run_log import read_json
from trainer.run_spec import InvalidRunParameters, RunSpec, parse


class RunNameTaken(Exception):
    """A run of this name has been here before. Its log is never written over: choose another name."""


@dataclass(frozen=True)
class Run:
    """A run as its replicas know it."""

    run_id: str
    spec: RunSpec
    store: ObjectStore

    @property
    def parameters_sha256(self) -> str:
        """A digest of the run parameters, by which a checkpoint knows its run."""
        return hashlib.sha256(json.dumps(self.spec.model_dump(), sort_keys=True).encode()).hexdigest()

    @property
    def uri(self) -> str:
        return self.store.address(RunLayout(self.run_id).run_file)


def create_run(store: ObjectStore, run_id: str, spec: RunSpec) -> Run:
    """Write run.json. Raises RunNameTaken where the run exists, InvalidRunParameters."""
    check_source(store, run_id, spec)
    launch = uuid.uuid4().hex  # tells this launch from another of the same name at the same moment
    body = json.dumps({"run_id": run_id, "launch": launch, "parameters": spec.model_dump()}).encode()
    key = RunLayout(run_id).run_file
    if store.find(key) is not None or store.create(key, body) != body:
        raise RunNameTaken(f"{store.address(key)} exists: a run's log is never written over; choose another")
    return Run(run_id, spec, store)


def check_source(store: ObjectStore, run_id: str, spec: RunSpec) -> None:
    """Raise InvalidRunParameters where `resume_from` names no run that this one could start from."""
    if not spec.resume_from:
        return
    if spec.resume_from == run_id:
        raise InvalidRunParameters({"resume_from": f"{run_id} is this run itself; name an ended one"})
    key = RunLayout(spec.resume_from).run_file
    if store.find(key) is None:
        raise InvalidRunParameters({"resume_from": f"there is no such run: no {store.address(key)}"})


def read_run(uri: str) -> Run:
    """Read the run.json at `uri`, e.g. s3://bucket/diloco-rdv/RUN_ID/run.json.

    Raises InvalidRunParameters, AbsentObject.
    """
    root, found, rest = uri.partition(f"/{RENDEZVOUS_PREFIX}/")
    run_id, _, name = rest.partition("/")
    if not found or name != RUN_FILE:
        expected = f"s3://BUCKET/{RENDEZVOUS_PREFIX}/RUN_ID/{RUN_FILE}"
        raise InvalidRunParameters({"--run": f"must be the URI of a run.json, as {expected}, not {uri!r}"})
    try:
        RunLayout(run_id)
        store = open_store(root)
    except ValueError as error:
        raise InvalidRunParameters({"--run": str(error)}) from error
    return load_run(store, run_id)


def load_run(store: ObjectStore, run_id: str) -> Run:
    """The run of this id, as its run.json tells.

    Takes the object plainly or as a quoted JSON string, since AWS does not say which of the two
    Step Functions' s3:putObject makes of a JSON Body. Raises InvalidRunParameters, AbsentObject.
    """
    key = RunLayout(run_id).run_file
    uri = store.address(key)
    try:
        data = store.get(key)
    except AbsentObject as error:
        raise AbsentObject(f"{uri} does not exist: the run never started, or its log was deleted") from error
    document = read_json(data, uri)
    if document.get("run_id") != run_id:
        raise InvalidRunParameters({"run_id": f"{uri} says {document.get('run_id')!r}"})
    return Run(run_id, parse(document.get("parameters")), store)
