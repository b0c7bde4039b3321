# Triton with the model repository on /models, in three images:
#   docker build -f docker/triton.Dockerfile --target triton -t photodup-triton .            weights inside
#   docker build -f docker/triton.Dockerfile --target all-in-one -t photodup-all-in-one .    FastAPI with PyTorch (8002) too
#   docker build -f docker/triton.Dockerfile --target mounted -t photodup-triton:gpu .       /models is a volume
# Only the plain -py3 tags hold the onnxruntime backend (-trtllm- and -pyt- do not, and 24.02-py3 lacked it too).
ARG TRITON_IMAGE=nvcr.io/nvidia/tritonserver:25.10-py3
ARG BASE_IMAGE=python:3.11-slim-bookworm
# Its FP16 is a builder flag, which TensorRT 11 (Triton 26.06) lacks.
ARG TENSORRT_MAJOR=10
ARG MODEL_PRETRAINED=laion2b_s34b_b79k

FROM ${TRITON_IMAGE} AS mounted
ARG TENSORRT_MAJOR
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# A tag without the backend must fail here, not on a rented machine: "unable to find backend library".
RUN test -f /opt/tritonserver/backends/onnxruntime/libtriton_onnxruntime.so \
    && test -f /opt/tritonserver/backends/onnxruntime/libonnxruntime_providers_tensorrt.so \
    && test -d /opt/tritonserver/backends/python \
    && { ldconfig -p | grep "libnvinfer.so.${TENSORRT_MAJOR}" >/dev/null || { echo "TensorRT ${TENSORRT_MAJOR} is \
missing: take a tag that has it (TensorRT 11, from Triton 26.06, has no FP16 builder flag)" >&2; exit 1; }; }
COPY constraints.txt /tmp/constraints.txt
# What the preprocessing model (Triton's Python backend) imports.
RUN pip3 install --no-cache-dir --break-system-packages -c /tmp/constraints.txt pillow pillow-heif \
    && python3 -c "import numpy, PIL, pillow_heif" && mkdir -p /models /tmp/trt_cache \
    && chown 10001:10001 /tmp/trt_cache
COPY docker/start-triton.sh /usr/local/bin/start-triton
# The user of the service images, by number. It writes below /tmp alone: engines, CUDA's cache, the Python backend's files.
ENV HOME=/tmp
USER 10001:10001
# Engines fit one type of GPU and one version of TensorRT: keep this volume per machine, not per image.
VOLUME /tmp/trt_cache
EXPOSE 8003 8004 8005
# Ready, not alive: READY comes after warm-up, and the first start compiles the TensorRT engines.
HEALTHCHECK --interval=10s --timeout=3s --start-period=900s --retries=3 \
    CMD ["curl", "--fail", "--silent", "http://127.0.0.1:8003/v2/health/ready"]
CMD ["start-triton", "--exit-on-error=false", "--http-port=8003", "--grpc-port=8004", "--metrics-port=8005"]

FROM ${BASE_IMAGE} AS export
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# `tensorrt`: the ONNX models and the TensorRT one; `cuda` leaves the latter out, `cpu` needs no GPU.
ARG TARGET=tensorrt
# Processes that decode JPEG files for all GPUs together; each takes a core.
ARG DECODERS=2
ARG MODEL_PRETRAINED
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PHOTODUP_ROOT=/src
WORKDIR /src
RUN python3 -m venv /opt/venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN pip install -c constraints.txt torch ${TORCH_INDEX:+--index-url ${TORCH_INDEX}}
COPY lib lib
RUN pip install -c constraints.txt ".[serve]"
COPY model_repository model_repository
RUN MODEL_PRETRAINED=${MODEL_PRETRAINED} photodup render "${TARGET}" --decoders "${DECODERS}" --out /models

FROM mounted AS triton
COPY --from=export /models /models

FROM triton AS all-in-one
ARG CUDA=13
ARG TORCH_INDEX=
ARG MODEL_PRETRAINED
USER 0
WORKDIR /src
# Ubuntu keeps one version of python3-venv per release of the base image, so there is none to pin.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN /opt/venv/bin/pip install --no-cache-dir -c constraints.txt torch ${TORCH_INDEX:+--index-url ${TORCH_INDEX}}
COPY lib lib
RUN /opt/venv/bin/pip install --no-cache-dir -c constraints.txt ".[embed,service,triton,gpu]" \
    && /opt/venv/bin/python3 -c "import torch; from onnxruntime.capi.build_and_package_info import cuda_version; \
cuda = [str(v).split('.')[0] for v in (torch.version.cuda, cuda_version)]; \
assert cuda == ['${CUDA}'] * 2, f'torch and onnxruntime-gpu are built for CUDA {cuda}, not both for ${CUDA}'" \
    && mkdir -p /cache && chown 10001:10001 /cache
COPY docker/start-all.sh /usr/local/bin/start-all
# The same weights as those inside /models; `photodup endpoints check` and the notebooks compare digests.
ENV HOST=0.0.0.0 PORT=8002 DEVICE=cuda HF_HOME=/cache/huggingface MODEL_PRETRAINED=${MODEL_PRETRAINED}
USER 10001:10001
VOLUME /cache
EXPOSE 8002
HEALTHCHECK --interval=10s --timeout=3s --start-period=900s --retries=3 CMD ["/bin/bash", "-c", \
    "curl -fs http://127.0.0.1:8002/healthz && curl -fs http://127.0.0.1:8003/v2/health/ready"]
CMD ["start-all"]
