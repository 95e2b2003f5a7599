"""What every process of a cell would find alike, found once by the server that they are forked of.

It takes most of a second: MKL measures the processor's clock before it says which path it takes.
Nothing here starts a thread or asks for a GPU: a process that is forked must find neither.
"""

from shared.experiment.arithmetic import arithmetic_used
from shared.experiment.versions import lock_hash

arithmetic_used()
lock_hash()
