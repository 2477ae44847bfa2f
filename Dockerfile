# A server of one or more runs, which are mounted at /models:
#   docker build -t bertvision .
#   docker run --rm -p 8000:8000 -v "$PWD/my-model:/models/my-model:ro" bertvision /models/my-model
FROM python:3.11-slim-bookworm AS build
WORKDIR /build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/bertvision
# The CPU build of torch is a tenth of the size: --build-arg TORCH_INDEX=... with the index that pytorch.org names for it.
ARG TORCH_INDEX=""
COPY constraints.txt ./
RUN /opt/bertvision/bin/pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN /opt/bertvision/bin/pip install -c constraints.txt ".[serve,onnx]"

FROM python:3.11-slim-bookworm
COPY --from=build /opt/bertvision /opt/bertvision
ENV PATH="/opt/bertvision/bin:$PATH" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
RUN useradd --create-home --uid 10001 bertvision
USER bertvision
WORKDIR /home/bertvision
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/readyz', timeout=2)"]
# SIGTERM ends readiness, then the answers under way are finished; give it longer than --timeout to end.
STOPSIGNAL SIGTERM
ENTRYPOINT ["bertvision", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["/models"]
