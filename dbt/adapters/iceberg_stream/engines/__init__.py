"""Where Spark runs: a local Spark Connect server that we start, or one that is already there."""
