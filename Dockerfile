# One image for every part: the console (`serve`), workers (`worker APP`) and migrations (`migrate run`).
FROM python:3.12-slim

RUN useradd --system --create-home --home-dir /srv/harvest harvest
WORKDIR /app

COPY requirements-run.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements-run.lock

COPY pyproject.toml README.md LICENSE ./
COPY engine ./engine
COPY backend ./backend
COPY templates ./templates
COPY static ./static
COPY migrations ./migrations
RUN pip install --no-cache-dir --no-deps .

USER harvest
WORKDIR /srv/harvest
# The same order of sets of strings in every worker: what replays must not depend on the process.
ENV PYTHONHASHSEED=0 PYTHONUNBUFFERED=1
EXPOSE 8400
ENTRYPOINT ["harvest"]
CMD ["serve", "--host", "0.0.0.0"]
