"""Scaled dot product attention and its gradients: cuDNN or MAX's flash kernels, else stored scores.

In: an ATen node's arguments as MAX values. Out: its results. May import ``support``, ``registry``, ``base`` and other
families.
"""
