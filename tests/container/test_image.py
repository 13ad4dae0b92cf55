"""What the real Dockerfile makes: what is in the image, what isn't, and what a base of one's own keeps."""

import json
import re
import time
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from tests.container import bill_of_materials, images
from tests.container.bill_of_materials import in_image
from tests.container.engine import ROOT, Failed, build, podman

DOCKERFILE: Final = ROOT / "container" / "Dockerfile"
SBOM: Final = ROOT / ".local" / "image" / "sbom.cdx.json"

# Above the base and torch, which are others' choice: what our requirements add, as files. Of it 618 MiB
# are there today, some 150 of them pyarrow, which reads Parquet.
MOST_OWN_BYTES: Final = 660 * 2**20

# Every file of an image but the kernel's, and what it weighs by folder.
WEIGHT = """
import json, os, sys
size = {name: 0 for name in ("torch", "all")}
for folder, _, files in os.walk("/", onerror=None):
    if folder.startswith(("/proc", "/sys", "/dev")): continue
    for name in files:
        path = os.path.join(folder, name)
        if os.path.islink(path): continue
        size["all"] += os.path.getsize(path)
        if "-packages/torch/" in path: size["torch"] += os.path.getsize(path)
print(json.dumps(size))
"""


def inspected(image: str) -> dict[str, Any]:
    (found,) = json.loads(podman("image", "inspect", image))
    assert isinstance(found, dict)
    return found


def locked() -> dict[str, str]:
    """Name to version of every requirement of the lock that suits the base's Python (3.11 on Linux)."""
    lines = (ROOT / "container" / "requirements.lock").read_text().splitlines()
    wanted = [line for line in lines if re.match(r"[a-z]", line)]
    suits = [line for line in wanted if "win32" not in line and "python_full_version >= '3.12'" not in line]
    return dict(line.split(" ")[0].split("==") for line in suits)


def packages(image: str) -> dict[str, str]:
    listed = json.loads(in_image(image, "python", "-m", "pip", "list", "--format", "json"))
    return {canonicalize_name(entry["name"]): entry["version"] for entry in listed}


def test_it_says_where_it_comes_from_and_starts_python_itself(image: str) -> None:
    config = inspected(image)["Config"]
    assert {name: text for name, text in config["Labels"].items() if "opencontainers" in name} == {
        "org.opencontainers.image.title": "DiLoCo trainer",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "version"
        ],
    }
    # A list is the exec form; a shell would be PID 1 and keep SIGTERM to itself.
    assert config["Entrypoint"] == ["python", "-m", "trainer.replica_entrypoint"]
    assert config.get("User", "") == ""


def test_it_holds_the_trainer_and_nothing_else_of_ours(image: str) -> None:
    listed = in_image(image, "find", "/opt/app", "-type", "f", "-printf", "%P\n").split()
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "trainer").rglob("*.py")}
    assert set(listed) == ours | {"requirements.txt", "requirements.lock"}
    names = "infra", "runs", "tests", "local_aws", "aws_cdk"
    code = f"import importlib.util as util; print([name for name in {names} if util.find_spec(name)])"
    assert in_image(image, "python", "-c", code) == "[]\n"


def test_it_has_the_locked_versions_and_they_fit_together(image: str) -> None:
    found = packages(image)
    wanted = locked()
    assert len(wanted) > 50
    assert {name: found.get(name) for name in wanted} == wanted
    assert found["torch"].split("+")[0] == "2.13.0"
    assert in_image(image, "python", "-m", "pip", "check") == "No broken requirements found.\n"


def test_no_compiler_cache_or_credential_is_left(image: str) -> None:
    assert in_image(image, "sh", "-c", "command -v cc gcc g++ make ld git || true") == ""
    left = in_image(image, "sh", "-c", "find ~/.cache /tmp /var/tmp -type f 2>/dev/null || true")
    assert left == ""
    variables = [entry.partition("=")[0] for entry in inspected(image)["Config"]["Env"]]
    assert [name for name in variables if re.search("KEY|TOKEN|SECRET|PASSWORD|INDEX|AWS", name)] == []
    history = podman("history", "--no-trunc", "--format", "{{.CreatedBy}}", image)
    assert not re.search(r"AKIA|ASIA|aws_secret|//[^/\s]+:[^/\s]+@", history, re.IGNORECASE)


