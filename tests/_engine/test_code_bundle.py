"""Which files are packed for the nodes of a cluster, decided from imports, without a cluster."""

import io
import os
import re
import sys
import types
import zipfile
from pathlib import Path

import pytest

from paceline._engine.ray import code_bundle
from paceline._engine.ray.code_bundle import find_user_modules, pack_code, script_directories, split_runtime_env


def _module(name: str, path: Path, text: str = "") -> types.ModuleType:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    if path.name == "__init__.py":
        module.__path__ = [str(path.parent)]
    return module


def _names(roots: list[code_bundle.SourceRoot]) -> dict[str, list[str]]:
    return {root.path.name: [file.relative_to(root.path).as_posix() for file in root.files] for root in roots}


def test_packs_modules_and_whole_packages_of_the_script(tmp_path: Path) -> None:
    project = tmp_path / "project"
    alone = _module("alone", project / "alone.py")
    package = _module("package", project / "package" / "__init__.py")
    for name in ("never_imported.py", "sub/deep.py", "labels.json", "__pycache__/x.pyc", ".hidden", ".git/config"):
        (project / "package" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "package" / name).write_text("x")
    (project / "not_imported.py").write_text("")
    packed = find_user_modules({"alone": alone, "package": package, "package.sub.deep": alone}, [project])
    expected = ["__init__.py", "labels.json", "never_imported.py", "sub/deep.py"]
    assert _names(packed) == {"project": ["alone.py", *(f"package/{name}" for name in expected)]}


def test_does_not_pack_installed_or_standard_modules(tmp_path: Path) -> None:
    project = tmp_path / "project"
    modules = {
        "elsewhere": _module("elsewhere", tmp_path / "other" / "elsewhere.py"),
        "installed": _module("installed", project / ".venv/lib/python3.11/site-packages/installed/__init__.py"),
        "json": _module("json", project / "json.py"),
        "__main__": _module("__main__", project / "train.py"),
        "another_name": _module("another_name", project / "file.py"),
        "gone": _module("gone", project / "gone.py"),
        "built_in": types.ModuleType("built_in"),
        "nothing": None,
    }
    (project / "gone.py").unlink()
    assert find_user_modules(modules, [project]) == []


def test_packs_nothing_of_paceline_and_of_libraries(tmp_path: Path) -> None:
    source = Path(code_bundle.__file__).parents[2]
    assert find_user_modules(sys.modules, [source, Path(pytest.__file__).parents[1]]) == []
    assert pack_code(find_user_modules(sys.modules, [tmp_path])).data == b""


def test_packs_parts_of_a_namespace_package_from_each_directory(tmp_path: Path) -> None:
    space = types.ModuleType("space")
    space.__path__ = [str(tmp_path / home / "space") for home in ("a", "b", "c")]
    for home in ("a", "b", "c"):
        _module("x", tmp_path / home / "space" / f"{home}.py")
    packed = find_user_modules({"space": space}, [tmp_path / "a", tmp_path / "b"])
    assert _names(packed) == {"a": ["space/a.py"], "b": ["space/b.py"]}


def test_skips_large_data_files_and_names_modules_that_are_too_large(tmp_path: Path, monkeypatch) -> None:
    package = _module("package", tmp_path / "package" / "__init__.py")
    (tmp_path / "package" / "weights.bin").write_bytes(bytes(code_bundle.MAX_DATA_FILE_BYTES + 1))
    packed = find_user_modules({"package": package}, [tmp_path])
    assert _names(packed) == {tmp_path.name: ["package/__init__.py"]}
    monkeypatch.setattr(code_bundle, "MAX_MODULES_BYTES", 1000)
    (tmp_path / "package" / "tables.py").write_text("#" * 2000)
    (tmp_path / "package" / "small.txt").touch()
    packed = pack_code(find_user_modules({"package": package}, [tmp_path]))
    assert packed.data == b""
    assert re.search(r"(?s)tables\.py \(0\.0 MB\).*'working_dir'", packed.manifest.size_problem)
    # By which a node that has them all the same is known.
    assert [file.path for file in packed.manifest.trees[0].files] == ["package/__init__.py", "package/tables.py"]
    monkeypatch.setattr(code_bundle, "MAX_WORKING_DIR_BYTES", 1000)
    with pytest.raises(ValueError, match=r"(?s)working_dir.*tables\.py"):
        pack_code([], split_runtime_env({"working_dir": str(tmp_path)})[1])


def test_equal_files_have_equal_bundles_and_changes_differ(tmp_path: Path) -> None:
    first = _module("alone", tmp_path / "first" / "alone.py", "x = 1")
    second = _module("alone", tmp_path / "second" / "alone.py", "x = 1")
    os.utime(tmp_path / "second" / "alone.py", (1, 1))
    one = pack_code(find_user_modules({"alone": first}, [tmp_path]))
    two = pack_code(find_user_modules({"alone": second}, [tmp_path]))
    assert one.manifest.digest == two.manifest.digest
    assert one.data == two.data
    (tmp_path / "first" / "alone.py").write_text("x = 2")
    changed = pack_code(find_user_modules({"alone": first}, [tmp_path]))
    assert changed.manifest.digest != one.manifest.digest
    assert zipfile.ZipFile(io.BytesIO(changed.data)).read("0/alone.py") == b"x = 2"


def test_packs_a_local_working_dir_except_excluded_files(tmp_path: Path) -> None:
    for name in ("train.py", "data/large.bin", "data/small.txt", "notes.log", "deep/er/x.txt", ".git/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    runtime_env = {"working_dir": str(tmp_path), "excludes": ["*.log", "/data/large.bin", "er"], "env_vars": {"A": "1"}}
    rest, roots = split_runtime_env(runtime_env)
    assert rest == {"env_vars": {"A": "1"}}
    assert [root.is_working_dir for root in roots] == [True]
    assert _names(roots) == {tmp_path.name: ["train.py", "data/small.txt"]}


def test_leaves_addresses_to_ray_and_packs_local_packages(tmp_path: Path) -> None:
    package = _module("package", tmp_path / "package" / "__init__.py")
    _module("alone", tmp_path / "alone.py")
    address = "s3://bucket/x.zip"
    rest, roots = split_runtime_env({"working_dir": address, "py_modules": [address, package, tmp_path / "alone.py"]})
    assert rest == {"working_dir": address, "py_modules": [address]}
    assert [_names([root])[tmp_path.name] for root in roots] == [["package/__init__.py"], ["alone.py"]]
    assert split_runtime_env(None) == (None, [])
    assert split_runtime_env({"py_modules": [str(tmp_path / "package")]})[0] is None


@pytest.mark.parametrize(
    ("runtime_env", "message"),
    [
        ({"working_dir": "/nowhere/at/all"}, "does not exist"),
        ({"working_dir": __file__}, "must be a directory"),
        ({"working_dir": 3}, "must hold paths"),
        ({"py_modules": "package"}, "must be a list"),
    ],
)
def test_rejects_what_cannot_be_packed_by_name(runtime_env: dict, message: str) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(runtime_env))} of worker_runtime_env.*{message}"):
        split_runtime_env(runtime_env)


def test_user_code_is_in_the_scripts_and_the_current_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    scripts = tmp_path / "scripts"
    assert script_directories(_module("__main__", scripts / "train.py")) == [scripts, tmp_path]
    assert script_directories(None) == [tmp_path]
