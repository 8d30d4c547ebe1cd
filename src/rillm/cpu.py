"""How many threads pay, and how much memory is free, within what this process is allowed.

A barrier waits for its slowest thread. So the default is one thread a physical performance core,
and never more than the cgroup's quota: over it a thread is put to sleep and all others
wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_THREADS = 256  # of the engine's pool
_PERFORMANCE_SHARE = 0.75  # a core of this share of the greatest cpu_capacity still keeps up


@dataclass(frozen=True)
class Threads:
    """A number of threads, and in words why this number."""

    count: int
    why: str


def default_threads(root: Path = Path("/"), affinity: set[int] | None = None) -> Threads:
    """The number of threads for a model: RILLM_THREADS, else what the machine leaves this process.

    Parameters
    ----------
    root : Path
        Where /proc and /sys are looked up.
    affinity : set of int, optional
        The CPUs this process may run on; default: as the operating system says.

    Returns
    -------
    Threads
        count = min(physical performance cores in the affinity, floor(cgroup quota)), at least 1.

    Raises
    ------
    ValueError
        RILLM_THREADS is set and is not a whole number from 1 to 256.
    """
    if wish := os.environ.get("RILLM_THREADS", "").strip():
        if not (wish.isascii() and wish.isdigit() and 1 <= int(wish) <= MAX_THREADS):
            raise ValueError(
                f"RILLM_THREADS is {wish!r}: expected a whole number from 1 to {MAX_THREADS}; "
                "unset it to let rillm choose"
            )
        return Threads(int(wish), f"RILLM_THREADS={wish}")
    if affinity is None:
        affinity = _affinity()
    cores = _physical_cores(root, _performance_cpus(root, affinity))
    why = f"{cores} physical performance cores among {len(affinity)} allowed CPUs"
    quota = cpu_quota(root)
    if quota is not None and int(quota) < cores:
        return Threads(max(1, int(quota)), f"cgroup quota of {quota:g} CPUs ({why})")
    return Threads(cores, why)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """The smallest CPU quota from this process's cgroup up to the root, in CPUs; None: no quota."""
    quotas = []
    for folder in _cgroups(root, "cpu"):
        if words := _read(folder / "cpu.max").split():
            limit, period = words[0], words[1] if len(words) > 1 else "100000"
        else:
            limit = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us") or "100000"
        if limit.isdigit() and period.isdigit() and int(period) > 0:  # not "max", not "-1"
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes this process can still take: MemAvailable, bounded by each cgroup's limit.

    A cgroup counts the page cache as used; the kernel gives it back on demand: here it is free.
    """
    free = _fields(root / "proc/meminfo").get("MemAvailable:", 0) * 1024
    if not free:
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in _cgroups(root, "memory"):
        for limit_name, used_name, prefix in (
            ("memory.max", "memory.current", ""),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
        ):
            limit, used = _read(folder / limit_name), _read(folder / used_name)
            if limit.isdigit():
                stat = _fields(folder / "memory.stat")
                cached = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
                in_use = max(0, int(used or 0) - cached)
                free = min(free, max(0, int(limit) - in_use))
    return free


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def _performance_cpus(root: Path, cpus: set[int]) -> set[int]:
    """The fast ones of `cpus` on a hybrid part, else all of them."""
    system = root / "sys/devices"
    if fast := cpus & _cpu_list(_read(system / "cpu_core/cpus")):  # Intel: the PMU of the P-cores
        return fast
    capacity = {}
    for cpu in cpus:
        text = _read(system / f"system/cpu/cpu{cpu}/cpu_capacity")
        capacity[cpu] = int(text) if text.isdigit() else 0
    floor = _PERFORMANCE_SHARE * max(capacity.values(), default=0)
    return {cpu for cpu in cpus if capacity[cpu] >= floor}


def _physical_cores(root: Path, cpus: set[int]) -> int:
    cores = set()
    for cpu in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
        siblings = _cpu_list(_read(topology / "thread_siblings_list"))
        cores.add(min(siblings | {cpu}))
    return max(1, len(cores))


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup folders, its own first, up to the root; of version 2 and version 1."""
    own = {}  # version 2 is the line with no controllers: "0::/user.slice"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    for kind, mounted, folder in _cgroup_mounts(root, controller):
        path = own.get("" if kind == "cgroup2" else controller, "/")
        if mounted != "/":  # a container sees only its own part of the tree, under the mount point
            path = path.removeprefix(mounted)
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield folder.joinpath(*parts[:depth])


def _cgroup_mounts(root: Path, controller: str) -> list[tuple[str, str, Path]]:
    """(file system type, part of the tree that is mounted, mount point) of each cgroup mount."""
    mounts = []
    for line in _read(root / "proc/self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        kind, _, options = [*tail.split(), "", "", ""][:3]
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            mounted, point = head.split()[3:5]
            mounts.append((kind, mounted, root / point.lstrip("/")))
    usual = root / "sys/fs/cgroup"
    return mounts or [("cgroup2", "/", usual), ("cgroup", "/", usual / controller)]


def _cpu_list(text: str) -> set[int]:
    """The CPUs of a kernel list such as "0-3,8"."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _fields(path: Path) -> dict[str, int]:
    """Lines "name number ..." as a dict."""
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _read(path: Path) -> str:
    """The stripped text of a file; empty when there is no such file or it may not be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
