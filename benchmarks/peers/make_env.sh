#!/bin/sh
# Make the environments that the peers run in, each with nothing of ours: .venv-torchrun, .venv-accelerate,
# .venv-lightning and .venv-ray, 0.8 to 1.3 GB on disk each. Arguments: names of peers; without any, all four.
# An environment is made once, and again when what goes into it, or its version in constraints-dev.txt, is another: its
# stamp carries a checksum of that.
# Remove the directories to be rid of them.
set -eu
cd "$(dirname "$0")/../.."

contents() {
  case "$1" in
    # Plain torch, and what a script without any framework reads data with.
    torchrun) echo "torch numpy pyarrow pillow" ;;
    accelerate) echo "accelerate torch numpy" ;;
    lightning) echo "lightning torch numpy" ;;
    ray) echo "ray[train,tune] torch numpy pandas pyarrow pillow" ;;
    *) echo "no peer is called $1; there are torchrun, accelerate, lightning and ray" >&2; return 1 ;;
  esac
}

[ $# -gt 0 ] || set -- torchrun accelerate lightning ray
for name in "$@"; do
  wanted=$(contents "$name")
  pinned=$(for package in $wanted; do grep "^${package%%[*}==" constraints-dev.txt || true; done)
  key=$(echo "$wanted $pinned" | cksum | cut -d ' ' -f 1)
  stamp=".venv-$name/.peer-ready-$key"
  [ ! -e "$stamp" ] || continue
  echo "== making .venv-$name: $wanted =="
  rm -rf ".venv-$name"
  "${PYTHON:-python3}" -m venv ".venv-$name"
  # shellcheck disable=SC2086  # several words on purpose
  ".venv-$name/bin/python" -m pip -qq --disable-pip-version-check install -c constraints-dev.txt $wanted
  touch "$stamp"
done
