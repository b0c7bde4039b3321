"""Kubernetes without a cluster: manifests checked, the autoscaler simulated, demand planned; and a real control plane.

May import: serving, bench. Read `simulate.py` first; `autoscaler/` is the controller's decision alone.
"""
