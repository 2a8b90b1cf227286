"""Notebooks execute as Jupyter would: by a real kernel of this interpreter, which writes below one directory only."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

_OF_JUPYTER = ("HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "MPLCONFIGDIR")


def client_of(notebook: Path | list[str], directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An nbclient that runs a stored notebook, or cells, in `directory`."""
    for name in _OF_JUPYTER:
        monkeypatch.setenv(name, str(directory / name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of packages that tests only use.
        import nbformat
        from jupyter_client.kernelspec import KernelSpec
        from jupyter_client.manager import AsyncKernelManager
        from nbclient import NotebookClient

    class Kernel(AsyncKernelManager):
        """This interpreter's, whatever kernels are installed."""

        @property
        def kernel_spec(self) -> Any:
            return KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])

    if isinstance(notebook, Path):
        document = nbformat.read(notebook, as_version=4)
    else:
        document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in notebook])
    resources = {"metadata": {"path": str(directory)}}
    return NotebookClient(document, timeout=120, kernel_manager_class=Kernel, resources=resources)


def execute(client: Any) -> list[Any]:
    """The outputs of each cell of code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client.execute()
    return [cell.outputs for cell in client.nb.cells if cell.cell_type == "code"]
