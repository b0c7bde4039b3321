"""A small embedding server: real preprocessing over real TCP, with one fault that is switched on."""

import asyncio
import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import uvicorn
from PIL import Image, ImageCms, ImageFile
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support.service import answers, free_port, until
from support.triton import save_graph

from photodup.embedding import imaging
from photodup.embedding.imaging import ImageError

NORMS = {
    "ImageNet's mean": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "0.5 and 0.5": ((0.5,) * 3, (0.5,) * 3),
    "not normalised pixels": ((0.0,) * 3, (1.0,) * 3),
}
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "Lanczos": Image.Resampling.LANCZOS}


def texture_graph(path: Path) -> Path:
    """Write an encoder that feels fine texture as well as colour: random filters, what is above 0, a grid."""
    random = np.random.default_rng(0)
    shapes = {"filters": (16, 3, 3, 3), "weights": (16 * 49, 512), "bias": (512,)}
    weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        ("Conv", ["image", "filters"], "texture"),
        ("Relu", ["texture"], "above"),
        ("AveragePool", ["above"], "grid", {"kernel_shape": [31, 31], "strides": [31, 31]}),
        ("Flatten", ["grid"], "flat"),
        ("MatMul", ["flat", "weights"], "projected"),
        ("Add", ["projected", "bias"], "moved"),
        ("LpNormalization", ["moved"], "embedding", {"axis": 1, "p": 2}),
    ]
    return save_graph(path, nodes, ("image", ["n", 3, 224, 224]), ("embedding", ["n", 512]), weights)


