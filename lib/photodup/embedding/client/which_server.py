"""Which of the known servers answers at an address, told by what only it says."""

from collections.abc import Callable

TRITON_HTTP, TRITON_METRICS = "Triton's HTTP port", "Triton's metrics port"
FASTAPI, ANOTHER = "the FastAPI service", "an HTTP server"


def which_server(get: Callable[[str], tuple[int, str]]) -> str | None:
    """Return one of the names above; None where nobody answers over HTTP.

    Args:
        get: fetches a path such as `/v2` from the server and returns status and text; status 0 for no answer.
    """
    status, text = get("/v2")
    if not status:
        return None
    # Triton's metrics port answers 200 with an empty body to every path, so a status alone says nothing.
    if '"extensions"' in text and '"version"' in text:
        return TRITON_HTTP
    if "nv_inference" in get("/metrics")[1]:
        return TRITON_METRICS
    return FASTAPI if get("/healthz")[0] == 200 else ANOTHER
