"""``kvfw models`` and ``kvfw models check``."""

import json

import click


@click.group("models", invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> int | None:
    """List the embedded models, those of plugins, and what else --model takes."""
    if context.invoked_subcommand is not None:
        return None
    from kvfw.core.parts.spec import Kind
    from kvfw.core.registry.plugins import OWN
    from kvfw.core.registry.registry import default_registry
    from kvfw.model.embedded.folders import EMBEDDED, embedded_folder

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


@command.command("check")
@click.argument("name")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    help="Precision for sizes in bytes.  [default: auto: the checkpoint's]",
)
@click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(name: str, dtype: str, trust_remote_code: bool, as_json: bool) -> int:
    """Show what kvfw sees in a model, or why it refuses it (exit code 1). Reads its configuration, no weights.

    NAME is an embedded name, a folder or a hub id; or a config.json alone.
    """
    from kvfw.cli.model_facts import facts_text, facts_values
    from kvfw.model.load.facts import inspect_model

    facts = inspect_model(name, dtype=dtype, trust_remote_code=trust_remote_code)
    click.echo(json.dumps(facts_values(facts), indent=2) if as_json else facts_text(facts))
    return 0 if facts.refused is None else 1
