"""How a file is written does not matter where it can be read, and is said in one line where it cannot."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest
import zstandard
from tests.pipeline.logs import (
    KEEP_ALL,
    SKIP,
    SMALL,
    assert_same_dataset,
    good_rows,
    parts,
    prepare_lines,
    refusal,
    rejected,
    values,
    write,
)

from stampede import InputError
from stampede.pipeline import Dataset, PrepareOptions, Schema, prepare
from stampede.pipeline.rawtext import numbered_lines
from stampede.pipeline.sources import resolve_inputs

ROWS = good_rows(60)
TSV = "".join(f"{row}\n" for row in ROWS).encode()
CSV = TSV.replace(b"\t", b",")
HEADER = b"y,n,m,a,b\n"
BOM = "\ufeff".encode()
OPTIONS = PrepareOptions(min_count=1)


def from_files(folder: Path, files: Sequence[Path | str], schema: Schema = SMALL) -> Dataset:
    return prepare(schema, files, folder / "out", options=OPTIONS, force=True)


@pytest.fixture
def plain(tmp_path: Path) -> Dataset:
    """The rows as one plain file gives them."""
    file = tmp_path / "plain"
    file.write_bytes(TSV)
    return prepare(SMALL, [file], tmp_path / "plain.out", options=OPTIONS)


def quoted(text: bytes) -> bytes:
    return b"\n".join(b",".join(b'"' + f + b'"' for f in line.split(b",")) for line in text.splitlines())


def permuted(text: bytes, order: Sequence[int]) -> bytes:
    return b"".join(b",".join([line.split(b",")[i] for i in order]) + b"\n" for line in text.splitlines())


WIDER = b"y,n,m,a,b,id\n" + CSV.replace(b"\n", b",7\n")

NOTHING = gzip.compress(b"", mtime=0)

WRITTEN: dict[str, bytes] = {
    "CRLF": TSV.replace(b"\n", b"\r\n"),
    "CRLF and LF mixed": TSV.replace(b"\n", b"\r\n", 7),
    "no last line end": TSV.removesuffix(b"\n"),
    "CRLF without the last line end": TSV.replace(b"\n", b"\r\n").removesuffix(b"\r\n"),
    "blank lines": b"\n\n" + TSV.replace(b"\n", b"\n\n", 9) + b"\n\n\n",
    "lines of spaces": b"   \n" + TSV + b"  \r\n",
    "byte order mark": BOM + TSV,
    "byte order mark and a blank line": BOM + b"\r\n" + TSV,
    "tabs with a header": HEADER.replace(b",", b"\t") + TSV,
    "commas": CSV,
    "semicolons": CSV.replace(b",", b";"),
    "bars": CSV.replace(b",", b"|"),
    "commas with a header": HEADER + CSV,
    "byte order mark and a header": BOM + HEADER + CSV,
    "blank lines before the header": b"\n \n\r\n" + HEADER + CSV,
    "byte order mark, blank line, header": BOM + b"\n" + HEADER + CSV,
    "header of other case": HEADER.upper() + CSV,
    "header with spaces": b" y , n,m ,a,  b \n" + CSV,
    "header in quotes": b'"y","n","m","a","b"\n' + CSV,
    "header and fields in quotes, CRLF": quoted(HEADER + CSV).replace(b"\n", b"\r\n"),
    "some fields in quotes": HEADER + CSV.replace(b"a1", b'"a1"'),
    "columns in another order": permuted(HEADER + CSV, [3, 1, 4, 0, 2]),
    "columns that are not used": permuted(WIDER, [5, 3, 1, 5, 4, 0, 2]),
    "a column that is not used, its name has a separator": HEADER.replace(b"\n", b',"x,z"\n')
    + CSV.replace(b"\n", b",7\n"),
    "gzip": gzip.compress(TSV, mtime=0),
    "gzip of two members": gzip.compress(TSV[:500], mtime=0) + gzip.compress(TSV[500:], mtime=0),
    "gzip with an empty member": NOTHING + gzip.compress(TSV, mtime=0) + NOTHING,
    "gzip of a CSV with a byte order mark and a header": gzip.compress(BOM + HEADER + CSV, mtime=0),
    "zstd": zstandard.compress(TSV),
    "zstd of two frames": zstandard.compress(TSV[:500]) + zstandard.compress(TSV[500:]),
}  # fmt: skip


@pytest.mark.parametrize("name", ["log.tsv", "log.gz", "log.zst", "log"])
@pytest.mark.parametrize("way", ["gzip", "zstd", "CRLF"])
def test_a_file_is_read_by_its_content_whatever_its_name(
    way: str, name: str, plain: Dataset, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(WRITTEN[way])

    assert_same_dataset(from_files(tmp_path, [tmp_path / name]), plain)


@pytest.mark.parametrize("way", WRITTEN)
def test_a_log_gives_the_same_dataset_however_it_is_written(way: str, plain: Dataset, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(WRITTEN[way])

    assert_same_dataset(from_files(tmp_path, [tmp_path / "log"]), plain)


@pytest.mark.parametrize("cuts", [[30], [1, 2, 30, 59]])
@pytest.mark.parametrize("way", ["plain", "byte order mark", "header", "gzip", "zstd", "mixed", "parquet"])
def test_a_log_in_several_files_gives_the_same_dataset(
    way: str, cuts: list[int], plain: Dataset, tmp_path: Path
) -> None:
    writers: dict[str, Callable[[bytes], bytes]] = {
        "plain": lambda text: text,
        "byte order mark": lambda text: BOM + text,
        "header": lambda text: HEADER + text.replace(b"\t", b","),
        "gzip": gzip.compress,
        "zstd": zstandard.compress,
        "parquet": parquet,
    }
    files = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, 60], strict=True)):
        text = "".join(f"{row}\n" for row in ROWS[start:end]).encode()
        chosen = list(writers)[number] if way == "mixed" else way
        files.append(tmp_path / f"part-{number}")
        files[-1].write_bytes(writers[chosen](text))

    by_name = from_files(tmp_path, files)
    assert_same_dataset(by_name, plain)
    assert_same_dataset(from_files(tmp_path, [f"{tmp_path}/part-*"]), plain)


def parquet(text: bytes) -> bytes:
    types = {"y": pl.Int64, "n": pl.Int32, "m": pl.Float64, "a": pl.String, "b": pl.Categorical}
    frame = pl.read_csv(
        text, separator="\t", has_header=False, new_columns=list(types), schema_overrides=types
    )
    frame.select("b", "m", "a", "n", "y").write_parquet(file := io.BytesIO(), row_group_size=7)
    return file.getvalue()


PREPARE = """
import sys
from stampede.pipeline import DenseMode, PrepareOptions, Schema, prepare
schema = Schema(name="small", label="y", dense=("n", "m"), categorical=("a", "b"))
prepare(schema, sys.argv[2:], sys.argv[1], options=PrepareOptions(dense_mode=DenseMode.STANDARD))
"""


def test_a_dataset_does_not_depend_on_threads_or_files(tmp_path: Path) -> None:
    rows = [f"{i % 3 % 2}\t{i}\t{i**0.5!r}\ta{i * i % 977}\tb{i % 31}" for i in range(250_000)]
    whole = write(tmp_path / "whole", rows)
    cuts = [write(tmp_path / f"cut{i}", rows[i * 60_000 : (i + 1) * 60_000]) for i in range(5)]
    datasets = []
    for threads, files in (("1", [whole]), ("2", [whole]), ("5", cuts)):
        out = tmp_path / f"out{threads}"
        environment = os.environ | {"POLARS_MAX_THREADS": threads}
        subprocess.run([sys.executable, "-c", PREPARE, out, *files], env=environment, check=True)
        datasets.append(Dataset.open(out))

    assert len({dataset.fingerprint for dataset in datasets}) == 1
    assert_same_dataset(datasets[0], datasets[1])
    assert_same_dataset(datasets[0], datasets[2])
    for frame in parts(datasets[0]).values():
        assert frame["n"].is_sorted()


def test_names_with_wildcard_characters_are_taken_as_they_are(plain: Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "a[1] *" / "label=3"
    folder.mkdir(parents=True)
    (folder / "log?.tsv").write_bytes(TSV)
    (folder / "log[1].parquet").write_bytes(parquet(TSV))

    for name in ("log?.tsv", "log[1].parquet"):
        dataset = prepare(SMALL, [folder / name], folder / "out*", options=OPTIONS, force=True)
        assert_same_dataset(dataset, plain)
        assert_same_dataset(Dataset.open(folder / "out*"), plain)


def test_empty_files_among_others_add_no_row(plain: Dataset, tmp_path: Path) -> None:
    contents = [b"", TSV[: TSV.index(b"\n") + 1], b"\n  \n", HEADER, NOTHING, BOM]
    contents += [TSV[TSV.index(b"\n") + 1 :], zstandard.compress(b""), b"\n"]
    files = [tmp_path / f"{number}.tsv" for number in range(len(contents))]
    for file, content in zip(files, contents, strict=True):
        file.write_bytes(content)

    assert_same_dataset(from_files(tmp_path, files), plain)


@pytest.mark.parametrize("content", [b"", b"\n", b"  \r\n\n", BOM, HEADER, HEADER * 1 + b"\n", NOTHING])
def test_a_log_without_a_row_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(content)

    error = refusal(tmp_path, [tmp_path / "log"], error=InputError)

    assert str(error) == f"{tmp_path}/log: there is no row in it"


LARGE = b"".join(b"%d\t%d\t%d\ta%d\tb\n" % (i % 2, i, i * i, i * 7919 % 10007) for i in range(20_000))


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(byte ^ 0xFF for byte in content[middle : middle + 30])
        + content[middle + 30 :]
    )


UNREADABLE: dict[str, tuple[bytes, str]] = {
    "gzip cut in the middle": (gzip.compress(LARGE, mtime=0)[:-20_000], "damaged or truncated archive"),
    "gzip without its last bytes": (gzip.compress(LARGE, mtime=0)[:-4], "damaged or truncated archive"),
    "gzip of the magic number alone": (b"\x1f\x8b", "damaged or truncated archive"),
    "gzip with a wrong check sum": (
        gzip.compress(TSV, mtime=0)[:-8] + bytes(8),
        "damaged or truncated archive",
    ),
    "gzip damaged in the middle": (flipped(gzip.compress(LARGE, mtime=0)), "damaged or truncated archive"),
    "gzip followed by other bytes": (gzip.compress(TSV, mtime=0) + b"more", "damaged or truncated archive"),
    "zstd cut in the middle": (zstandard.compress(LARGE)[:-20_000], "damaged or truncated archive"),
    "zstd without its last bytes": (zstandard.compress(LARGE)[:-3], "damaged or truncated archive"),
    "zstd of the magic number alone": (b"\x28\xb5\x2f\xfd", "damaged or truncated archive"),
    "zstd damaged in the middle": (flipped(zstandard.compress(LARGE)), "damaged or truncated archive"),
    "zstd cut, and not UTF-8 before": (zstandard.compress(b"\xff\n" + LARGE)[:-20_000], "damaged"),
    "bzip2": (bz2.compress(TSV), "a bzip2 archive: unpack it"),
    "xz": (lzma.compress(TSV), "an xz archive: unpack it"),
    "zip": (b"PK\x03\x04" + TSV, "a zip archive: unpack it"),
    "UTF-16": (TSV.decode().encode("utf-16"), "the text is UTF-16: convert it to UTF-8"),
    "UTF-16 in gzip": (gzip.compress(TSV.decode().encode("utf-16")), "the text is UTF-16"),
    "UTF-16 without its mark": (TSV.decode().encode("utf-16-le"), r"'1\x00' is not a label"),
    "parquet cut at its end": (parquet(TSV)[:-10], "damaged parquet file"),
    "parquet of the magic number alone": (b"PAR1", "damaged parquet file"),
    "parquet with a damaged footer": (flipped(parquet(TSV)[:-100]) + parquet(TSV)[-100:], "damaged"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_damaged_or_foreign_file_is_refused_whole_even_where_bad_rows_are_skipped(
    kind: str, tmp_path: Path
) -> None:
    content, reason = UNREADABLE[kind]
    (tmp_path / "log").write_bytes(content)
    good = write(tmp_path / "good", ROWS)

    for options in (KEEP_ALL, SKIP):
        if kind == "UTF-16 without its mark" and options is SKIP:
            continue
        error = refusal(tmp_path, [good, tmp_path / "log"], options=options, error=InputError)
        assert error.file == str(tmp_path / "log")
        assert reason in str(error)


def test_numbers_in_the_names_of_a_pattern_count_as_numbers(tmp_path: Path) -> None:
    for day in (10, 2, 1, 0, 11):
        write(tmp_path / f"day_{day}.txt", good_rows(1))
    (tmp_path / "day_last.txt").write_text("")
    found = [path.name for path in resolve_inputs([str(tmp_path / "day_*.txt")])]
    assert found == [*(f"day_{day}.txt" for day in (0, 1, 2, 10, 11)), "day_last.txt"]


def test_a_missing_file_a_folder_and_a_pattern_without_a_match_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    cases = {
        "missing.tsv": "no such file",
        "*.csv": "no file matches this pattern",
        "folder": "this is a folder; name its files",
        "pipe": "not a regular file",
        "link": "no such file",
        "": "this is a folder",
    }
    for name, reason in cases.items():
        error = refusal(tmp_path, [write(tmp_path / "good", ROWS), tmp_path / name], error=InputError)
        assert error.file == str(tmp_path / name)
        assert reason in str(error)
    assert "no input file" in str(refusal(tmp_path, []))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    error = refusal(tmp_path, ["/proc/self/mem"], error=InputError)  # reading its start fails, for root too

    assert str(error).startswith("/proc/self/mem: cannot read it: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    log = write(tmp_path / "log.tsv", ROWS)
    log.chmod(0)

    assert "cannot read it: Permission denied" in str(refusal(tmp_path, [log], error=InputError))


def test_a_file_that_vanishes_while_others_are_read_is_named(tmp_path: Path) -> None:
    first, second = write(tmp_path / "1.tsv", ROWS), write(tmp_path / "2.tsv", ROWS)

    class Vandal:
        def start(self, stage: str, total: int | None) -> None:
            second.unlink()

        def advance(self, rows: int) -> None:
            pass

    with pytest.raises(InputError, match=r"2\.tsv: cannot read it: No such file or directory"):
        prepare(SMALL, [first, second], tmp_path / "out", progress=Vandal())
    assert not (tmp_path / "out").exists()


def test_a_column_that_the_header_lacks_or_names_twice_is_named(tmp_path: Path) -> None:
    cases = [
        (b"y,n,m,a,a,b", "a", "the header names this column twice"),
        (b"y,n,m,A,A,b", "a", "the header names this column twice"),
        (b"y,n,m,a", "b", "the header does not name this column"),
        (b"click,n,m,a,b", "y", "the header does not name this column"),
        (b"y,other,names,than,known", "n", "the header does not name this column"),
    ]
    for number, (header, column, reason) in enumerate(cases):
        log = write(tmp_path / f"{number}.csv", ["", header, b"1,2,3,4,5,6"])
        error = refusal(tmp_path, [log], error=InputError)
        assert (error.file, error.line, error.column) == (str(log), 2, column)
        assert reason in str(error)


def test_names_of_another_case_are_columns_only_where_none_is_exact(tmp_path: Path) -> None:
    dataset = prepare_lines(tmp_path, ["Y,N,m,A,a,B,b", "1,2,3,x,a1,y,b1"])

    assert values(dataset, "a") == {"a1": 1}
    assert values(dataset, "b") == {"b1": 1}


def test_the_schema_overrules_what_a_file_looks_like(tmp_path: Path) -> None:
    schema = SMALL.model_copy(update={"header": False, "separator": ","})
    log = write(tmp_path / "log", ["y,n,m,a,b", "1,2,3,a\t1,b"])
    assert refusal(tmp_path, [log], schema=schema).line == 1

    schema = SMALL.model_copy(update={"header": True, "separator": ","})
    dataset = prepare(schema, [log], tmp_path / "out", options=KEEP_ALL)
    assert values(dataset, "a") == {"a\t1": 1}


def test_a_tab_separated_file_gives_quotes_and_commas_no_meaning(tmp_path: Path) -> None:
    lines = ['1\t1\t1\t"a\tb"', "1\t1\t1\ta,b,c\t,,,,,,", '1\t1\t1\t"\t""']
    dataset = prepare_lines(tmp_path, lines)

    assert values(dataset, "a") == {'"a': 1, "a,b,c": 1, '"': 1}
    assert values(dataset, "b") == {'b"': 1, ",,,,,,": 1, '""': 1}


def test_a_short_first_row_does_not_hide_how_the_file_is_written(tmp_path: Path) -> None:
    error = refusal(tmp_path, [write(tmp_path / "log", ["1,2", *CSV.decode().splitlines()])])

    assert (error.line, str(error).count("2 fields where 5")) == (1, 1)


def test_a_very_long_line_is_a_row(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    dataset = prepare_lines(tmp_path, [*ROWS, f"1\t1\t1\t{long}\t{long}", *ROWS])

    assert values(dataset, "a")[long] == 1
    lines = [f'1,1,1,"{long}",b', '1,1,1,"a",b']
    assert values(prepare_lines(tmp_path, lines), "a")[long] == 1


def test_lines_end_at_a_line_feed_alone(tmp_path: Path) -> None:
    text = "1\t1\t1\ta\rb\x0b\x0c\x1c\x85\u2028\t\r\rc\r"
    file = write(tmp_path / "log", [text, *ROWS])

    dataset = prepare(SMALL, [file], tmp_path / "out", options=SKIP)

    assert not rejected(dataset)
    assert values(dataset, "a")["a\rb\x0b\x0c\x1c\x85\u2028"] == 1
    assert values(dataset, "b")["\r\rc"] == 1
    assert sum(1 for _ in numbered_lines(file)) == parts(dataset)["train"].height


@pytest.mark.parametrize(
    "separator", [" ", ";", "|", "^", "]", "-", "\\", "~", "#", "&", ".", "é", "\x01", "'"]
)
def test_any_character_may_separate_fields_that_are_quoted_or_not(separator: str, tmp_path: Path) -> None:
    schema = Schema(name="s", label="y", categorical=("a", "b"), separator=separator, header=False)
    lines = [
        ["1", "x", "y"],
        ["1", '"x"', '"y"'],
        ["1", f'"x{separator}"', "y"],
        ["1", '"x""', "y"],
        ["1", "", '""'],
    ]
    dataset = prepare_lines(tmp_path, [separator.join(f) for f in lines], schema=schema, options=SKIP)

    assert values(dataset, "a") == {"x": 2, f"x{separator}": 1}
    assert values(dataset, "b") == {"y": 3}
    assert [row["line"] for row in rejected(dataset)] == [4]
