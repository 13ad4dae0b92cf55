"""What is in an image: a CycloneDX document of its Python packages and its Debian ones.

Both lists are the image's own, by the tools in it (`pip inspect`, `dpkg-query`), so that what a base
image brings is in them as well.
"""

import json
from pathlib import Path
from typing import Any

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from tests.container.engine import podman


def bill_of_materials(image: str) -> Bom:
    """Every package of `image`, with version and package URL."""
    bom = Bom(components=[*_python_packages(image), *_debian_packages(image)])
    bom.metadata.component = Component(name=image, type=ComponentType.CONTAINER, bom_ref=image)
    bom.register_dependency(bom.metadata.component, bom.components)
    return bom


def write(bom: Bom, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(JsonV1Dot6(bom).output_as_string(indent=2))


def in_image(image: str, *command: str) -> str:
    """What a command prints in a container of `image` that nothing reaches."""
    options = ("--rm", "--pull", "never", "--network", "none", "--log-driver", "none")
    return podman("run", *options, "--entrypoint", json.dumps(command[:1]), image, *command[1:])


def _python_packages(image: str) -> list[Component]:
    listed = json.loads(in_image(image, "python", "-m", "pip", "inspect"))["installed"]
    return [_python_package(entry["metadata"]) for entry in listed]


def _python_package(metadata: dict[str, Any]) -> Component:
    # Some packages put the licence's whole text here; its first line names it.
    licence = metadata.get("license_expression") or metadata.get("license") or ""
    licence = licence.strip().partition("\n")[0]
    name, version = metadata["name"], metadata["version"]
    url = PackageURL("pypi", name=canonicalize_name(name), version=version)
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=url,
        bom_ref=str(url),
        licenses=[DisjunctiveLicense(name=licence)] if licence else [],
    )


def _debian_packages(image: str) -> list[Component]:
    shown = in_image(
        image, "dpkg-query", "--show", "--showformat", r"${Package} ${Version} ${Architecture}\n"
    )
    found = []
    for line in shown.splitlines():
        name, version, architecture = line.split()
        url = PackageURL("deb", "debian", name, version, {"arch": architecture})
        found.append(
            Component(
                name=name,
                version=version,
                type=ComponentType.LIBRARY,
                purl=url,
                bom_ref=str(url),
                supplier=OrganizationalEntity(name="Debian"),
            )
        )
    return found
