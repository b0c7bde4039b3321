# Three backends on one GPU: FastAPI with PyTorch (8002), Triton with ONNX Runtime and with TensorRT (8003 to 8005).
# Built on the Triton image with weights inside:
#   docker build -f docker/triton.Dockerfile -t photodup-triton .
#   docker build -f docker/all-in-one.Dockerfile -t photodup-all-in-one .
ARG BASE_IMAGE=photodup-triton

# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
ARG TORCH_INDEX=
ARG MODEL_PRETRAINED=laion2b_s34b_b79k
USER 0
WORKDIR /src
# Ubuntu keeps one version of python3-venv per release of the base image, so there is none to pin.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* && python3 -m venv /opt/venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN /opt/venv/bin/pip install --no-cache-dir -c constraints.txt torch ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} \
    && /opt/venv/bin/python3 -c "import torch; assert torch.version.cuda, 'TORCH_INDEX gave a CPU build of torch'"
COPY lib lib
RUN /opt/venv/bin/pip install --no-cache-dir -c constraints.txt ".[embed,service,gpu]" \
    && mkdir -p /cache && chown 10001:10001 /cache
COPY docker/start-all.sh /usr/local/bin/start-all
# The same weights as those inside /models; `photodup endpoints check` and the notebooks compare digests.
ENV HOST=0.0.0.0 PORT=8002 DEVICE=cuda HF_HOME=/cache/huggingface MODEL_PRETRAINED=${MODEL_PRETRAINED}
USER 10001:10001
VOLUME /cache
EXPOSE 8002 8003 8004 8005
HEALTHCHECK --interval=10s --timeout=3s --start-period=900s --retries=3 CMD ["/bin/bash", "-c", \
    "curl -fs http://127.0.0.1:8002/healthz && curl -fs http://127.0.0.1:8003/v2/health/ready"]
CMD ["start-all"]
