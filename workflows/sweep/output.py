"""The files of a study that sum it up: ``points.csv`` and ``study.html``."""

from __future__ import annotations

import csv
import io

from stampede import StampedeError
from stampede.workflows.page import write
from stampede.workflows.sweep.page import study_page
from stampede.workflows.sweep.table import StudyTable, row_of_point

POINTS = "points.csv"
PAGE = "study.html"


def write_outputs(table: StudyTable) -> None:
    """Write what sums up a study into its folder.

    Raises
    ------
    StampedeError
        The folder cannot be written.
    """
    text = io.StringIO()
    rows = [row_of_point(point) for point in table.points]
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    file = table.study.path / POINTS
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        unfinished.write_text(text.getvalue(), "utf-8")
        unfinished.replace(file)
    except OSError as error:
        raise StampedeError(f"cannot write {file}: {error.strerror}") from error
    write(study_page(table), table.study.path / PAGE)
