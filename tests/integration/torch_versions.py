"""What tests assume of torch's own tracing, which differs by version."""
import pytest
import torch


def needs_torch(major: int, minor: int, reason: str) -> pytest.MarkDecorator:
    """Skips the test where torch is older."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    return pytest.mark.skipif(version < (major, minor), reason=f"before torch {major}.{minor} {reason}")
