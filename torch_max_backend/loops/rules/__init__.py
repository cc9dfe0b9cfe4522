"""Loop rules, a module a family. In: the arguments of one ATen node as ``Tensor``. Out: its results."""
