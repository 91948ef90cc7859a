"""Words about numbers, for those who wait for a benchmark. PURE."""


def counted(number: int, one: str) -> str:
    """So many of something: 1 group, 2 groups."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"
