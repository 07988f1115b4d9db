# A worker with everything: workflows, model calls, desktops, evaluator. Built from the repository's root:
#   docker build -f deploy/worker.Dockerfile -t osworld-rollouts/worker .
FROM debian:12.12-slim

ENV DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PYTHONUNBUFFERED=1

WORKDIR /opt/osworld-rollouts
COPY deploy/apt-packages.txt deploy/
COPY osworld_rollouts/desktops/local/packages.txt osworld_rollouts/desktops/local/
RUN apt-get update -q \
    && sed 's/#.*//' deploy/apt-packages.txt osworld_rollouts/desktops/local/packages.txt | xargs apt-get install -q -y --no-install-recommends \
    && rm -rf /var/lib/apt/lists/*

COPY requirements requirements
RUN python3 -m venv .venv \
    && .venv/bin/pip install --quiet --no-cache-dir --no-deps --require-hashes -r requirements/uv.txt \
    && .venv/bin/uv pip install --quiet --no-cache --system-certs --python .venv/bin/python --no-deps --require-hashes --compile-bytecode -r requirements/lock.txt

COPY LICENSE README.md pyproject.toml worker.py ./
COPY workflows workflows
COPY activities activities
COPY osworld_rollouts osworld_rollouts
RUN .venv/bin/pip install --quiet --no-cache-dir --no-deps --no-build-isolation -e .

ENV PATH=/opt/osworld-rollouts/.venv/bin:$PATH ROLLOUTS_STATE_DIR=/var/lib/osworld-rollouts
VOLUME /var/lib/osworld-rollouts
STOPSIGNAL SIGTERM
CMD ["python", "worker.py"]
