"""The DALI pipeline behind `openclip_vit_b32_preprocess_dali`; run it to write the file that Triton loads.

    python3 pipeline.py model.dali            for a GPU ("mixed" decoding: nvJPEG)
    python3 pipeline.py model.dali --cpu      the same steps on the CPU

It follows open_clip's steps, but decodes with another JPEG library and resizes with another bicubic filter. On the
CPU pixels differ from the reference by less than 0.6 of 255 levels on average and 20 at most
(tests/serving/servers/test_jpeg_ensemble.py, `-k dali`, which needs nvidia-dali-cuda120 and no GPU).
The GPU's decoder was not run: compare embeddings first.

What the Python preprocessing does and this does not: an image that cannot be decoded fails its whole batch, and one
that is cut short is answered without its missing part, because the padding looks like its rest. Send only images
that you have checked.
"""

import argparse

from nvidia.dali import fn, pipeline_def, types

SIZE = 224


@pipeline_def(batch_size=32, num_threads=4)
def preprocess(device="mixed"):
    """Encoded bytes [b] -> uint8 [3, 224, 224], upright by EXIF."""
    encoded = fn.external_source(name="encoded", device="cpu", ndim=1, dtype=types.UINT8)
    images = fn.decoders.image(encoded, device=device, output_type=types.RGB, adjust_orientation=True)
    images = fn.resize(
        images, resize_shorter=SIZE, interp_type=types.INTERP_CUBIC, antialias=True, dtype=types.UINT8
    )
    images = fn.crop(images, crop=(SIZE, SIZE), crop_pos_x=0.5, crop_pos_y=0.5)
    return fn.transpose(images, perm=[2, 0, 1], transpose_layout=False)


def main():
    """Write the serialized pipeline."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--cpu", action="store_true", help="decode on the CPU")
    options = parser.parse_args()
    if options.cpu:
        preprocess(device="cpu", device_id=None).serialize(filename=options.path)
    else:
        preprocess(device_id=0).serialize(filename=options.path)


if __name__ == "__main__":
    main()
