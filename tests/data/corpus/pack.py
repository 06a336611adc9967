"""Packs what runs.sh made: python tests/data/corpus/pack.py FOLDER writes records.tar.xz beside
this file.

Files that reports do not read stay behind. Names and paths of the machine are replaced. Numbers
keep four digits, in tables ten bits. In two folders no foreign load is left, for the machine was
never quiet and no verdict would be given. Some have the first three rounds only.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

QUIET, SHORT = (
    {"three-arms", "micro-benchmark"},
    {"three-arms", "against", "failed-arm", "traced", "study", "tuning"},
)
ROUNDS = 3
KEPT = ("plan.yaml", "manifest.json", "record.json", "traces.json", "script.json.gz", ".parquet")
REPLACED = [
    (r"/tmp/wt/corpus-runs/results", "/home/user/ringside/results"),
    (r"/tmp/wt/corpus\b", "/home/user/ringside"),
    (r"(:/root/[^:\"]*)+", ""),
    (r"/root\b", "/home/user"),
    (r"/tmp/ringside-key-[^/\"]*", "/tmp/ringside-key"),
    (r"Linux [0-9][^ ]* ", "Linux 6.1.0 "),
    (r"\bvm\b", "node1"),
]


def plain(text: str) -> str:
    """Without what names the machine."""
    for pattern, other in REPLACED:
        text = re.sub(pattern, other, text)
    return text


def packed(path: Path, content: bytes) -> bytes:
    """What is kept of a file, so that it compresses well."""
    if path.suffix == ".yaml":
        return plain(content.decode()).encode()
    if path.suffix == ".parquet":
        return parquet(shortened(path, pq.read_table(io.BytesIO(content))))
    is_packed = path.suffix == ".gz"
    text = (gzip.decompress(content) if is_packed else content).decode()
    found = json.loads(plain(text), parse_float=lambda number: float(f"{float(number):.4g}"))
    for block in found.get("blocks", []) if QUIET & {*path.parts} else []:
        block["foreign_share"] = 0.0
    if path.name == "record.json" and SHORT & {*path.parts}:
        found["blocks"] = [block for block in found["blocks"] if block["round"] < ROUNDS]
    written = json.dumps(found, separators=(",", ":")).encode()
    return gzip.compress(written, compresslevel=0, mtime=0) if is_packed else written


def shortened(path: Path, table: pa.Table) -> pa.Table:
    """The rows of the rounds that are kept."""
    if not SHORT & {*path.parts}:
        return table
    kept = [
        block["turn"]
        for block in json.loads(path.with_name("record.json").read_text())["blocks"]
        if block["round"] < ROUNDS
    ]
    return table.filter(
        pa.array([turn is None or turn in kept for turn in table["turn"].to_pylist()])
    )


def parquet(table: pa.Table) -> bytes:
    """A table without compression of its own."""
    for number, column in enumerate(table.schema):
        if pa.types.is_floating(column.type):
            mantissa, exponent = np.frexp(table[number].to_numpy())
            table = table.set_column(
                number, column, pa.array(np.ldexp(np.round(mantissa * 1024) / 1024, exponent))
            )
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            texts = [text if text is None else plain(text) for text in table[number].to_pylist()]
            table = table.set_column(number, column, pa.array(texts, type=column.type))
    buffer = io.BytesIO()
    split = [column.name for column in table.schema if pa.types.is_floating(column.type)]
    pq.write_table(
        table,
        buffer,
        compression="NONE",
        use_dictionary=False,
        use_byte_stream_split=split,
        write_statistics=False,
    )
    return buffer.getvalue()


def main(root: Path) -> None:
    """Write the archive; alike files stand together in it."""
    paths = [path for path in root.rglob("*") if path.name.endswith(KEPT)]
    with tarfile.open(
        Path(__file__).with_name("records.tar.xz"), "w:xz", preset=9, format=tarfile.USTAR_FORMAT
    ) as archive:
        for path in sorted(paths, key=lambda path: (path.suffix, path.name, path)):
            content = packed(path, path.read_bytes())
            entry = tarfile.TarInfo(str(path.relative_to(root)))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
