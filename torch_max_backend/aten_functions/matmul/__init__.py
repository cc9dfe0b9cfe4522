"""Matrix products: plain, batched, grouped, added to a tensor; distances; the product of ``nn.Bilinear``.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
