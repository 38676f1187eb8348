"""The same tensors over other platforms: programs that run in an environment of the platform, not of this package."""
