"""Kubernetes manifests: what they say of pods and quotas, and where they contradict each other.

May import: nothing of the study. Read `checks.py` first.
"""
