"""Safetensors files, single or sharded: a JSON table of extents, then bytes."""

import json
from pathlib import Path

from rillm.checkpoint.mapped import MappedFile, Tensor
from rillm.checkpoint.prefixes import is_never_read, other_part, text_name
from rillm.errors import (
    MalformedFile,
    MissingShard,
    MissingTensor,
    ModelNotFound,
    UnsupportedTensorKind,
)

_KINDS = ("F32", "F16", "BF16")  # the dtypes that are read: both formats call them so
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_SINGLE = "model.safetensors"


def files_of(folder: Path) -> dict[Path, set[str] | None]:
    """The weight files of a folder, each with the tensor names to take from it (None: all).

    Raises
    ------
    ModelNotFound
        The folder holds no safetensors.
    MissingShard
        Files that the index names are not there.
    MalformedFile
        The index is no index, or there are several files and no index.
    """
    single, index = folder / _SINGLE, folder / f"{_SINGLE}.index.json"
    if single.is_file():
        return {single: None}
    if index.is_file():
        return _indexed(index)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) > 1:
        raise MalformedFile(
            f"{folder}: {len(files)} safetensors files, but no {index.name} to say what they hold"
        )
    if not files:
        raise ModelNotFound(
            f"{folder}: no *.safetensors file; other formats (.bin, .pt) are not read: convert "
            "with transformers' save_pretrained"
        )
    return {files[0]: None}


def read_tensors(folder: Path) -> tuple[dict[str, Tensor], dict[str, int]]:
    """All tensors by name, and a count by prefix of those left out (vision, audio).

    Every file is there, and every header agrees with its file's size, before this returns.
    Errors: those of `files_of`; TruncatedFile, MalformedFile; MissingTensor for one that the index
    names and its file lacks; UnsupportedTensorKind.
    """
    tensors: dict[str, Tensor] = {}
    skipped: dict[str, int] = {}
    for path, wanted in files_of(folder).items():
        file = MappedFile(path)
        extents, _ = read_header(file)
        if wanted is not None and (missing := sorted(wanted - extents.keys())):
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise MissingTensor(
                f"{path}: lacks {missing[0]}{more}, which the index places there; fetch it again"
            )
        for name in extents if wanted is None else wanted:
            dtype, shape, start, end = extents[name]
            if is_never_read(name):
                continue
            if prefix := other_part(name):
                skipped[prefix] = skipped.get(prefix, 0) + 1
                continue
            if dtype not in _KINDS:
                raise UnsupportedTensorKind(
                    f"{path}: tensor {name}: dtype {dtype}, expected one of {', '.join(_KINDS)}"
                )
            tensor = file.tensor(name, dtype, shape, start)
            if tensor.data.size != end - start:
                raise MalformedFile(
                    f"{path}: tensor {name}: {dtype} of shape {list(shape)} takes "
                    f"{tensor.data.size} bytes, but data_offsets give it {end - start}"
                )
            if (same := tensors.setdefault(text_name(name), tensor)) is not tensor:
                raise MalformedFile(
                    f"{path}: tensors {same.name} and {name} are both {text_name(name)} of the "
                    "language model"
                )
    return tensors, skipped


def _indexed(index: Path) -> dict[Path, set[str] | None]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        items = list(weight_map.items())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise MalformedFile(f"{index}: expected a JSON object with a weight_map") from error
    files: dict[Path, set[str] | None] = {}
    for name, file in items:
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            raise MalformedFile(
                f"{index}: weight_map[{name!r}] is {file!r}, expected the name of a file beside it"
            )
        files.setdefault(index.parent / file, set()).add(name)
    if missing := sorted(path.name for path in files if not path.is_file()):
        raise MissingShard(
            f"{index}: names {', '.join(missing)}, not found in {index.parent}; fetch "
            f"{'them' if missing[1:] else 'it'} again"
        )
    return files


def read_header(
    file: MappedFile,
) -> tuple[dict[str, tuple[str, tuple[int, ...], int, int]], dict[str, str]]:
    """(dtype, shape, first byte, end) of each tensor, and the metadata.

    Every extent lies inside the file, and none overlaps another.
    """

    def malformed(why: str) -> MalformedFile:
        return MalformedFile(f"{file.path}: {why}")

    header_start = file.end_of(0, 8, 1, "the length of the header")
    header_bytes = int.from_bytes(file.map[:header_start], "little")
    if file.map[header_start : header_start + 1] != b"{" or header_bytes > _MAX_HEADER_BYTES:
        raise malformed("no safetensors header: expected 8 bytes of length and a JSON object")
    data_start = file.end_of(header_start, header_bytes, 1, "the header")
    try:
        table = json.loads(file.map[header_start:data_start], object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise malformed(f"the header is no valid JSON ({error})") from error
    metadata = table.pop("__metadata__", {})
    if type(metadata) is not dict or any(type(value) is not str for value in metadata.values()):
        raise malformed(f"__metadata__ is {metadata!r}, expected an object of strings")
    extents = {}
    for name, entry in table.items():
        try:
            dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
            begin, end = offsets
            ok = all(type(n) is int and n >= 0 for n in (*shape, begin, end)) and begin <= end
        except (TypeError, KeyError, ValueError):
            ok = False
        if not ok:
            raise malformed(
                f"tensor {name}: expected dtype, shape and data_offsets [begin, end], got {entry!r}"
            )
        file.end_of(data_start, end, 1, f"tensor {name}")
        extents[name] = dtype, tuple(shape), data_start + begin, data_start + end
    place = data_start
    for name, (_, _, start, end) in sorted(extents.items(), key=lambda item: item[1][2:]):
        if start != place:
            raise malformed(f"tensor {name} starts at byte {start}, expected {place} (no gaps)")
        place = end
    if place != file.n_bytes:
        raise malformed(f"{file.n_bytes - place} bytes after the last tensor")
    return extents, metadata


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key comes twice")
    return table
