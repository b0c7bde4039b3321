"""What a protocol writes is read back as it was: by its own reader, by our service's and by Triton's own client."""

import asyncio
import base64
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from starlette.datastructures import Headers

from photodup.embedding.wire.http import AnswerError, Base64Json, Multipart, OpenAi
from photodup.embedding.wire.kserve import KserveGrpc, KserveHttp, params_of
from photodup.serving.service import bodies

NUMBERS = arrays.arrays(
    st.sampled_from(["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]),
    arrays.array_shapes(max_dims=4, max_side=4),
)
ODD = st.sampled_from([b"", b"\0", b"\r\n--", "Grüße 犬 🐕".encode(), b"\xff" * 300]) | st.binary(max_size=40)
STRINGS = st.lists(ODD, min_size=1, max_size=5).map(
    lambda found: np.array([*found, None], np.object_)[:-1].reshape(-1, 1)
)
ROWS = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.floats(-1, 1, width=32)
)


def as_answer(request) -> tuple[dict, bytes]:
    """Turn a request with binary tensors into an answer that holds them."""
    length = int(request.headers["Inference-Header-Content-Length"])
    head = json.dumps({"model_name": "m", "outputs": json.loads(request.body[:length])["inputs"]}).encode()
    return {"inference-header-content-length": str(len(head))}, head + request.body[length:]


@given(NUMBERS | STRINGS, NUMBERS | STRINGS)
@np.errstate(over="ignore")  # the largest FP64
@example(np.array([3.4028236e38]), np.zeros(1))
@example(np.array([3.4028235e38, np.inf]), np.zeros(1))
def test_tensors_of_any_type_and_shape_survive_http_and_grpc(first, second):
    from tritonclient.grpc import InferResult, service_pb2
    from tritonclient.http import InferenceServerClient

    tensors = {"a": first, "b": second}
    headers, body = answer = as_answer(KserveHttp("m").encode(tensors))
    length = int(headers["inference-header-content-length"])
    over_http = InferenceServerClient.parse_response_body(body, header_length=length)
    message = KserveGrpc("m").encode(tensors)
    outputs = [
        service_pb2.ModelInferResponse.InferOutputTensor(name=i.name, datatype=i.datatype, shape=i.shape)
        for i in message.inputs
    ]
    response = service_pb2.ModelInferResponse(outputs=outputs, raw_output_contents=message.raw_input_contents)
    for name, array in tensors.items():
        for found in (over_http.as_numpy(name), InferResult(response).as_numpy(name)):
            assert found.dtype == array.dtype and found.shape == array.shape
            assert found.tobytes() == array.tobytes() if array.dtype != np.object_ else (found == array).all()
    if first.dtype.kind == "f" and (np.isinf(first.astype(np.float32)) & np.isfinite(first)).any():
        for protocol, of in ((KserveHttp("m"), answer), (KserveGrpc("m"), response)):
            with pytest.raises(AnswerError, match="overflow"):
                protocol.decode(of)
        return
    rows = KserveHttp("m").decode(answer)
    np.testing.assert_array_equal(rows, KserveGrpc("m").decode(response))
    if first.dtype.kind in "iuf":
        np.testing.assert_array_equal(rows, first.reshape(len(first), -1).astype(np.float32))
    else:
        assert rows.shape == (len(first), 0)


@given(ROWS)
def test_numbers_in_json_are_the_same_numbers(rows):
    request = KserveHttp("m", as_json=True).encode({"image": rows})
    answer = json.dumps({"outputs": json.loads(request.body)["inputs"]}).encode()
    np.testing.assert_array_equal(KserveHttp("m", as_json=True).decode(({}, answer)), rows)


@given(st.lists(ODD, min_size=1, max_size=4))
def test_our_service_reads_the_images_that_were_sent(images):
    async def read(request) -> list[bytes]:
        async def chunks():
            yield request.body

        return await bodies.read_multipart(Headers(request.headers), chunks(), 9)

    assert asyncio.run(read(Multipart().encode(images))) == images
    assert bodies.read_base64(Base64Json().encode(images).body, 9) == images
    sent = json.loads(OpenAi("/v1/embeddings", "m", "image/png").encode(images).body)
    assert (
        sent["modality"] == "image"
        and [base64.b64decode(t.partition(",")[2]) for t in sent["input"]] == images
    )
    assert all(text.startswith("data:image/png;base64,") for text in sent["input"])
    assert json.loads(OpenAi("/", "m").encode(["a", "ü"]).body)["input"] == ["a", "ü"]


@given(ROWS, st.randoms())
def test_embeddings_are_read_from_every_form_of_answer(rows, random):
    text = [base64.b64encode(row.tobytes()).decode() for row in rows]
    for found in (rows.tolist(), text):
        answer = ({}, json.dumps({"embeddings": found}).encode())
        np.testing.assert_array_equal(Multipart().decode(answer), rows)
        data = [{"index": index, "embedding": row} for index, row in enumerate(found)]
        random.shuffle(data)
        np.testing.assert_array_equal(
            OpenAi("/", "m").decode(({}, json.dumps({"data": data}).encode())), rows
        )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["embeddings", "data", "outputs", "shape", "datatype", "index", "embedding"]),
            inner,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("protocol", [Multipart(), Base64Json(), OpenAi("/", "m"), KserveHttp("m")], ids=repr)
@given(content=JSON, length=st.none() | st.integers(-5, 50))
@example(content={"embeddings": [[3.4028236e38]]}, length=None)  # beyond float32 by less than its last digit
@example(content=[[3.4028235677973366e38]], length=None)
def test_whatever_a_server_answers_is_rows_or_one_sentence(protocol, content, length):
    headers = {} if length is None else {"inference-header-content-length": str(length)}
    try:
        rows = protocol.decode((headers, json.dumps(content).encode()))
    except AnswerError as error:
        assert str(error).endswith((".", "?")) and "\n" not in str(error)
    else:
        assert rows.dtype == np.float32 and rows.ndim == 2


@pytest.mark.parametrize(
    "config",
    [{"parameters": ["x"]}, {"parameters": {"precision": 3}}, {"ensemble_scheduling": {"step": [3]}}],
)
def test_a_configuration_of_another_form_is_one_sentence(config):
    with pytest.raises(AnswerError, match="configuration of the model cannot be read"):
        params_of(config, lambda model: {})
