"""Models split over several GGUF files, called name-00001-of-00003.gguf and so on."""

import re

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def parts_of(name: str) -> list[str]:
    """The names of all parts of the model of which `name` is a part, or `name` alone."""
    if (match := _PART.fullmatch(name)) is None:
        return [name]
    stem, _, count = match.groups()
    return [f"{stem}-{part:05}-of-{count}.gguf" for part in range(1, int(count) + 1)]


def first_parts(names: list[str]) -> list[str]:
    """Those by which a model is opened: whole files and first parts."""
    return [name for name in names if name in parts_of(name)[:1]]
