"""The `photodup vast` commands. Each imports what it needs when it runs. Not run here: no account was at hand."""

from typing import Annotated, Any

import typer

vast = typer.Typer(no_args_is_help=True, help="Rent a GPU at Vast.ai for a study, and give it back.")
Name = Annotated[str, typer.Argument(help="name given to `up`")]


def _client() -> Any:
    """Connect; first destroy what is past its time, and name what nobody looks after."""
    from photodup.serving import vast as rented

    client = rented.connect()
    for name in rented.destroy_overdue(client):
        print(f"{name} was past its --max-hours and is destroyed.")
    for instance in rented.unnoticed(client):
        print(f"Instance {instance} is ours but not rented from this machine: {rented.CONSOLE}")
    return client


@vast.command()
def offers(
    gpu: Annotated[str, typer.Option(help="such as 'RTX 4090' or 'A100 SXM4'")],
    max_price: Annotated[float | None, typer.Option(help="USD per hour, with the disk")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="how many of it one machine has")] = 1,
) -> None:
    """List machines with such a GPU, or several, that can run the all-in-one image, the cheapest first."""
    from photodup.errors import PhotodupError
    from photodup.serving.gpu_image import IMAGE_GB
    from photodup.serving.vast_offers import find_offers

    found = find_offers(_client(), gpu, max_price, gpus=gpus)
    if not found:
        raise PhotodupError(f"No offer has {gpus} × {gpu} for that: raise --max-price or name another GPU.")
    for row in found:
        reliability, pull = row["reliability"] or 0.0, row["pull_minutes"]
        print(
            f"{row['offer']:>10}  {row['gpus']} × {row['gpu']:<16} {row['price_per_hour_usd']:.3f} USD/h"
            f" + {row['pull_usd']:.2f} USD for the image in {f'{pull:.0f}' if pull else '?'} min"
            f"  {row['down_mbit_per_s'] or 0:.0f} Mbit/s  reliability {reliability:.1%}  {row['location']}"
        )
    print(
        f"Traffic is billed apart: the image is taken as {IMAGE_GB:g} GB, and what your loads send comes on top."
    )


@vast.command()
def up(
    offer: Annotated[int, typer.Argument(help="number from `offers`")],
    image: Annotated[str, typer.Option(help="the all-in-one image, in a registry")],
    name: Annotated[str, typer.Option(help="of the endpoints file")],
    max_hours: Annotated[float, typer.Option(help="destroyed after this long, whatever happens")],
    pretrained: Annotated[str, typer.Option(help="weights; as baked into the image")] = "laion2b_s34b_b79k",
) -> None:
    """Rent a machine, wait until every backend is ready, and write its endpoints file."""
    from photodup.serving import vast as rented

    path = rented.up(_client(), offer, image, name, max_hours, pretrained=pretrained, progress=print)
    print(f"{path}\nGive it back with: photodup vast down {name}")


@vast.command()
def endpoints(name: Name) -> None:
    """Write the endpoints file again; ports change when a machine restarts."""
    from photodup.serving.vast import write_endpoints

    print(write_endpoints(_client(), name))


@vast.command()
def down(name: Name) -> None:
    """Destroy the machine, and make sure that it is gone."""
    from photodup.serving import vast as rented

    rented.down(_client(), name)
    print(f"{name} is destroyed.")
