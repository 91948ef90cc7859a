"""The morning report as the command line runs it, the shipping of segments, comparisons."""
