# A decode worker: takes prompts' blocks and streams tokens. Build it from the repository's root.
FROM python:3.11-slim AS build
# "worker" computes on the CPU, "gpu" on NVIDIA's; each with the build of torch that it needs.
ARG EXTRA=worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN python -m venv /app
WORKDIR /src
# torch first and alone: its builds have indexes of their own. The largest layer, and the one that changes least.
COPY constraints.txt ./
RUN torch=$(grep '^torch==' constraints.txt) \
    && { /app/bin/pip install --no-cache-dir --retries 0 --timeout 15 --index-url "$TORCH_INDEX" "$torch" \
        || /app/bin/pip install --no-cache-dir "$torch"; }
# What the packages need, in a layer that their own changes leave alone.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir proto lib router prefill_worker decode_worker kv_transfer kernels \
    && /app/bin/pip install --no-cache-dir --constraint constraints.txt ".[$EXTRA,transformers,tracing]" \
    && /app/bin/pip uninstall --yes baton
COPY proto proto
COPY lib lib
COPY router router
COPY prefill_worker prefill_worker
COPY decode_worker decode_worker
COPY kv_transfer kv_transfer
COPY kernels kernels
RUN /app/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim
# The CPU's kernels are compiled at the first start, for the processor that is there.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 baton \
    && install --directory --owner baton /home/baton/.cache /home/baton/.cache/huggingface
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1
USER baton
WORKDIR /home/baton
EXPOSE 5600 9100
STOPSIGNAL SIGTERM
# Healthy while a router knows it.
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9100/health', timeout=2)"]
ENTRYPOINT ["baton", "decode-worker"]
CMD ["--peer-address", "tcp://0.0.0.0:5600", "--metrics-port", "9100"]
