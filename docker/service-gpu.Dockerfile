# The FastAPI service on one NVIDIA GPU.   docker build -f docker/service-gpu.Dockerfile -t photodup-service:gpu .
# torch's wheels bring CUDA and cuDNN themselves, so the base needs only Python: a CUDA base would hold them twice.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
ARG CUDA=13
# Empty: pip's default index, whose Linux wheels are the CUDA builds.
ARG TORCH_INDEX=
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python3 -m venv /opt/venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN pip install -c constraints.txt torch ${TORCH_INDEX:+--index-url ${TORCH_INDEX}}
COPY lib lib
RUN pip install -c constraints.txt ".[embed,service,triton,gpu]" \
    && python3 -c "import torch; from onnxruntime.capi.build_and_package_info import cuda_version; \
cuda = [str(v).split('.')[0] for v in (torch.version.cuda, cuda_version)]; \
assert cuda == ['${CUDA}'] * 2, f'torch and onnxruntime-gpu are built for CUDA {cuda}, not both for ${CUDA}'"

FROM ${BASE_IMAGE}
RUN mkdir -p /cache && chown 10001:10001 /cache
COPY --from=build /opt/venv /opt/venv
# The two NVIDIA_ variables make the container toolkit mount the driver: a slim base does not set them.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/cache HF_HOME=/cache/huggingface HOST=0.0.0.0 PORT=8002 DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:10001
WORKDIR /cache
VOLUME /cache
EXPOSE 8002
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 CMD ["python3", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/healthz', timeout=2)"]
CMD ["python3", "-m", "photodup.serving.service"]
