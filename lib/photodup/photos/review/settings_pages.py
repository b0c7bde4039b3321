"""The settings page: which server embeds, and which photo of a group is kept."""

from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from photodup.photos.background.work import Finished, Task
from photodup.photos.embed.choose import known_backends, probe
from photodup.photos.groups.keepers import DEFAULT_RULES
from photodup.photos.library.settings import AUTO, inside
from photodup.photos.review.site import CurrentSite, form_of, number_of
from photodup.settings import variable

router = APIRouter()

_LOCAL = (("local-pytorch-fp32", ""), ("local-onnx-fp32", ""))


@router.get("/settings")
def settings(site: CurrentSite) -> Response:
    """What is stored for this library, and which servers answer."""
    stored = site.session.settings
    chosen = (stored.backend, stored.url or "")
    states = probe(known_backends(stored, site.folder.encoders.endpoints))
    listed = {(state.name, state.url) for state in states} | {(AUTO, ""), *_LOCAL}
    return site.page(
        "settings.html",
        settings=stored,
        states=states,
        local=_LOCAL,
        chosen=chosen,
        is_other=chosen not in listed,
        environment=_environment_choice(),
        rules=[*stored.keep, *(rule for rule in DEFAULT_RULES if rule not in stored.keep)],
    )


@router.post("/settings/backend")
async def set_backend(site: CurrentSite, request: Request) -> Response:
    """Store which server embeds; choosing its address here is what makes it this user's."""
    fields = await form_of(request)
    chosen = fields.get("backend", [AUTO])[0]
    if chosen == "other":
        chosen = f"{fields.get('name', [''])[0].strip()} {fields.get('url', [''])[0].strip()}"
    name, _, url = chosen.partition(" ")
    changed = replace(site.session.settings, backend=name or AUTO, url=url or None, ignored=None)
    await run_in_threadpool(site.session.change, changed)
    return site.go("/settings")


@router.post("/settings/keep")
async def set_keep_rules(site: CurrentSite, request: Request) -> Response:
    """Store the order of the keep rules, and the folders by priority."""
    fields = await form_of(request)
    places = {rule: number_of(fields.get(rule, ["0"])[0] or "0") for rule in DEFAULT_RULES}
    order = sorted((rule for rule in DEFAULT_RULES if places[rule] > 0), key=lambda rule: places[rule])
    folders = inside(fields.get("folders", [""])[0].splitlines())
    session = site.session
    changed = replace(session.settings, keep=tuple(order), folders=folders)

    def change(task: Task) -> Finished:
        session.change(changed)
        return Finished("/settings")

    return await site.run(Task("Choosing the photos to keep", change, can_stop=False))


def _environment_choice() -> str:
    """Return what the environment chooses over the settings; empty if nothing."""
    names = ("INFERENCE_BACKEND", "INFERENCE_SERVICE_URL")
    return ", ".join(f"{name}={variable(name)}" for name in names if variable(name))
