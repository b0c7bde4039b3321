"""A running Triton gets another configuration for a while; afterwards it must be as before."""

import pytest
from triton_fixture import needs_triton, tiny_triton

from photodup.serving.triton.control import temporary_config

pytestmark = needs_triton()
MODEL = "openclip_vit_b32"


def configuration():
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(f"127.0.0.1:{tiny_triton().grpc_port}") as client:
        return client.get_model_config(MODEL).config


def off(config):
    config.ClearField("dynamic_batching")
    config.parameters["threads"].string_value = "1"


def test_the_configuration_is_put_back_even_after_a_failure() -> None:
    """Later measurements on this server would otherwise be of another configuration, and not say so."""
    before = configuration()
    assert before.HasField("dynamic_batching")
    with temporary_config(f"127.0.0.1:{tiny_triton().grpc_port}", MODEL, off):
        inside = configuration()
        assert not inside.HasField("dynamic_batching") and inside.parameters["threads"].string_value == "1"
    assert configuration() == before
    with (
        pytest.raises(RuntimeError),
        temporary_config(f"127.0.0.1:{tiny_triton().grpc_port}", MODEL, off),
    ):
        raise RuntimeError("a point failed")
    assert configuration() == before
