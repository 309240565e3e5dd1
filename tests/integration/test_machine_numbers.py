"""What is known of machines stands in compiler/target (tests/machine_numbers.py), and the check sees what does not."""
import os
import pathlib
import shutil
import sys

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
sys.path.insert(0, TESTS)
import machine_numbers  # noqa: E402 - the path comes first


def test_no_number_of_a_machine_is_elsewhere() -> None:
    assert machine_numbers.faults(ROOT, machine_numbers.OTHER) == []


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    for folder in machine_numbers.FOLDERS:
        shutil.copytree(os.path.join(ROOT, folder), tmp_path / folder)
    return tmp_path


@pytest.mark.parametrize("line", [
    "constexpr int64_t kStreamedBytesMin = int64_t{16} << 20;",
    "constexpr int64_t kFirstLevelRowMax = 32 << 10;",
    "constexpr int64_t kBlocksWanted = 132;",
    "constexpr int64_t kStrips = 264;",
    "constexpr double kProcessors = 148;",
    "constexpr double kBytesOfMemory = 4000;  // a second, beyond the cache",
    "constexpr int64_t kKeysAtOnce = 64;  // some 6 µs each time",
    "constexpr double kMultiplicationsMin = 2e9;",
    "constexpr int64_t kFast = 13;  // oneDNN is faster from here on",
    "  if (bytes > 8 << 20) return true;",
    "constexpr int64_t kCacheBytes = 1048576;",
    "constexpr int64_t kCacheBytes = 512 * 1024;",
    "  if (bytes > 33'554'432) return true;",
    "constexpr int64_t kShared = 0x100000;",
    "constexpr int64_t kSms = 80;",
    "constexpr uint32_t kWordsInFlight = 96;",
    "constexpr int64_t kAccumulators = 8;",
    "constexpr int64_t kPartsMax = 128;  // of a thread, in registers",
    "  if (shape.sums_of_lane() > 64) return true;",
    "  if (shape.sums_of_lane() + shape.words_of_step() > 80) return true;",
    "  const int64_t most = gpu.registers_of_multiprocessor / threads / 2;",
    "  if (type.device == v1::CUDA) return true;",
    "constexpr int64_t kL2 = 50'000'000;",
    "constexpr int64_t kL2 = 50 * 1000 * 1000;",
    "  if (bytes > 1.6e7) return true;",
    "constexpr int64_t kL2 = kMiB * 16;",
    "constexpr int64_t kBlocks = 2 * 66;",
    "constexpr int64_t kLaunchNs = 2100;",
    "constexpr double kBytesASecond = 3.35e12;",
    "  if (bytes > 48'000) return true;",
    "constexpr int64_t kExtentMin = 16;",
    "constexpr int64_t kShortLoop = 128;",
    "constexpr size_t kFewBytes{64};",
    "  constexpr int64_t kMost = 3, kLargeDomain = 3000;",
])
def test_one_is_named(copy: pathlib.Path, line: str) -> None:
    path = copy / "compiler" / "schedule" / "fuse.cc"
    path.write_text(path.read_text() + line + "\n")
    found, = machine_numbers.faults(copy, machine_numbers.OTHER)
    assert found.startswith("compiler/schedule/fuse.cc: ") and found.endswith(line.strip())


@pytest.mark.parametrize("line", [
    "constexpr int64_t kBlocks = 2 * 67;",
    "constexpr int64_t kLaunches = 3;",
    "  return iterations == kExtentMin;",
    "constexpr int64_t kShortenedMinus = 3;",
    "  if (bytes > 1.6e3) return true;",
    "  const uint64_t bits = 0x9e3779b97f4a7c15u;",
    "  const int64_t aligned = (bytes + 255) / 256 * 256;",
    "  const int mode = 0644;",
    "  if (type.device == v1::CPU) return true;  // 16 << 20",
])
def test_none_is_named(copy: pathlib.Path, line: str) -> None:
    path = copy / "compiler" / "schedule" / "fuse.cc"
    path.write_text(path.read_text() + line + "\n")
    assert machine_numbers.faults(copy, machine_numbers.OTHER) == []


def test_thresholds_are_looked_for_where_the_cost_model_is_asked(copy: pathlib.Path) -> None:
    for folder in ("codegen", "lower"):
        path = copy / "compiler" / folder / "added.cc"
        path.write_text("constexpr int64_t kRowsMin = 16;\n")
    found, = machine_numbers.faults(copy, machine_numbers.OTHER)
    assert found.startswith("compiler/lower/added.cc: kRowsMin on line 1 ")


def test_a_comment_above_says_what_a_number_is(copy: pathlib.Path) -> None:
    path = copy / "compiler" / "schedule" / "fuse.cc"
    path.write_text(path.read_text() + "// A second, beyond the\n// cache.\nconstexpr int64_t kFour = 77;\n")
    found, = machine_numbers.faults(copy, machine_numbers.OTHER)
    assert found.startswith("compiler/schedule/fuse.cc: kFour on line ")


def test_an_exception_is_of_one_name(copy: pathlib.Path) -> None:
    other = {**machine_numbers.OTHER, "compiler/schedule/fuse.cc: kCache": "another's"}
    path = copy / "compiler" / "schedule" / "fuse.cc"
    path.write_text(path.read_text() + "constexpr int kCacheBytes = 1 << 20;\nconstexpr int kCache = 1 << 20;\n")
    found, = machine_numbers.faults(copy, other)
    assert found.startswith("compiler/schedule/fuse.cc: kCacheBytes on line ")


def test_an_exception_that_nothing_needs_is_named(copy: pathlib.Path) -> None:
    other = {**machine_numbers.OTHER, "compiler/schedule/fuse.cc: kNothing": "gone"}
    assert machine_numbers.faults(copy, other) == [
        "tests/machine_numbers.py: nothing is compiler/schedule/fuse.cc: kNothing"]
