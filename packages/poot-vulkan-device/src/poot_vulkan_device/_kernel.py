"""Compute pipelines of packaged kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poot_core import CompileError
from poot_kernel.compile import CompiledObject, KernelPackage
from poot_vulkan_device._api import VulkanError
from poot_vulkan_device._context import Context

__all__ = ["Pipelines", "VulkanKernel"]


class VulkanKernel:
    """A loaded kernel.

    Attributes:
        entry: Its name.
        package: What it was loaded from.
        pipeline: Of Vulkan.
    """

    def __init__(self, package: KernelPackage, pipeline: Any) -> None:
        self.entry = package.name
        self.package = package
        self.pipeline = pipeline


class Pipelines:
    """Loads kernels: one pipeline layout for all, of push constants alone.

    Attributes:
        layout: Of Vulkan.
        push_bytes: Push constants; kernels with more arguments read them from memory.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        api, lib = context.api, context.api.lib
        self.push_bytes = 256 if "push256" in context.adapter.features else 128
        constants = api.struct("VkPushConstantRange", stageFlags=0x20, size=self.push_bytes)
        info = api.struct(
            "VkPipelineLayoutCreateInfo", pushConstantRangeCount=1, pPushConstantRanges=constants
        )
        self.layout: Any = context.make("VkPipelineLayout", lib.vkCreatePipelineLayout, info)
        self._cache: Any = context.make(
            "VkPipelineCache", lib.vkCreatePipelineCache, api.struct("VkPipelineCacheCreateInfo")
        )
        self._pipelines: dict[str, VulkanKernel] = {}

    def load(self, objects: Sequence[CompiledObject], target: str) -> list[VulkanKernel]:
        """Return kernels of packages, in order; one that was loaded before is not loaded again.

        Raises:
            CompileError: If an object is of another target, or the driver refuses it.
        """
        packages: list[KernelPackage] = []
        for found in objects:
            if found.kind != "gpu-package" or str(found.target) != target:
                raise CompileError(
                    f"{found.kind} for {found.target} cannot be loaded on {target}",
                    target=str(found.target),
                )
            packages.append(KernelPackage.decode(found.data))
        loaded: list[VulkanKernel] = []
        for found, package in zip(objects, packages, strict=True):
            kernel = self._pipelines.get(found.key)
            if kernel is None or kernel.entry != package.name:
                kernel = self._pipelines[found.key] = self._build(package, target)
            loaded.append(kernel)
        return loaded

    def _build(self, package: KernelPackage, target: str) -> VulkanKernel:
        try:
            return VulkanKernel(package, self._pipeline(package))
        except VulkanError as error:
            raise CompileError(
                f"{self._context.adapter.driver} refuses kernel {package.name!r}: {error.message}",
                target=target,
                source=package.code,
            ) from error

    def _pipeline(self, package: KernelPackage) -> Any:
        context = self._context
        api, lib, null = context.api, context.api.lib, context.api.ffi.NULL
        if len(package.code) % 4 or package.code[:4] != b"\x03\x02\x23\x07":
            raise VulkanError(f"{len(package.code)} bytes are no SPIR-V module", result=0)
        words = api.ffi.new("uint32_t[]", len(package.code) // 4)
        api.ffi.memmove(words, package.code, len(package.code))
        info = api.struct("VkShaderModuleCreateInfo", codeSize=len(package.code), pCode=words)
        module = context.make("VkShaderModule", lib.vkCreateShaderModule, info)
        try:
            size = api.struct(
                "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo",
                requiredSubgroupSize=context.adapter.subgroup_size,
            )
            stage = api.struct(
                "VkPipelineShaderStageCreateInfo",
                pNext=size, flags=2,  # full subgroups
                stage=0x20, module=module, pName=api.text("main"),
            )  # fmt: skip
            made = api.out("VkPipeline")
            asked = api.struct("VkComputePipelineCreateInfo", stage=stage[0], layout=self.layout)
            result = lib.vkCreateComputePipelines(context.handle, self._cache, 1, asked, null, made)
            api.check(result, "creating a pipeline")
            return made[0]
        finally:
            lib.vkDestroyShaderModule(context.handle, module, null)

    def close(self) -> None:
        """Destroy all."""
        context, lib, null = self._context, self._context.api.lib, self._context.api.ffi.NULL
        for kernel in self._pipelines.values():
            lib.vkDestroyPipeline(context.handle, kernel.pipeline, null)
        self._pipelines.clear()
        if self.layout is not None:
            lib.vkDestroyPipelineLayout(context.handle, self.layout, null)
            lib.vkDestroyPipelineCache(context.handle, self._cache, null)
            self.layout = None
