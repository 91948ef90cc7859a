"""Administration: what the command line and the passes ask an instance to do or to say."""
