#!/bin/sh
# Make the environment that the optional peer Ray Train runs in: .venv-ray, about 1 GB on disk. Remove it to be rid of it.
set -eu
cd "$(dirname "$0")/../.."
"${PYTHON:-python3}" -m venv .venv-ray
.venv-ray/bin/python -m pip --disable-pip-version-check install -c constraints-dev.txt "ray[train]" torch
