"""What the GPU targets share: layout algebra, staging, control flow, element arithmetic."""
