"""WebGPU adapters as a poot device, over wgpu-native."""
