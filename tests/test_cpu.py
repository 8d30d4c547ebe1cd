"""The default number of threads and the free memory, on fake /proc and /sys trees."""

from pathlib import Path

import pytest

from rillm.cpu import cpu_quota, default_threads, free_memory_bytes

GiB = 1 << 30


@pytest.fixture(autouse=True)
def no_wish(monkeypatch):
    monkeypatch.delenv("RILLM_THREADS", raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cores(siblings: list[str]) -> dict[str, str]:
    """One thread_siblings_list a CPU."""
    return {
        f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": text
        for cpu, text in enumerate(siblings)
    }


@pytest.mark.parametrize(
    ("cpu_max", "expected"),
    [
        ("200000 100000", 2),
        ("765000 100000", 7),
        ("max 100000", 16),
        ("max", 16),
        ("50000 100000", 1),
    ],
)
def test_ollama_ollama_17916(tmp_path, cpu_max, expected):
    """H1: a quota of cpu.max bounds the threads, rounded down; "max" leaves the affinity."""
    write(tmp_path, {"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": cpu_max})
    assert default_threads(tmp_path, set(range(16))).count == expected


def test_the_affinity_bounds_the_threads(tmp_path):
    write(tmp_path, {"sys/fs/cgroup/cpu.max": "400000 100000"})
    assert default_threads(tmp_path, {3, 5}).count == 2


def test_the_smallest_quota_up_to_the_root_counts(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/cpu.max": "max 100000",
            "sys/fs/cgroup/a/cpu.max": "300000 100000",
            "sys/fs/cgroup/other/cpu.max": "100000 100000",
        },
    )
    threads = default_threads(tmp_path, set(range(8)))
    assert threads.count == 3
    assert "quota" in threads.why


@pytest.mark.parametrize(("quota", "expected"), [("250000", 2), ("-1", 8)])
def test_version_1_quota(tmp_path, quota, expected):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/docker/1\n0::/",
            "sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us": quota,
            "sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us": "100000",
        },
    )
    assert default_threads(tmp_path, set(range(8))).count == expected


def test_a_container_whose_mount_shows_only_its_own_part_of_the_tree(tmp_path):
    write(
        tmp_path,
        {
            "proc/self/cgroup": "4:cpu,cpuacct:/docker/1/sub",
            "proc/self/mountinfo": (
                "30 24 0:26 /docker/1 /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu\n"
                "31 24 0:27 / /proc rw - proc proc rw"
            ),
            "sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu,cpuacct/sub/cpu.cfs_period_us": "50000",
        },
    )
    assert cpu_quota(tmp_path) == 3.0


def test_ggml_org_llama_cpp_842_intel(tmp_path):
    """H4: 8 P-cores with two threads each and 12 E-cores, told apart by the P-cores' PMU."""
    p_cores = [f"{cpu - cpu % 2}-{cpu - cpu % 2 + 1}" for cpu in range(16)]
    e_cores = [str(cpu) for cpu in range(16, 28)]
    files = cores(p_cores + e_cores) | {
        "sys/devices/cpu_core/cpus": "0-15",
        "sys/devices/cpu_atom/cpus": "16-27",
    }
    write(tmp_path, files)
    assert default_threads(tmp_path, set(range(28))).count == 8
    assert default_threads(tmp_path, {0, 1, 2, 20}).count == 2
    assert default_threads(tmp_path, {20, 21, 22}).count == 3, "only E-cores allowed: all of them"


def test_ggml_org_llama_cpp_842_capacity(tmp_path):
    """H4: 8 fast and 12 slow cores, told apart by cpu_capacity."""
    files = {
        f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity": "1024" if cpu < 8 else "446"
        for cpu in range(20)
    }
    write(tmp_path, files)
    assert default_threads(tmp_path, set(range(20))).count == 8


def test_two_threads_of_one_core_count_once(tmp_path):
    write(tmp_path, cores(["0,2", "1,3", "0,2", "1,3"]))
    assert default_threads(tmp_path, {0, 1, 2, 3}).count == 2
    assert default_threads(tmp_path, {0, 2}).count == 1


def test_a_bare_tree_gives_the_affinity(tmp_path):
    assert default_threads(tmp_path, {0, 1, 2}).count == 3
    assert default_threads(tmp_path, set()).count == 1


def test_rillm_threads_overrides(tmp_path, monkeypatch):
    monkeypatch.setenv("RILLM_THREADS", "5")
    assert default_threads(tmp_path, {0}).count == 5


@pytest.mark.parametrize("wish", ["0", "-1", "two", "1.5", "1025", "²"])
def test_rillm_threads_is_checked(wish, monkeypatch):
    monkeypatch.setenv("RILLM_THREADS", wish)
    with pytest.raises(ValueError, match=r"RILLM_THREADS is .* from 1 to 256"):
        default_threads()


def test_this_machine_answers():
    assert default_threads().count >= 1
    assert free_memory_bytes() > 1 << 20


def test_free_memory_is_what_the_kernel_calls_available(tmp_path):
    write(tmp_path, {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB"})
    assert free_memory_bytes(tmp_path) == 8 * GiB


def test_free_memory_is_bounded_by_the_cgroup(tmp_path):
    """4 GiB allowed, 3 used, of which 1 + 0.5 are page cache: 2.5 GiB are free."""
    files = {
        "proc/meminfo": "MemAvailable: 8388608 kB",
        "proc/self/cgroup": "0::/job",
        "sys/fs/cgroup/job/memory.max": str(4 * GiB),
        "sys/fs/cgroup/job/memory.current": str(3 * GiB),
        "sys/fs/cgroup/job/memory.stat": f"anon 5\ninactive_file {GiB}\nactive_file {GiB // 2}",
        "sys/fs/cgroup/memory.max": "max",
    }
    assert free_memory_bytes(write(tmp_path, files)) == 5 * GiB // 2


def test_free_memory_under_version_1(tmp_path):
    files = {
        "proc/meminfo": "MemAvailable: 8388608 kB",
        "proc/self/cgroup": "4:memory:/job",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": str(2 * GiB),
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": str(3 * GiB),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
    }
    assert free_memory_bytes(write(tmp_path, files)) == 0
