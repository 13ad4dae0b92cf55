"""The arrows of docs/architecture.md, held by reading every import."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"app", "infra", "trainer", "runs", "local_aws", "container", "benchmarks", "tests"}
# What those outside the trainer may import of it: no torch, no store.
LEAVES = {
    "trainer.run_spec",
    "trainer.job_parameters",
    "trainer.training_parameters",
    "trainer.exchange_parameters",
    "trainer.parameter_kinds",
    "trainer.run_rules",
    "trainer.run_pairs",
    "trainer.layout",
    "trainer.report",
    "trainer.progress_view",
}


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, `from a import b` as a.b too, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(folder: str) -> Iterator[tuple[str, str]]:
    """(file, imported module of this repository) for every file below a folder."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for module in imports(path):
            if module.split(".")[0] in OURS:
                yield path.relative_to(ROOT).as_posix(), module


def within(module: str, allowed: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in allowed)


def test_the_trainer_imports_none_of_its_siblings() -> None:
    assert [pair for pair in ours("trainer") if not within(pair[1], {"trainer"})] == []


@pytest.mark.parametrize("folder", ["runs", "infra"])
def test_clients_and_stacks_import_only_the_trainers_leaves(folder: str) -> None:
    allowed = LEAVES | {folder, "trainer"}
    wrong = [p for p in ours(folder) if not within(p[1], LEAVES | {folder}) and p[1] != "trainer"]
    assert allowed and wrong == []


def test_the_embedded_aws_imports_nothing_of_ours() -> None:
    assert [pair for pair in ours("local_aws") if not within(pair[1], {"local_aws"})] == []


@pytest.mark.parametrize("folder", ["trainer", "runs", "infra", "benchmarks"])
def test_nothing_imports_the_stacks_or_the_embedded_aws(folder: str) -> None:
    wrong = {"infra", "local_aws"} - {folder}
    assert [pair for pair in ours(folder) if within(pair[1], wrong)] == []


def test_the_rendezvous_knows_nothing_of_models_data_or_sagemaker() -> None:
    allowed = {"trainer.rendezvous", "trainer.layout"}
    wrong = [p for p in ours("trainer/rendezvous") if not within(p[1], allowed) and p[1] != "trainer"]
    assert wrong == []
    for path in (ROOT / "trainer" / "rendezvous").glob("*.py"):
        assert not {"transformers", "torchft"} & {module.split(".")[0] for module in imports(path)}, path


@pytest.mark.parametrize("leaf", sorted(LEAVES))
def test_a_leaf_imports_no_heavy_library(leaf: str) -> None:
    """At the top of the file; what is only drawn or printed may be imported where it is used."""
    tree = ast.parse((ROOT / f"{leaf.replace('.', '/')}.py").read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in top if isinstance(node, ast.ImportFrom)}
    assert not {"torch", "transformers", "obstore", "boto3", "matplotlib", "rich", "numpy"} & modules
    assert all(within(module, LEAVES) for module in modules if module.startswith("trainer"))


def test_nothing_is_unpickled() -> None:
    for path in sorted((ROOT / "trainer").rglob("*.py")):
        assert not {"pickle", "dill", "cloudpickle"} & set(imports(path)), path
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert "torch.load" not in [ast.unparse(func) for func in calls], path


def test_the_trainers_package_file_is_empty_so_that_synth_loads_no_torch() -> None:
    assert (ROOT / "trainer" / "__init__.py").read_text() == ""