def test_a_change_of_the_trainer_rebuilds_in_seconds(image: str, tmp_path: Path) -> None:
    """The layers of torch and of the requirements come before it, and are kept."""
    changed = tmp_path / "context"
    (changed / "container").mkdir(parents=True)
    (changed / "trainer").mkdir()
    for source in [*(ROOT / "container").iterdir(), *(ROOT / "trainer").glob("*.py")]:
        (changed / source.parent.name / source.name).write_bytes(source.read_bytes())
    (changed / "trainer" / "model.py").write_text("# changed\n")
    began = time.monotonic()
    printed = build(
        DOCKERFILE,
        tag="localhost/changed",
        context=changed,
        arguments={"BASE_IMAGE": images.base()},
    )
    assert time.monotonic() - began < 20
    assert printed.count("Using cache") >= 6
    assert "Collecting" not in printed


def base_with_torch(image: str, version: str, tmp_path: Path) -> str:
    """A base that has a torch of its own, of the given version: the one at hand under another name."""
    tag = f"localhost/base-with-torch:{version.replace('+', '-')}"
    (tmp_path / "Dockerfile").write_text(
        f"FROM {image}\n"
        "RUN cd $(python -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')"
        " && cd $(python -c 'import torch, os; print(os.path.dirname(os.path.dirname(torch.__file__)))')"
        f" && mv torch-*.dist-info torch-{version}.dist-info"
        f" && sed -i 's/^Version: .*/Version: {version}/' torch-{version}.dist-info/METADATA\n"
    )
    build(tmp_path / "Dockerfile", tag=tag, context=tmp_path)
    return tag


def test_a_base_that_has_torch_keeps_it(image: str, tmp_path: Path) -> None:
    """Such as a GPU build: pip would find a newer one, without the base's CUDA, and replace it."""
    base = base_with_torch(image, "2.12.1+cu999", tmp_path)
    printed = build(DOCKERFILE, tag="localhost/on-torch", context=ROOT, arguments={"BASE_IMAGE": base})
    assert "Collecting torch" not in printed
    assert packages("localhost/on-torch")["torch"] == "2.12.1+cu999"


def test_a_base_whose_torch_does_not_fit_is_refused_in_words(image: str, tmp_path: Path) -> None:
    base = base_with_torch(image, "2.9.0+cu999", tmp_path)
    with pytest.raises(Failed, match=r"No matching distribution found for torch<2\.15,>=2\.10"):
        build(DOCKERFILE, tag="localhost/on-old-torch", context=ROOT, arguments={"BASE_IMAGE": base})


def test_a_file_that_is_not_the_locked_one_is_refused(image: str, tmp_path: Path) -> None:
    """The hash of one package is changed: what an index may do to somebody's build, and doesn't get in."""
    context = tmp_path / "context"
    (context / "container").mkdir(parents=True)
    (context / "trainer").mkdir()
    lock = (ROOT / "container" / "requirements.lock").read_text()
    entry = re.search(r"^jmespath==\S+ \\\n(    --hash=sha256:[0-9a-f]{64}( \\\n|\n))+", lock, re.MULTILINE)
    assert entry is not None
    changed = re.sub(r"sha256:[0-9a-f]{60}", f"sha256:{'0' * 60}", entry[0])
    (context / "container" / "requirements.lock").write_text(changed)
    (context / "container" / "requirements.txt").write_text("jmespath\n")
    with pytest.raises(Failed, match="THESE PACKAGES DO NOT MATCH THE HASHES"):
        build(DOCKERFILE, tag="localhost/tampered", context=context, arguments={"BASE_IMAGE": images.base()})


def test_it_is_not_larger_than_it_was(image: str, base: str, summary: list[str]) -> None:
    weight = json.loads(in_image(image, "python", "-c", WEIGHT))
    of_base = json.loads(in_image(base, "python", "-c", WEIGHT))
    own = weight["all"] - weight["torch"] - of_base["all"]
    megabytes = {name: round(size / 2**20) for name, size in (*weight.items(), ("own", own))}
    summary.append(
        f"image {megabytes['all']} MiB, of which torch {megabytes['torch']}, "
        f"requirements and trainer {megabytes['own']}"
    )
    assert own < MOST_OWN_BYTES


def test_its_bill_of_materials_names_every_package(image: str, summary: list[str]) -> None:
    bom = bill_of_materials.bill_of_materials(image)
    bill_of_materials.write(bom, SBOM)
    text = SBOM.read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {component["purl"] for component in json.loads(text)["components"]}
    assert {f"pkg:pypi/{name}@{version}" for name, version in locked().items()} <= listed
    assert any(url.startswith("pkg:deb/debian/libc6@") for url in listed)
    summary.append(f"bill of materials of {len(listed)} packages in {SBOM.relative_to(ROOT)}")