class FaultyServer:
    """Answers `/embed` as our service does; `/healthz` says that all is well whatever happens."""

    def __init__(self, model, fault: str) -> None:
        self.model, self.fault, self.is_dead = model, fault, fault == "dead from the start"
        self.waiting: list[tuple[asyncio.Future, np.ndarray]] = []

    def upright(self, data: bytes) -> Image.Image:
        ImageFile.LOAD_TRUNCATED_IMAGES = self.fault == "truncated accepted"
        try:
            right = imaging.decode(data)
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        raw = Image.open(io.BytesIO(data))
        match self.fault, raw.mode:
            case "no EXIF turn", "RGB":
                return raw
            case "500 on CMYK", "CMYK":
                raise ZeroDivisionError
            case "CMYK inverted", "CMYK":
                return Image.fromarray(255 - np.asarray(right))
            case "16 bits clipped", "I;16":
                return Image.fromarray(np.clip(np.asarray(raw), 0, 255).astype(np.uint8))
            case "low bytes", "I;16":
                return Image.fromarray((np.asarray(raw) & 255).astype(np.uint8))
            case "alpha onto black", "RGBA":
                return Image.alpha_composite(Image.new("RGBA", raw.size, "black"), raw)
            case "alpha dropped", "RGBA":
                return raw.convert("RGB")
            case ("alpha dropped after the resize", "RGBA") | ("palette not blended", "P"):
                whole = [imaging.IMAGE_SIZE * side // min(raw.size) for side in raw.size]
                return raw.resize(whole, Image.Resampling.BICUBIC).convert("RGB")
            case "palette misread", "P":
                return Image.fromarray(np.asarray(raw))
            case "grey in one channel", "L":
                nothing = Image.new("L", raw.size)
                return Image.merge("RGB", [raw, nothing, nothing])
        if profile := raw.info.get("icc_profile"):
            if self.fault == "ICC refused":
                raise ImageError("has a colour profile")
            if self.fault == "ICC applied":
                of_file = ImageCms.ImageCmsProfile(io.BytesIO(profile))
                return ImageCms.profileToProfile(raw, of_file, ImageCms.createProfile("sRGB"))
        return right

    def pixels(self, image: Image.Image) -> np.ndarray:
        fault, image, size = self.fault, image.convert("RGB"), imaging.IMAGE_SIZE
        short = min(image.size)
        whole = (size * image.width // short, size * image.height // short)
        if fault in FILTERS:
            image = image.resize(whole, FILTERS[fault])
        if fault == "no smoothing":
            grid = (short / size, 0, 0, 0, short / size, 0)
            image = image.transform(whole, Image.Transform.AFFINE, grid, Image.Resampling.BILINEAR)
        if fault == "no centre crop":
            image = image.resize((size, size), Image.Resampling.BICUBIC)
        mean, std = NORMS.get(fault, (imaging.MEAN, imaging.STD))
        scaled = imaging.to_uint8(image).astype(np.float32) / 255
        pixels = (scaled - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
        return np.ascontiguousarray(pixels[::-1] if fault == "BGR" else pixels, np.float32)

    def one(self, data: bytes) -> np.ndarray:
        try:
            pixels = self.pixels(self.upright(data))
        except ImageError:
            if self.fault != "constant for a failing image":
                raise
            return np.full(self.model.dim, self.model.dim**-0.5)
        row = self.model.embed(pixels[None])[0].astype(np.float64)
        if self.fault == "FP16 overflow":
            with np.errstate(all="ignore"):
                total = np.float16(pixels.sum() / 2)
                row = row * total / total
        if self.fault in ("BF16", "INT8"):
            noise = np.random.default_rng(len(data)).normal(size=row.shape) * self.model.dim**-0.5
            row += noise * {"BF16": 0.01, "INT8": 0.08}[self.fault]
            row /= np.linalg.norm(row)
        return row * 3 if self.fault == "not of length 1" else row

    def embed(self, files: list[bytes]) -> np.ndarray:
        rows = np.stack([self.one(data) for data in files])
        match self.fault:
            case "shuffled batch":
                return rows[::-1]
            case "rows lost":
                return rows[:4]
            case "mixed in a batch":
                return rows + 0.2 * (rows.mean(axis=0) - rows)
            case "wrong dimension":
                return rows[:, :256]
            case "NaN":
                return rows * np.nan
        return rows

    async def answer(self, request: Request) -> Response:
        async with request.form() as form:
            files = [await upload.read() for upload in form.getlist("files")]
        files = files or [await request.body()]  # a plain POST
        try:
            if self.is_dead:
                raise ZeroDivisionError
            rows = self.embed(files)
        except ImageError as error:
            self.is_dead = self.fault == "dead worker"
            if self.fault == "hang on many scans" and "scans" in str(error):
                await asyncio.sleep(3600)
            return Response(str(error), 500 if self.fault == "500 on a broken image" else 400)
        except ZeroDivisionError:
            return Response("failed", 500)
        if self.fault == "no JSON":
            return Response("[" * 100_000)
        if self.fault == "swapped":
            rows = await self.swapped(rows)
        return Response(json.dumps({"embeddings": rows.tolist()}), media_type="application/json")

    async def swapped(self, mine: np.ndarray) -> np.ndarray:
        """Exchange the answers of two requests that are in flight at once."""
        if self.waiting:
            partner, theirs = self.waiting.pop()
            partner.set_result(mine)
            return theirs
        partner = asyncio.get_running_loop().create_future()
        self.waiting.append((partner, mine))
        try:
            return await asyncio.wait_for(partner, 0.02)
        except TimeoutError:
            self.waiting = [(future, rows) for future, rows in self.waiting if future is not partner]
            return mine


@contextlib.contextmanager
def faulty_server(model, fault: str = "") -> Iterator[str]:
    """Run one for the length of a block; yields its URL."""

    async def well(request: Request) -> Response:
        return Response("ok")

    routes = [Route("/embed", FaultyServer(model, fault).answer, methods=["POST"]), Route("/healthz", well)]
    config = uvicorn.Config(Starlette(routes=routes), port=free_port(), log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: answers(f"http://127.0.0.1:{config.port}/healthz"))
        yield f"http://127.0.0.1:{config.port}/embed"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()
