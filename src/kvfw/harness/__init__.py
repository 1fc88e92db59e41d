"""kvfw as a model of EleutherAI's lm-evaluation-harness (lm-eval); only :mod:`kvfw.harness.lm` imports lm-eval."""
