"""``kvfw models``."""

import click


@click.command("models")
def command() -> int:
    """List the embedded models, those of plugins, and what else --model takes."""
    from kvfw.core.parts import Kind
    from kvfw.core.plugins import OWN
    from kvfw.core.registry import default_registry
    from kvfw.model.embedded import EMBEDDED, embedded_folder

    for model in EMBEDDED.values():
        folder = embedded_folder(model)
        state = f"cached in {folder}" if folder.exists() else "fetched on first use"
        click.echo(f"{model.name}\n  {model.about}\n  {model.requirement} from PyPI, {model.licence}; {state}")
    for spec in default_registry().of_kind(Kind.MODEL):
        if spec.provider != OWN:
            facts = "".join(f"\n  {key}: {value}" for key, value in spec.facts.items())
            click.echo(f"{spec.name}\n  {spec.summary} (plugin {spec.provider}){facts}")
    click.echo(
        "\n--model also takes a local folder with config.json and safetensors weights, or a hub id such as owner/name."
    )
    return 0
