from vectors import *
