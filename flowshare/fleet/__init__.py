"""The `workers` backend: share groups on any Kafka, led by the workers of a fleet themselves (docs/architecture.md)."""
