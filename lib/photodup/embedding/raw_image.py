"""A Pillow plugin for camera RAW, developed by LibRaw (extra `photos-more`). Importing this module registers it."""

import io

import rawpy
from PIL import Image, ImageFile

_TIFF = (b"II*\0", b"MM\0*")
_OTHERS = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR", b"\0MRM", b"FOVb")
_DNG_VERSION, _SUB_DIRECTORIES, _KIND, _ORIENTATION = 50706, 330, 254, 274


def may_be_raw(start: bytes) -> bool:
    """Return whether a file with this beginning may be RAW; TIFF files begin alike."""
    return start.startswith((*_TIFF, *_OTHERS)) or start[4:12] == b"ftypcrx "


class RawImage(ImageFile.ImageFile):
    """A RAW file; its pixels are developed, upright, when they are loaded."""

    format, format_description = "RAW", "camera RAW"

    def _open(self) -> None:
        assert self.fp is not None
        data, self._about = self.fp.read(), Image.Exif()
        if data.startswith(_TIFF):
            self._about.load(data)
            has_preview = _SUB_DIRECTORIES in self._about and self._about.get(_KIND) == 1
            if not (has_preview or _DNG_VERSION in self._about or data[8:10] == b"CR"):
                raise SyntaxError("a TIFF")
        try:
            self._raw: rawpy.RawPy | None = rawpy.imread(io.BytesIO(data))
            if not data.startswith(_TIFF):
                preview = Image.open(io.BytesIO(bytes(self._raw.extract_thumb().data)), formats=("JPEG",))
                self._about = preview.getexif()
        except (rawpy.LibRawError, OSError) as error:
            raise SyntaxError(str(error)) from None
        self._about.pop(_ORIENTATION, None)
        size = self._raw.sizes.width, self._raw.sizes.height
        self._size, self._mode = size[::-1] if self._raw.sizes.flip in (5, 6) else size, "RGB"

    def getexif(self) -> Image.Exif:
        """Return the camera's EXIF without the orientation, since the pixels are upright."""
        return self._about

    def load(self) -> "Image.core.PixelAccess | None":
        """Develop it with the camera's white balance."""
        if self._raw is not None:
            with self._raw as raw:
                quick = rawpy.DemosaicAlgorithm.LINEAR
                self.im = Image.fromarray(raw.postprocess(use_camera_wb=True, demosaic_algorithm=quick)).im
            self._raw, self._size = None, self.im.size
        return super().load()


Image.register_open(RawImage.format, RawImage, may_be_raw)
