"""``kvfw lm-eval``."""

import click


@click.command(
    "lm-eval",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    no_args_is_help=True,
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> int:
    """Run lm-eval's own command line (lm-evaluation-harness), which then knows the model kvfw.

    ARGUMENTS are all lm-eval's: see "kvfw lm-eval run --help".

    \b
    kvfw lm-eval --model kvfw --tasks task.yaml \\
        --model_args "pretrained=smollm2-135m,compose=kvzip@global,ratio=4"
    """
    from kvfw.harness.launch import launch

    launch(arguments)
    return 0
