"""Metrics, dashboard and alerts, with a real Prometheus."""
