"""A real X desktop on this machine, for trying out and for tests.

Not for untrusted models: the bubblewrap sandbox hides the host's files and network from the desktop, but shares its kernel, and the plain-process
tier hides nothing. For models you do not trust use a virtual machine.
"""

from osworld_rollouts.desktops.local._provider import LocalDesktopProvider

__all__ = ["LocalDesktopProvider"]
