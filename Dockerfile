# One file, two images:
#
#   docker build -t stampede:gpu .                           an NVIDIA GPU, with a driver of 580 or newer
#   docker build -t stampede:cpu --build-arg DEVICE=cpu .    no GPU
#
# pip's default build of torch is the CUDA build. For the cpu image, --build-arg PIP_EXTRA_INDEX_URL=<index> takes
# the CPU build instead, 3 GB smaller: PyTorch's install page shows its index (README.md, "The size of PyTorch").
ARG DEVICE=gpu

FROM python:3.11-slim-bookworm AS cpu-python

FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS gpu-python
# torch brings the CUDA libraries; this base adds what the container toolkit asks for. Ubuntu keeps one version of
# a package per release, so there is none to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*

FROM cpu-python AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
RUN python3 -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > requirements.txt
# src/stampede holds links to the five folders.
COPY src/ src/
COPY pipeline/ pipeline/
COPY kernels/ kernels/
COPY training/ training/
COPY workflows/ workflows/
COPY cli/ cli/
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /wheels .

FROM ${DEVICE}-python AS packages
ARG PIP_EXTRA_INDEX_URL=""
COPY --from=wheel /source/requirements.txt /source/constraints.txt /tmp/
# The dependencies first, so that a change of the code does not install torch again.
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/stampede \
    && /opt/stampede/bin/pip install -r /tmp/requirements.txt -c /tmp/constraints.txt

FROM ${DEVICE}-python AS stampede
# Any user may run it (docker-compose.yml gives the caller's id): the folders are open and HOME needs no account.
RUN useradd --no-create-home --uid 10001 stampede \
    && install -d -m 1777 /workspace /workspace/data /workspace/runs
COPY --from=packages /opt/stampede/ /opt/stampede/
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    /opt/stampede/bin/pip install --no-cache-dir --no-deps /wheels/*.whl
ENV PATH=/opt/stampede/bin:$PATH HOME=/tmp USER=stampede PYTHONUNBUFFERED=1
USER 10001
WORKDIR /workspace
VOLUME ["/workspace/data", "/workspace/runs"]
HEALTHCHECK --interval=5m --timeout=30s CMD ["stampede", "--version"]
ENTRYPOINT ["stampede"]
CMD ["--help"]
