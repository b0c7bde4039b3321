"""`/v1/embeddings` over real TCP, asked by OpenAI's own client: answers, limits, errors in the shape that it reads."""

import base64
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import openai
import pytest
from support.images import photo
from support.service import check_against_openapi

from photodup.embedding.imaging import decode, encode, to_uint8

PHOTOS = [encode(photo(300 + 40 * seed, 260, seed), "JPEG", quality=90) for seed in range(3)]
PNG = encode(photo(64, 64, 5), "PNG")


def uri(data: bytes, kind: str = "image/jpeg") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.fixture
def client() -> Iterator[Callable[..., openai.OpenAI]]:
    """Makes OpenAI's own client, and closes what it opened."""
    with contextlib.ExitStack() as opened:

        def client(url: str, key: str = "none") -> openai.OpenAI:
            made = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)
            return opened.enter_context(made)

        yield client


@pytest.fixture(scope="module")
def wanted(random_model) -> np.ndarray:
    return random_model.embed_pixels(np.stack([to_uint8(decode(data)) for data in PHOTOS]))


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_the_official_client_reads_the_models_embeddings(client, random_service, random_model, wanted, form):
    asked = client(random_service.url)
    model = asked.models.list().data[0].id
    options = {"encoding_format": form} if form else {}  # left out, the client asks for base64 and decodes it
    photos = [uri(data) for data in PHOTOS]
    answer = asked.embeddings.create(model=model, input=photos, extra_body={"modality": "image"}, **options)
    assert answer.model == model == f"{random_model.name}/{random_model.pretrained}"
    assert [row.index for row in answer.data] == [0, 1, 2] and answer.object == "list"
    rows = [row.embedding for row in answer.data]
    if form == "base64":
        rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
    np.testing.assert_allclose(np.asarray(rows, np.float32), wanted, atol=2e-6)
    one = asked.embeddings.create(model=random_model.name, input=uri(PHOTOS[1]))
    np.testing.assert_allclose(one.data[0].embedding, wanted[1], atol=2e-6)


@pytest.mark.parametrize(("body", "kind", "said"), [
    ({"input": "two dogs"}, openai.BadRequestError, "Image 0: no image but text"),
    ({"input": [uri(PNG), "https://example.org/a.jpg"]}, openai.BadRequestError, "nothing is fetched"),
    ({"input": "data:image/png,abc"}, openai.BadRequestError, "not in base64"),
    ({"input": "data:image/png;base64,@@"}, openai.BadRequestError, "not base64"),
    ({"input": uri(b"no image at all")}, openai.BadRequestError, "Image 0: not an image"),
    ({"input": [uri(PNG)] * 9}, openai.APIStatusError, "More than 8 images"),
    ({"input": uri(b"x" * 5_000_000)}, openai.APIStatusError, "larger than 4 MB"),
    ({"input": uri(PNG), "model": "text-embedding-3-small"}, openai.NotFoundError, "There is no model"),
    ({"input": uri(PNG), "dimensions": 256}, openai.BadRequestError, "dimensions: the model has"),
    ({"input": uri(PNG), "extra_body": {"modality": "text"}}, openai.BadRequestError, "modality"),
    ({"input": []}, openai.BadRequestError, "input"),
])  # fmt: skip
def test_every_error_has_the_shape_that_the_client_reads(client, small_service, body, kind, said):
    asked = client(small_service().url)
    body = {"model": asked.models.list().data[0].id} | body
    with pytest.raises(kind) as raised:
        asked.embeddings.create(**body)
    assert said in raised.value.body["message"]  # the client takes it out of {"error": …}
    assert raised.value.body["type"] == "invalid_request_error"


def test_answers_and_errors_are_as_the_document_says(small_service):
    url = small_service().url
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    for body in (
        {"model": model, "input": uri(PNG)},
        {"model": model, "input": "text"},
        {"model": "no", "input": uri(PNG)},
    ):
        check_against_openapi(httpx.post(f"{url}/v1/embeddings", json=body, timeout=60), url)
    answer = httpx.post(f"{url}/v1/embeddings", content=b"{", headers={"Content-Type": "application/json"})
    check_against_openapi(answer, url)
    check_against_openapi(httpx.post(f"{url}/v1/embeddings", content=b"{}"), url)


def test_a_key_and_an_overload_are_said_in_the_same_shape(client, small_service):
    with pytest.raises(openai.AuthenticationError) as raised:
        client(small_service(API_KEY="sesame").url, "wrong").models.list()
    assert raised.value.body["code"] == "invalid_api_key"
    assert client(small_service(API_KEY="sesame").url, "sesame").models.list().data
    server = small_service(MAX_IN_FLIGHT=1, BATCH_DELAY_MS=200, BATCH_MAX=64)
    asked, model = client(server.url), client(server.url).models.list().data[0].id
    found: list[BaseException] = []

    def one() -> None:
        try:
            asked.embeddings.create(model=model, input=[uri(PHOTOS[0])] * 8)
        except openai.APIStatusError as error:
            found.append(error)

    for _ in range(5):  # who comes second while one is in flight is refused
        with ThreadPoolExecutor(8) as pool:
            [pool.submit(one) for _ in range(8)]
        if found:
            break
    assert found and all(error.status_code == 503 for error in found)
    assert found[0].body["type"] == "server_error" and found[0].body["code"] == "overloaded"
    assert int(found[0].response.headers["Retry-After"]) >= 1


def test_what_crosses_the_network_is_what_the_usual_form_answers(client, random_service):
    usual = httpx.post(f"{random_service.url}/embed", files={"f": PHOTOS[0]}, timeout=60).json()["embeddings"]
    model = client(random_service.url).models.list().data[0].id
    body = {"model": model, "input": uri(PHOTOS[0])}
    answer = httpx.post(f"{random_service.url}/v1/embeddings", json=body, timeout=60)
    assert answer.json()["data"][0]["embedding"] == usual[0]
    assert answer.json()["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
    assert len(answer.headers["x-model-digest"]) == 64
