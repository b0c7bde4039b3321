"""What decides how many pods there are: the HorizontalPodAutoscaler's controller.

May import: manifests. Read `replicas.py` first (from metrics to a number), then `hpa.py` (bounds, rates, stabilisation).
"""
