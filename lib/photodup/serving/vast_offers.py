"""What can be rented at Vast.ai, and how its SDK is asked. Not run here: no account was at hand."""

from typing import Any

from photodup.errors import PhotodupError
from photodup.serving.gpu_image import DISK_GB, DOWN_MBIT_PER_S, IMAGE_GB, cuda_needed

PORTS = (8002, 8003, 8004, 8005)


def find_offers(
    client: Any,
    gpu: str,
    max_price_per_hour_usd: float | None = None,
    disk_gb: float = DISK_GB,
    limit: int = 10,
    *,
    gpus: int = 1,
) -> list[dict[str, Any]]:
    """List offers that can run the all-in-one image, the cheapest first.

    Args:
        gpus: how many of them one machine has. Only Triton uses more than one: an instance of each model on each.

    Traffic is billed apart from the hourly price, so the pull of the image is priced too (`gpu_image.IMAGE_GB`).

    Returns:
        Rows with `offer`, `gpu`, `gpus`, `price_per_hour_usd` (of all, with the disk), `location`, `reliability` (0 to 1),
        `down_mbit_per_s`, `down_usd_per_gb`, `pull_usd` and `pull_minutes`.
    """
    query = (
        f"gpu_name={gpu.replace(' ', '_')} num_gpus={gpus} direct_port_count>={len(PORTS)} reliability>0.98"
    )
    query += f" cuda_max_good>={cuda_needed()} disk_space>={disk_gb:g} inet_down>={DOWN_MBIT_PER_S:g}"
    if max_price_per_hour_usd is not None:
        query += f" dph_total<={max_price_per_hour_usd}"
    found = ask(client, "search_offers", query=query, order="dph_total", limit=limit, storage=disk_gb)
    return [
        {
            "offer": offer["id"],
            "gpu": offer["gpu_name"],
            "gpus": offer.get("num_gpus") or gpus,
            "price_per_hour_usd": round(offer["dph_total"], 4),
            "location": offer.get("geolocation") or "",
            "reliability": offer.get("reliability2") or offer.get("reliability"),
            "down_mbit_per_s": offer.get("inet_down"),
            "down_usd_per_gb": offer.get("inet_down_cost"),
            "pull_usd": IMAGE_GB * (offer.get("inet_down_cost") or 0.0),
            "pull_minutes": IMAGE_GB * 8000 / offer["inet_down"] / 60 if offer.get("inet_down") else None,
        }
        for offer in found
    ]


def ask(client: Any, method: str, **arguments: Any) -> Any:
    """Call the SDK. Its exceptions are replaced by their kind and status: their text may hold the key."""
    try:
        return getattr(client, method)(**arguments)
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        detail = f"HTTP {status}" if status else type(error).__name__
        hint = " Is the API key right?" if status in (401, 403) else ""
        raise PhotodupError(f"Vast.ai refused {method.replace('_', ' ')} ({detail}).{hint}") from None
