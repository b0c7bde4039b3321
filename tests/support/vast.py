"""One rented machine as Vast.ai lists it."""

from photodup.serving import vast

SECRET = "key-that-must-not-leak"


ROW = {
    "id": 7835610,
    "actual_status": "running",
    "public_ipaddr": " 203.0.113.7 ",
    "ports": {f"{port}/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(30000 + port)}] for port in vast.PORTS},
    "gpu_name": "RTX 4090",
    "dph_total": 0.412,
    "geolocation": "Texas, US",
    "jupyter_token": SECRET,
}
