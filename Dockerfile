# One file, three images:
#
#   docker build -t stampede:gpu .                                an NVIDIA GPU, with a driver of 580 or newer
#   docker build -t stampede:cpu --build-arg BASE=cpu .           no GPU
#   docker build -t stampede:nvtabular --build-arg BASE=merlin .  prepare --engine nvtabular on an NVIDIA GPU
#
# pip's default build of torch is the CUDA build. For the cpu image, --build-arg PIP_EXTRA_INDEX_URL=<index> takes
# the CPU build instead, 3 GB smaller: PyTorch's install page shows its index (README.md, "The size of PyTorch").
ARG BASE=gpu

FROM python:3.11-slim-bookworm AS cpu-python

FROM nvidia/cuda:13.0.2-base-ubuntu24.04 AS gpu-python
# torch brings the CUDA libraries; this base adds what the container toolkit asks for. Ubuntu keeps one version of
# a package per release, so there is none to pin.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Merlin's image has Python 3.10. This one brings its own libraries, so it runs there too; uv checks its hash.
FROM cpu-python AS portable-python
RUN pip install --no-cache-dir uv==0.13.9 \
    && uv python install --no-bin --install-dir /downloaded 3.11.18 \
    && mv /downloaded/cpython-3.11.18-* /opt/python \
    && chmod -R a+rX /opt/python

# Ubuntu 22.04, Python 3.10 with NVTabular 23.8 on cuDF 23.04 and dask-cuda, CUDA 12.1: a driver of 530 or newer.
FROM nvcr.io/nvidia/merlin/merlin-pytorch:23.08 AS merlin-python
COPY --from=portable-python /opt/python/ /opt/python/
# Its PYTHONPATH leads to the packages of 3.10, which that finds without it and 3.11 cannot load.
ENV PATH=/opt/python/bin:$PATH PYTHONPATH="" STAMPEDE_NVTABULAR_PYTHON=/usr/bin/python3

FROM cpu-python AS requirements
WORKDIR /requirements
COPY pyproject.toml constraints.txt constraints-gpu.txt ./
# The merlin image goes without torch: preparing needs none, and Merlin's LD_LIBRARY_PATH leads to the libraries of
# its own, older one.
RUN python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; print('-c constraints.txt', *p['dependencies'], *e['onnx'], *e['search'], *e['serve'], sep='\n')" > cpu.txt \
    && python3 -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; print('-c constraints-gpu.txt', *p['dependencies'], *e['onnx'], *e['search'], *e['serve'], *e['gpu'], sep='\n')" > gpu.txt \
    && grep -v '^torch' cpu.txt > merlin.txt

FROM cpu-python AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
# src/stampede holds links to the five folders.
COPY src/ src/
COPY pipeline/ pipeline/
COPY kernels/ kernels/
COPY training/ training/
COPY workflows/ workflows/
COPY cli/ cli/
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /wheels .

FROM ${BASE}-python AS packages
ARG BASE
ARG PIP_EXTRA_INDEX_URL=""
COPY --from=requirements /requirements/*.txt /tmp/
# The dependencies first, so that a change of the code does not install torch again.
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/stampede \
    && /opt/stampede/bin/pip install -r "/tmp/${BASE}.txt"

FROM ${BASE}-python AS stampede
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
# The user may use the folders, a GPU that it was given is still there, and the command answers.
HEALTHCHECK --interval=5m --timeout=30s \
    CMD ["sh", "-c", "test -r data && test -w runs && ${NVIDIA_VISIBLE_DEVICES:+nvidia-smi --list-gpus} && stampede --version"]
ENTRYPOINT ["stampede"]
CMD ["--help"]
