# A router: no torch, no compiler. Build it from the repository's root.
FROM python:3.11-slim AS build
RUN python -m venv /app
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
# What the packages need, in a layer that their own changes leave alone.
RUN mkdir proto lib router prefill_worker decode_worker kv_transfer kernels \
    && /app/bin/pip install --no-cache-dir --constraint constraints.txt ".[router,tracing]" \
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
RUN useradd --create-home --uid 10001 baton \
    && install --directory --owner baton /home/baton/.cache /home/baton/.cache/huggingface
COPY --from=build /app /app
ENV PATH=/app/bin:$PATH PYTHONUNBUFFERED=1
USER baton
WORKDIR /home/baton
EXPOSE 8000 8100
STOPSIGNAL SIGTERM
# Ready once a worker prefills and one decodes.
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["baton", "router"]
CMD ["--host", "0.0.0.0"]
