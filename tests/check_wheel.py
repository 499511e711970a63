"""Check a built wheel: it holds every file it needs, and its command answers with nothing of the checkout.

Usage: python tests/check_wheel.py DIST
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NEEDED = (
    "stampede/__init__.py",
    "stampede/py.typed",
    "stampede/cli/app.py",
    "stampede/kernels/cuda/lanes.cuh",
    "stampede/kernels/cuda/update.cu",
    "stampede/kernels/reference/clip.py",
    "stampede/pipeline/presets/criteo.toml",
    "stampede/pipeline/presets/avazu.toml",
    "stampede/pipeline/nvtabular_worker.py",
    "stampede/training/trainer.py",
    "stampede/workflows/recipes/criteo.toml",
    "stampede/workflows/recipes/avazu.toml",
    "stampede/workflows/recipes/small.toml",
)


def main(dist: Path) -> None:
    """Raise SystemExit with a reason where the wheel in ``dist`` is not whole."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        names = set(archive.namelist())
        if missing := [name for name in NEEDED if name not in names]:
            raise SystemExit(f"{wheel.name} lacks {', '.join(missing)}")
        if not any(name.endswith("/LICENSE") for name in names):
            raise SystemExit(f"{wheel.name} lacks the license")
        archive.extractall(folder)
        code = (
            f"import sys; sys.path.insert(0, {folder!r}); from stampede.cli import main; main(sys.argv[1:])"
        )
        command = [
            sys.executable,
            "-c",
            code,
            "scale",
            "--recipe",
            "avazu",
            "--batch-size",
            "131072",
            "--json",
        ]
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if answer.returncode != 0 or '"l2": 0.00096' not in answer.stdout:
            raise SystemExit(f"the wheel's command failed: {answer.stdout}{answer.stderr}")
    print(f"{wheel.name} is whole")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
