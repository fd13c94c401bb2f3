"""Host detection and how targets are spelled for LLVM."""

from __future__ import annotations

import sys

import pytest

from poot_core import Settings, SettingsError, Target, UnsupportedError
from poot_kernel.compile import _host as host_module
from poot_kernel.compile import host_arch, host_features, host_target
from poot_kernel.compile._cpuid import cpuid_features
from poot_kernel.compile._llvm_target import llvm_target

X86 = pytest.mark.skipif(host_arch() != "x86-64", reason="x86-64 only")


@X86
@pytest.mark.skipif(sys.platform != "linux", reason="compares with /proc/cpuinfo")
def test_cpuid_agrees_with_linux() -> None:
    table = host_module._X86_FLAGS
    assert {table[flag] for flag in cpuid_features()} == host_features()


def test_the_target_round_trips() -> None:
    target = host_target(Settings())
    assert Target.parse(str(target)) == target
    assert target.features == host_features()


@X86
def test_a_mask_names_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = frozenset(host_module._X86_FLAGS.values())
    monkeypatch.setattr(host_module, "host_features", lambda: everything)

    def masked(*names: str) -> frozenset[str]:
        return host_target(Settings(cpu_features=frozenset(names))).features

    assert masked("avx2") == {
        "sse4.2", "popcnt", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe",
    }  # fmt: skip
    assert masked("avx512f") == masked("avx2") | {
        "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
    }  # fmt: skip
    assert masked("avx2", "avxvnni") == masked("avx2") | {"avxvnni"}
    assert masked("avx512f", "avx512vnni") == masked("avx512f") | {"avx512vnni"}
    assert masked("none") == {"sse4.2", "popcnt"}


@X86
def test_a_mask_never_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "host_features", lambda: frozenset({"avx2"}))
    assert host_target(Settings(cpu_features=frozenset({"avx512f"}))).features == {"avx2"}


def test_an_unknown_mask_is_refused() -> None:
    with pytest.raises(SettingsError, match="avx3"):
        host_target(Settings(cpu_features=frozenset({"avx3"})))


def test_levels_choose_the_scheduling_model() -> None:
    v3 = frozenset({"avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"})
    spelled = llvm_target("llvm-host-object", Target("cpu", "x86-64", v3))
    assert (spelled.cpu, spelled.triple) == ("x86-64-v3", "x86_64-unknown-linux-gnu")
    assert "+avx2" in spelled.features.split(",")
    plain = llvm_target("llvm-host-object", Target("cpu", "x86-64", frozenset({"avx2"})))
    assert plain.cpu == "x86-64"


def test_unknown_combinations_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="vulkan:spirv"):
        llvm_target("llvm-host-object", Target("vulkan", "spirv1.6"))
