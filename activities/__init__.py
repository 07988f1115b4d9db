"""Every side effect: one file per kind of thing touched."""
