"""A running Triton gets another configuration for a while; afterwards it must be as before."""

import pytest
from support.triton import needs_triton

from photodup.serving.triton.control import temporary_config

pytestmark = needs_triton()
MODEL = "openclip_vit_b32"


def configuration(tiny_triton):
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(f"127.0.0.1:{tiny_triton.grpc_port}") as client:
        return client.get_model_config(MODEL).config


def off(config):
    config.ClearField("dynamic_batching")
    config.parameters["threads"].string_value = "1"


def test_the_configuration_is_put_back_even_after_a_failure(tiny_triton) -> None:
    """Later measurements on this server would otherwise be of another configuration, and not say so."""
    before = configuration(tiny_triton)
    assert before.HasField("dynamic_batching")
    with temporary_config(f"127.0.0.1:{tiny_triton.grpc_port}", MODEL, off):
        inside = configuration(tiny_triton)
        assert not inside.HasField("dynamic_batching") and inside.parameters["threads"].string_value == "1"
    assert configuration(tiny_triton) == before
    with pytest.raises(RuntimeError), temporary_config(f"127.0.0.1:{tiny_triton.grpc_port}", MODEL, off):
        raise RuntimeError("a point failed")
    assert configuration(tiny_triton) == before
