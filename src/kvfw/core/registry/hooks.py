"""kvfw's plugin hooks. A plugin implements one or more; kvfw's own parts come through the same hooks."""

from collections.abc import Iterable

import pluggy

from kvfw.core.parts.spec import PartSpec

#: Name of the entry-point group and of the pluggy project.
GROUP = "kvfw"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class KvfwHooks:
    """Hook specifications."""

    @hookspec
    def kvfw_parts(self) -> Iterable[PartSpec]:
        """Returns the plugin's parts, of any kind, without importing their targets."""
        raise AssertionError("specification only")
