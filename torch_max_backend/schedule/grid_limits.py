"""Numbers of a GPU, and the limits by which its kernels are shared out."""

WARP, BLOCK, MOST = 32, 256, 1024
"""Threads: of a warp, of a block as a rule, of a block at most."""
PROCESSORS = 132
"""Multiprocessors, each of which runs several blocks."""
BUSY = PROCESSORS * 1024
"""Threads that keep a GPU busy."""
LARGE = 1 << 15
"""Elements of a transpose that are worth tiles."""
BYTES = 16
"""What a thread reads or writes at once, at most."""
EACH, ELEMENTS = 8, 32
"""Vectors of an inner loop that a thread of several warps should have, and elements."""
GUARDS = 2
"""Conditions that differ between the lanes of vectors, at most: each is computed lane by lane."""
HELD, NARROW, REGISTERS = 4, 16, 32
"""Vectors of a row that a thread holds, elements of narrow vectors, and elements at most: with fewer, a block has many
threads for a row, and few rows are under way together."""
ALONE, SEVERAL = 2, 8
"""Vectors of a row, or elements of narrow vectors, that a lane of one warp holds, rather than that several warps share
the row and wait for each other."""
LEAST, MANY = 4, 16
"""Elements that a thread should have of a row that it reads in narrow vectors, and at most."""
SHORT = 16
"""Inner iterations that are left to one thread if memory runs along an outer loop."""
WINDOW = 64
"""Inner iterations that are left to one thread if neighbours' loops of several variables read the same lines."""
WINDOW_LOADS = 4
"""Loads that narrow vectors of neighbours take less time for than wide ones that are put together of elements."""
SHARED, WIDEST = 48 << 10, 8
"""Bytes of shared memory that a block has, and of the widest element."""
LONG = 256
"""Elements of a row that few vectors go beyond."""
TILE, TILE_BYTES, LONGEST_SIDE, NARROWEST = 32, 8 << 10, 512, 3
"""Of a transpose: indices of its two loops that a block has, twice as many of 16 bits; what passes through a block's
shared memory; the most indices of a loop if the other one is short, and the shortest loop."""
INTERLEAVED = 8
"""Elements of a short loop, at most, whose tensors are read or written in vectors of several of its iterations."""
BANK = 4
"""Bytes of a bank of shared memory: threads that read from one bank at once wait for each other."""
STORES = 2
"""How often a byte that is written counts, where loops are compared by what runs along memory."""
SECTOR, LINE, WORD = 32, 128, 4
"""Bytes that memory is read by, at least, those of a line of a cache, and those that a thread should read at once."""
TIMES = 4
"""Outer indices of a thread, at most, if each of them alone reads or writes little."""
WORTH_SHARING, SHARING_READS, SHARING_BYTES = 6, 32, 128
"""Operations that outer indices along a loop share, so that a thread has neighbours along it; reads of these and their
bytes, at most."""
LOOKED_AT = 16
"""Iterations of a loop that are looked at to see how far apart neighbours are, where no one number says it."""
LONG_ROW, FEW_WARPS, READS = 1024, 2, 4
"""Elements of a row that a warp reads in several rounds, and the warps of a block then: those of a block with more end
at different times, and all wait for the last one; the vectors of such rows that a thread reads for one reduction."""
LONG_BYTES, NEAR = 1 << 13, 1 << 16
"""Bytes of a row from which on reductions alone do not hold it, and up to which the rows that are under way are read
again from a cache faster than 1,024 threads hold them, each as many elements as it can."""
KEPT = 64
"""Bytes of a row that shared memory keeps for each thread."""
TOLD = frozenset([2, 4, 8])
"""The bytes of what the blocks of a cluster can tell each other."""
COLUMNS = 32
"""Neighbouring outer indices of a block whose threads share inner loops as well."""
AHEAD = 8
"""Iterations of a loop, at most, whose reads are under way together."""
