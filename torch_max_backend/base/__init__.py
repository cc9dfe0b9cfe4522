"""What everything else stands on: errors, digests, the target machine, versions, the import graph.

In: nothing of this package. Out: facts about the environment and the exceptions of one tree. May import no other
folder, and imports MAX nowhere and torch only inside functions: a warm start needs this first.
"""
