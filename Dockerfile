# syntax=docker/dockerfile:1
# An image with the command `flowshare`; an application's modules are copied into /app (examples/kubernetes/Dockerfile).
#
#     docker build -t flowshare:0.1 .

FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/flowshare
COPY requirements/image.txt requirements/
# The versions that flowshare is tested with (the part of lock.txt that it needs), each held against its hash; hatchling
# among them, which builds flowshare here and stays behind.
RUN /opt/flowshare/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --require-hashes \
    -r requirements/image.txt
COPY pyproject.toml README.md LICENSE ./
COPY flowshare flowshare
RUN /opt/flowshare/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
    && /opt/flowshare/bin/pip uninstall --yes hatchling pathspec pluggy trove-classifiers

FROM python:3.11-slim
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin flowshare \
    && install -d -o 10001 -g 10001 /app /data
COPY --from=build /opt/flowshare /opt/flowshare
ENV PATH=/opt/flowshare/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER 10001:10001
# Health, metrics and /scale, with --web-port 8081 --web-bind 0.0.0.0.
EXPOSE 8081
ENTRYPOINT ["flowshare"]
CMD ["--help"]
