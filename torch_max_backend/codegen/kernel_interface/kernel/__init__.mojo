"""What generated kernels are written with: `from kernel import *`. The package `vectors` beneath it has two forms."""
from vectors import *
from .constants import *
from .comparison import *
from .division import *
from .casts import *
from .bits import *
from .threading import *
from .exponential import *
from .logarithm import *
from .trigonometry import *
from .powers import *
from .special import *
