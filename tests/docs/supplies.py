"""What a page may find in its folder: small, made once by the real commands, then copied."""

from __future__ import annotations

import fcntl
import gzip
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"
HEADER = "request_id,when,clicked,price,age,site,ad\n"


def criteo_text(rows: int) -> str:
    """Return real Criteo rows."""
    with gzip.open(DATA / "criteo_9k.tsv.gz", "rt") as lines:
        return "".join(next(lines) for _ in range(rows))


def own_log(hours: int, *, day: str, bad: bool = False) -> str:
    """Return a log in the shape of the schema in the how-to, with an effect of the ad on the click."""
    lines = []
    for number in range(hours * 60):
        hour, minute = divmod(number, 60)
        ad, site = number * 7 % 11, number * 5 % 13
        clicked = int((number * 31 + ad * ad) % 17 < ad)
        price = "abc" if bad and number == 1 else f"{number % 97 / 7:.2f}"
        lines.append(
            f"r{number},{day} {hour:02}:{minute:02}:00,{clicked},{price},{18 + number % 50},s{site},ad{ad}"
        )
    return HEADER + "\n".join(lines) + "\n"


class Supplies:
    """Makes each thing when it is first asked for.

    Parameters
    ----------
    folder:
        Where they are kept.
    environment:
        Of the commands; it has ``stampede`` on its PATH.
    """

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment
        self.makers: dict[str, Callable[[], None]] = {
            "train.txt": lambda: self._write("train.txt", criteo_text(6000)),
            "new_rows.txt": lambda: self._write("new_rows.txt", criteo_text(300)),
            "log.gz": lambda: self._write("log.gz", criteo_text(300)),
            "mylog": self._own_logs,
            "data/criteo": lambda: self._run(
                "stampede prepare criteo train.txt --recipe small --valid-fraction 0.1 --out data/criteo",
                needs=("train.txt",),
            ),
            "runs/deepfm": lambda: self._train("deepfm"),
            "runs/dcn-v2": lambda: self._train("dcn-v2"),
        }

    def give(self, name: str, to: Path) -> None:
        """Copy a thing into a folder."""
        if name not in self.makers:
            raise KeyError(f"nothing is called {name}: {', '.join(self.makers)}")
        source = self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes that share them, one makes them
            if not source.exists():
                self.makers[name]()
        if source.is_dir():
            whole = name == "mylog"  # its files go into the folder itself
            shutil.copytree(source, to if whole else to / name, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(source, to / name)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text)

    def _own_logs(self) -> None:
        for day in ("2026-10-01", "2026-10-02", "2026-10-10"):
            self._write(f"mylog/logs/{day}.csv.gz", own_log(24, day=day))
        self._write("mylog/logs/2027-01-01.csv.gz", own_log(2, day="2027-01-01"))
        self._write("mylog/bad.csv", own_log(24, day="2026-10-01", bad=True))

    def _train(self, model: str) -> None:
        self._run(
            f"stampede train data/criteo --recipe small --model {model} --epochs 2 --threads 1 "
            f"--out runs/{model}",
            needs=("data/criteo",),
        )

    def _run(self, command: str, *, needs: tuple[str, ...] = ()) -> None:
        for name in needs:
            if not (self.folder / name).exists():
                self.makers[name]()
        subprocess.run(
            ["bash", "-euc", command], cwd=self.folder, env=self.environment, check=True, capture_output=True
        )
