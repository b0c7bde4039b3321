"""What decides how many pods there are: the HorizontalPodAutoscaler's controller, and KEDA on top of it.

May import: manifests. Read `replicas.py` first (from metrics to a number), then `hpa.py` (bounds, rates, stabilisation).
"""
