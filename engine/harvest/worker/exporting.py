"""Where a worker process sends its metrics and spans: a port for Prometheus, and OTLP where the environment says so."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from opentelemetry import metrics, trace

from harvest.errors import ConfigurationError

_log = logging.getLogger("harvest.worker")
_SERVICE: Final = "harvest-worker"
_LAST_MILLISECONDS: Final = 1_000


@contextmanager
def exporting(port: int | None = None, host: str = "127.0.0.1") -> Iterator[None]:
    """Serve `/metrics` on `port`, and send OTLP where OTEL_EXPORTER_OTLP_ENDPOINT or its like is set, until the end.

    Has to be entered before a worker is made. Raises ConfigurationError for a port that is taken, and for OTLP without
    the packages of the extra `otlp`.
    """
    closing: list[Any] = []
    try:
        readers = []
        if port is not None:
            reader, server = _prometheus(port, host)
            readers.append(reader)
            closing.append(server.shutdown)
        if _wants("METRICS"):
            readers.append(_otlp_metrics())
        if readers:
            closing.append(_set_meter(readers))
        if _wants("TRACES"):
            closing.append(_set_tracer())
        yield
    finally:
        for close in reversed(closing):
            try:
                close()
            except Exception as error:
                _log.warning("the last metrics were not sent: %s", error)


def _wants(signal: str) -> bool:
    """Whether the standard variables ask for this signal: an endpoint is named and the signal is not switched off."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp":
        return False
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{part}ENDPOINT") for part in ("", f"{signal}_"))


def _prometheus(port: int, host: str) -> tuple[Any, Any]:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    reader = PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry)
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigurationError(f"metrics cannot be served at {host}:{port}: {error.strerror or error}") from None
    return reader, server


def _set_meter(readers: list[Any]) -> Any:
    from opentelemetry.sdk.metrics import MeterProvider

    provider = MeterProvider(readers, resource=_resource())
    metrics.set_meter_provider(provider)
    return lambda: provider.shutdown(timeout_millis=_LAST_MILLISECONDS)


def _otlp_metrics() -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError:
        raise _without_otlp() from None
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return PeriodicExportingMetricReader(OTLPMetricExporter(timeout=1))


def _set_tracer() -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise _without_otlp() from None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=1)))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _without_otlp() -> ConfigurationError:
    return ConfigurationError(
        "OTEL_EXPORTER_OTLP_ENDPOINT is set, but the packages that send OTLP are not here: "
        "pip install 'harvest-workflows[otlp]'"
    )


def _resource() -> Any:
    from opentelemetry.sdk.resources import Resource

    # What the environment names wins.
    name = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": _SERVICE}
    return Resource.create(name)
