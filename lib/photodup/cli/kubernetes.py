"""The `kube` commands."""

from pathlib import Path
from typing import Annotated

import typer

kube_app = typer.Typer(help="Kubernetes manifests: check them before a cluster does.", no_args_is_help=True)


@kube_app.callback()
def kube() -> None:
    """Keep `check` a subcommand even while it is the only one."""


@kube_app.command("check")
def kube_check(
    directories: Annotated[
        list[Path] | None, typer.Argument(help="kustomizations; base and both overlays")
    ] = None,
    start_seconds: Annotated[
        float | None, typer.Option(help="measured seconds until ready, instead of the manifest's")
    ] = None,
) -> None:
    """Check manifests: schema, quota against maxReplicas, probes against start time, selectors, ports."""
    from photodup.study.kubernetes.checks import check
    from photodup.study.kubernetes.manifests import OVERLAYS, render

    found = 0
    for directory in directories or OVERLAYS.values():
        findings = check(render(directory), start_s=start_seconds)
        found += len(findings)
        said = [str(finding) for finding in findings] or ["nothing found"]
        print(*said, sep="\n", end=f"  ({directory})\n")
    if found:
        raise typer.Exit(1)
