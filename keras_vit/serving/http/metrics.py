"""What the service counts and times, for Prometheus."""

import prometheus_client as prometheus


class Metrics:
    """Counters of one application, in a registry of their own."""

    def __init__(self):
        self.registry = prometheus.CollectorRegistry()
        of = {"registry": self.registry, "namespace": "keras_vit"}
        self.requests = prometheus.Counter("requests", "Requests answered.", ["model", "signature", "code"], **of)
        self.seconds = prometheus.Histogram(
            "request_seconds", "From the first byte of a request to its answer.", ["model"], **of
        )
        self.images = prometheus.Counter("images", "Images of requests.", ["model", "outcome"], **of)
        self.batch = prometheus.Histogram(
            "batch_rows", "Images computed together.", ["model"], buckets=(1, 2, 4, 8, 16, 32, 64, 128), **of
        )
        self.waiting = prometheus.Gauge("waiting_rows", "Images that wait to be computed.", ["model"], **of)
        self.open = prometheus.Gauge("open_requests", "Requests that are being answered.", **of)

    def text(self) -> bytes:
        return prometheus.generate_latest(self.registry)
