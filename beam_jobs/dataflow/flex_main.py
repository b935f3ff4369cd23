"""What the flex template runs inside the image of ``Dockerfile``: see :mod:`beam_jobs.dataflow.launch`."""

import sys

from beam_jobs.dataflow.launch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
