# The FastAPI service on CPUs.   docker build -f docker/service.Dockerfile -t photodup-service:cpu .
# Any base with python3 (3.11 to 3.13) and its venv module will do; both stages must have the same one.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM ${BASE_IMAGE} AS build
# The default index of pip brings CUDA builds of torch, gigabytes that a CPU cannot use.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN python3 -m venv /opt/venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch in a layer of its own, before the sources: a changed line of Python does not install it again.
RUN pip install -c constraints.txt torch ${TORCH_INDEX:+--index-url ${TORCH_INDEX}}
COPY lib lib
RUN pip install -c constraints.txt ".[serve]"

FROM ${BASE_IMAGE}
# A number, not a name: Kubernetes can check runAsNonRoot only then. The folder holds downloaded weights.
RUN mkdir -p /cache && chown 10001:10001 /cache
COPY --from=build /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    HOME=/cache HF_HOME=/cache/huggingface HOST=0.0.0.0 PORT=8002
USER 10001:10001
WORKDIR /cache
VOLUME /cache
EXPOSE 8002
# Alive, not ready: /readyz is for load balancers, and loading weights must not get the container killed.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 CMD ["python3", "-c", \
    "import os, urllib.request as r; r.urlopen(f'http://127.0.0.1:{os.environ[\"PORT\"]}/healthz', timeout=2)"]
CMD ["python3", "-m", "photodup.serving.service"]
